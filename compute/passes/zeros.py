"""Take out work on zeros: products with them, padding that is cut off again, one-hot matrices that pick rows.

Gradients are full of it: the gradient of a slice is a padding, that of a padding a slice, that of a look-up a product
with a one-hot matrix. Results are those of the graph for finite operands, up to the sign of zero; so this pass is not
part of ``optimise``, which keeps infinities and NaN where they are.
"""

from collections.abc import Callable, Mapping

import numpy as np

from coterie.compute.ir import Graph, NDArray, Node, Type, Value
from coterie.compute.passes import fixpoint
from coterie.compute.passes.dead_code import remove_dead_code
from coterie.compute.passes.lookups import rows_added
from coterie.compute.passes.padding import added, multiplied, padded, sliced, summed
from coterie.compute.passes.rewrite import View, rewrite
from coterie.compute.passes.subgraphs import inside
from coterie.compute.table import having

Rule = Callable[[Node, View], Value | None]

_ANY = having(lambda facts: facts.zero == "any")
_ALL = having(lambda facts: facts.zero == "all")


def eliminate_zeros(graph: Graph) -> Graph:
    """The graph without work on zeros; the same graph when there is none."""
    return fixpoint(graph, _sweep, remove_dead_code, inside(eliminate_zeros))


def _sweep(graph: Graph) -> Graph:
    return rewrite(graph, _rule)


def _rule(node: Node, view: View) -> Value | None:
    zeros = [_is_zero(view, value) for value in node.inputs]
    if (found := _zero(node, view, zeros)) is not None:
        return found
    for rule in _RULES.get(node.primitive, ()):
        if (found := rule(node, view)) is not None:
            return found
    return None


def _numbers(view: View, value: Value) -> NDArray | None:
    """The elements of a value that is a constant, or one that was broadcast."""
    inner = view.producer(value, "broadcast_to")
    return view.constant(inner.inputs[0] if inner else value)


def _is_zero(view: View, value: Value) -> bool:
    """Whether all elements are known to be 0."""
    constant = _numbers(view, value)
    return constant is not None and constant.dtype.kind != "b" and not constant.any()


def _zero(node: Node, view: View, zeros: list[bool]) -> Value | None:
    """What a node with operands of zeros becomes."""
    type_ = node.output.type
    if type_.dtype == "bool" or not zeros:
        return None
    if node.primitive in _ANY and any(zeros[:2]):
        if len(node.inputs) == 2:
            return _zeros(view, type_)
        return _grown(view, _bias(node, view), type_)
    if node.primitive == "divide" and zeros[0]:
        divisor = _numbers(view, node.inputs[1])  # 0 / 0 is no zero
        return _zeros(view, type_) if divisor is not None and divisor.all() else None
    if node.primitive in _ALL and all(zeros) and node.attributes.get("value", 0.0) == 0.0:
        return _zeros(view, type_)
    if node.primitive == "where" and all(zeros[1:]):
        return _zeros(view, type_)
    if node.primitive == "add" and any(zeros):
        return _grown(view, node.inputs[0 if zeros[1] else 1], type_)
    if node.primitive == "subtract" and zeros[1]:
        return _grown(view, node.inputs[0], type_)
    if node.primitive == "subtract" and zeros[0] and type_.dtype != "uint8":
        return _grown(view, view.emit("negative", node.inputs[1]), type_)
    return None


def _bias(node: Node, view: View) -> Value:
    """The addend of a product, or the bias of a convolution along its axis of channels."""
    bias = node.inputs[2]
    return view.emit("reshape", bias, shape=(bias.type.size, 1, 1)) if node.primitive == "conv" else bias


def _zeros(view: View, type_: Type) -> Value:
    zero = view.emit_constant(np.zeros((), type_.dtype))
    return view.emit("broadcast_to", zero, shape=type_.shape) if type_.shape else zero


def _grown(view: View, value: Value, type_: Type) -> Value:
    return value if value.type == type_ else view.emit("broadcast_to", value, shape=type_.shape)


def _unbounded(sign: float) -> Rule:
    """maximum with -inf, or minimum with inf: the other operand."""

    def rule(node: Node, view: View) -> Value | None:
        for value, other in (node.inputs, node.inputs[::-1]):
            constant = _numbers(view, other)
            if constant is not None and constant.size and bool((constant == sign * np.inf).all()):
                return _grown(view, value, node.output.type)
        return None

    return rule


def _scattered(node: Node, view: View) -> Value | None:
    """one_hot(ids).T @ rows + table: the rows added at their indices, without the products with 0. Only where these are
    those of a look-up, which are in range: an index that is not has a row of zeros.
    """
    addend = node.inputs[2:]
    if any(value.type != node.output.type for value in addend):
        return None
    found = rows_added(node, view)
    if found is None or found.own is None:
        return None
    table = addend[0] if addend else _zeros(view, node.output.type)
    return view.emit("scatter_add", table, found.flat(view), found.rows)


_RULES: Mapping[str, tuple[Rule, ...]] = {
    "slice": (sliced,),
    "pad": (padded,),
    "sum": (summed,),
    "add": (added,),
    "multiply": (multiplied,),
    "maximum": (_unbounded(-1.0),),
    "minimum": (_unbounded(1.0),),
    "gemm": (_scattered,),
}
