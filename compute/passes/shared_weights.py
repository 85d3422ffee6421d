"""Sums over the uses of one weight as one product: a₁ᵀb₁ + a₂ᵀb₂ + … is the product of all a beside each other with all
b beside each other. So the gradient of a weight that every step of a recurrent layer uses is one product, not one for
each step and a pass over the weight for each. The same for sums, the gradients of biases.
"""

from collections.abc import Sequence

from coterie.compute.ir import Graph, Node, Value
from coterie.compute.passes.rewrite import View, rewrite

# Fewer terms save too little for the copy that joins them.
_FEWEST = 3


def join_uses(graph: Graph) -> Graph:
    """One sweep: chains of products that are added up, chains of sums over axis 0 that are added up."""
    inner = _inner(graph)

    def rule(node: Node, view: View) -> Value | None:
        if node.output in inner:
            return None  # the end of its chain takes it along
        if node.primitive == "gemm":
            return _products(node, view)
        return _sums(node, view) if node.primitive == "add" else None

    return rewrite(graph, rule)


def _inner(graph: Graph) -> set[Value]:
    """The values inside a chain: made by a gemm or an add, and read by the next one alone."""
    view = View(graph)
    inner: set[Value] = set()
    for node in graph.nodes:
        if node.primitive == "gemm" and len(node.inputs) == 3 and _next_product(node, view) is not None:
            inner.add(node.inputs[2])
        elif node.primitive == "add":
            inner.update(value for value in node.inputs if _is_part(view, value, node))
    return inner


def _next_product(node: Node, view: View) -> Node | None:
    """The product of the same kind that is this one's addend and is read by nothing else."""
    if len(node.inputs) != 3 or view.uses(node.inputs[2]) != 1:
        return None
    addend = view.producer(node.inputs[2], "gemm")
    if addend is None or addend.output.type != node.output.type or addend.attributes != node.attributes:
        return None
    return addend


def _products(node: Node, view: View) -> Value | None:
    chain = [node]
    while (further := _next_product(chain[-1], view)) is not None:
        chain.append(further)
    pairs = [product.inputs[:2] for product in chain]
    read = sum(value.type.size for pair in pairs for value in pair)
    if len(chain) < _FEWEST or read > (len(chain) - 1) * node.output.type.size:
        return None
    a_axis = 0 if node.attributes["transpose_a"] else 1
    b_axis = 1 if node.attributes["transpose_b"] else 0
    a = view.emit("concat", *(pair[0] for pair in pairs), axis=a_axis)
    b = view.emit("concat", *(pair[1] for pair in pairs), axis=b_axis)
    return view.emit("gemm", a, b, *chain[-1].inputs[2:], **node.attributes)


def _is_part(view: View, value: Value, node: Node) -> bool:
    """Whether a sum goes on in this operand of an addition."""
    return view.uses(value) == 1 and value.type == node.output.type and view.producer(value, "add") is not None


def _terms(node: Node, view: View) -> list[Value]:
    """What a tree of additions adds up, from left to right."""
    found: list[Value] = []
    waiting = list(reversed(node.inputs))
    while waiting:
        value = waiting.pop()
        inner = view.producer(value, "add")
        if inner is not None and _is_part(view, value, node):
            waiting += reversed(inner.inputs)
        else:
            found.append(value)
    return found


def _sums(node: Node, view: View) -> Value | None:
    terms = _terms(node, view)
    summed = [value for value in terms if _summed(view, value, node) is not None]
    if len(summed) < _FEWEST:
        return None
    operands = [inner.inputs[0] for value in summed if (inner := _summed(view, value, node)) is not None]
    total = view.emit("sum", _beside(view, operands), axes=(0,), keepdims=False)
    for value in terms:
        if value not in summed:
            total = view.emit("add", value, total)
    return total


def _summed(view: View, value: Value, node: Node) -> Node | None:
    """The sum of rows that makes a value of the node's type which nothing else reads."""
    inner = view.producer(value, "sum")
    if inner is None or view.uses(value) != 1 or value.type != node.output.type or inner.inputs[0].type.rank != 2:
        return None
    return inner if inner.attributes["axes"] == (0,) and not inner.attributes["keepdims"] else None


def _beside(view: View, values: Sequence[Value]) -> Value:
    return view.emit("concat", *values, axis=0)
