"""Local identities. Each holds bit for bit (so x + 0.0 stays: it turns -0.0 into 0.0), except that products of numbers
may be grouped anew.
"""

from collections.abc import Callable

import numpy as np

from coterie.compute.ir import Graph, Node, Value
from coterie.compute.passes.rewrite import View, rewrite
from coterie.compute.table import ELEMENTWISE


def simplify(graph: Graph) -> Graph:
    """One sweep of all identities."""
    return rewrite(graph, _rule)


def simplify_differentiable(graph: Graph) -> Graph:
    """As :func:`simplify`, for a graph whose gradient may yet be taken: stop_gradient stays."""
    return rewrite(graph, lambda node, view: None if node.primitive == "stop_gradient" else _rule(node, view))


def _rule(node: Node, view: View) -> Value | None:
    rule = _RULES.get(node.primitive)
    found = rule(node, view) if rule else None
    if found is None and node.primitive in ELEMENTWISE:
        return _without_broadcasts(node, view)
    return found


def _is_number(view: View, value: Value, number: float) -> bool:
    constant = view.constant(value)
    return (
        constant is not None
        and constant.size == 1
        and float(constant.reshape(())) == number
        and not np.signbit(constant).any()
    )


def _like(node: Node, value: Value) -> Value | None:
    return value if value.type == node.output.type else None


def _same(node: Node, view: View) -> Value | None:
    return node.inputs[0]


def _identity(node: Node, view: View) -> Value | None:
    return _like(node, node.inputs[0])


def _subtract(node: Node, view: View) -> Value | None:
    a, b = node.inputs
    if _is_number(view, b, 0.0):
        return _like(node, a)
    if inner := view.producer(b, "negative"):
        return view.emit("add", a, inner.inputs[0])
    return None


def _add(node: Node, view: View) -> Value | None:
    a, b = node.inputs
    if inner := view.producer(b, "negative"):
        return view.emit("subtract", a, inner.inputs[0])
    if inner := view.producer(a, "negative"):
        return view.emit("subtract", b, inner.inputs[0])
    return None


def _multiply(node: Node, view: View) -> Value | None:
    for a, b in (node.inputs, node.inputs[::-1]):
        if _is_number(view, b, 1.0) and (kept := _like(node, a)):
            return kept
        if inner := view.producer(b, "multiply"):
            # (x * small) * number = x * (small * number): one pass less over x.
            for x, small in (inner.inputs, inner.inputs[::-1]):
                if a.type.size == 1 and small.type.size < x.type.size and view.uses(b) == 1:
                    if _leaves_range(view, small, a):
                        continue
                    return view.emit("multiply", x, view.emit("multiply", small, a))
    return None


def _leaves_range(view: View, small: Value, number: Value) -> bool:
    """Whether the product of two float constants is infinite or loses digits near zero though they are not."""
    a, b = view.constant(small), view.constant(number)
    if a is None or b is None or a.dtype.kind != "f":
        return False
    with np.errstate(all="ignore"):
        product = a * b
    least = np.finfo(a.dtype).smallest_normal
    fits = np.isfinite(product) & ((np.abs(product) >= least) | (a == 0) | (b == 0))
    return not bool(fits.all())


def _divide(node: Node, view: View) -> Value | None:
    return _like(node, node.inputs[0]) if _is_number(view, node.inputs[1], 1.0) else None


def _negative(node: Node, view: View) -> Value | None:
    value = node.inputs[0]
    if inner := view.producer(value, "negative"):
        return inner.inputs[0]
    if (inner := view.producer(value, "multiply", "divide")) and view.uses(value) == 1:
        # Move the sign to a number, where it is cheap.
        a, b = inner.inputs
        if a.type.size == 1 < value.type.size:
            return view.emit(inner.primitive, view.emit("negative", a), b)
        if b.type.size == 1 < value.type.size:
            return view.emit(inner.primitive, a, view.emit("negative", b))
    return None


def _transpose(node: Node, view: View) -> Value | None:
    permutation: tuple[int, ...] = node.attributes["permutation"]
    if permutation == tuple(range(len(permutation))):
        return node.inputs[0]
    if inner := view.producer(node.inputs[0], "transpose"):
        first: tuple[int, ...] = inner.attributes["permutation"]
        return view.emit("transpose", inner.inputs[0], permutation=tuple(first[axis] for axis in permutation))
    if (moved := _around(node, view, permutation)) is not None:
        return moved
    shape = node.inputs[0].type.shape
    if [axis for axis in permutation if shape[axis] != 1] == [axis for axis in range(len(shape)) if shape[axis] != 1]:
        return view.emit(
            "reshape", node.inputs[0], shape=node.output.type.shape
        )  # only axes of size 1 move: the elements stay in order
    return None


# Elementwise functions between two transpositions that are looked through; more would go too deep for Python's stack.
_FURTHEST = 64


def _around(node: Node, view: View, permutation: tuple[int, ...]) -> Value | None:
    """A transposition of elementwise functions of transposed tensors, back to where their axes were: none at all."""
    value = node.inputs[0]
    if view.producer(value, *ELEMENTWISE) is None or not _turns_back(value, view, permutation, _FURTHEST):
        return None
    return _turned_back(value, view)


def _turns_back(value: Value, view: View, permutation: tuple[int, ...], further: int) -> bool:
    """Whether a permutation of axes undoes that of every tensor that a value is an elementwise function of, and nothing
    else reads what is between.
    """
    if there := view.producer(value, "transpose"):
        first: tuple[int, ...] = there.attributes["permutation"]
        return all(first[axis] == index for index, axis in enumerate(permutation))
    inner = view.producer(value, *ELEMENTWISE)
    if inner is None or view.uses(value) != 1 or not further:
        return False
    shapes = [operand.type.shape == value.type.shape for operand in inner.inputs]
    return any(shapes) and all(
        _turns_back(operand, view, permutation, further - 1) if same else operand.type.size == 1
        for operand, same in zip(inner.inputs, shapes, strict=True)
    )


def _turned_back(value: Value, view: View) -> Value:
    """The same function of the tensors before their transposition."""
    if there := view.producer(value, "transpose"):
        return there.inputs[0]
    inner = view.producer(value, *ELEMENTWISE)
    if inner is None or value.type.size == 1:
        return value
    same = [operand.type.shape == value.type.shape for operand in inner.inputs]
    operands = [_turned_back(x, view) if whole else x for x, whole in zip(inner.inputs, same, strict=True)]
    return view.emit(inner.primitive, *operands, **inner.attributes)


def _reshape(node: Node, view: View) -> Value | None:
    if inner := view.producer(node.inputs[0], "reshape"):
        return view.emit("reshape", inner.inputs[0], shape=node.attributes["shape"])
    inner = view.producer(node.inputs[0], "broadcast_to")
    if inner is not None and inner.inputs[0].type.rank == 0:
        return view.emit("broadcast_to", inner.inputs[0], shape=node.attributes["shape"])
    return _identity(node, view)


def _sum(node: Node, view: View) -> Value | None:
    x = node.inputs[0]
    axes: tuple[int, ...] = node.attributes["axes"]
    if all(x.type.shape[axis] == 1 for axis in axes):
        return x if x.type == node.output.type else view.emit("reshape", x, shape=node.output.type.shape)
    return None


def _astype(node: Node, view: View) -> Value | None:
    return _like(node, node.inputs[0])


def _broadcast(node: Node, view: View) -> Value | None:
    if inner := view.producer(node.inputs[0], "broadcast_to"):
        return view.emit("broadcast_to", inner.inputs[0], shape=node.attributes["shape"])
    return _identity(node, view)


def pooled_first(node: Node, view: View) -> Value | None:
    """The greatest of relu(x) is relu of the greatest x: fewer elements to pass over, and in the gradient a smaller
    mask. No gradient changes: where a window's greatest is not above 0 it is 0 either way, elsewhere the greatest are
    the same.
    """
    inner = view.producer(node.inputs[0], "relu")
    if inner is None or view.uses(node.inputs[0]) != 1:
        return None
    return view.emit("relu", view.emit("max_pool", inner.inputs[0], **node.attributes))


def _concat(node: Node, view: View) -> Value | None:
    return node.inputs[0] if len(node.inputs) == 1 else None


def _without_broadcasts(node: Node, view: View) -> Value | None:
    """Elementwise operators broadcast by themselves: feed them the small operands, and enlarge the result where it
    became smaller.
    """
    operands = [inner.inputs[0] if (inner := view.producer(value, "broadcast_to")) else value for value in node.inputs]
    if operands == list(node.inputs):
        return None
    small = view.emit(node.primitive, *operands, **node.attributes)
    shape = node.output.type.shape
    return small if small.type.shape == shape else view.emit("broadcast_to", small, shape=shape)


_RULES: dict[str, Callable[[Node, View], Value | None]] = {
    "stop_gradient": _same,  # gradients have been taken when passes run
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "divide": _divide,
    "negative": _negative,
    "transpose": _transpose,
    "reshape": _reshape,
    "sum": _sum,
    "max": _sum,
    "astype": _astype,
    "broadcast_to": _broadcast,
    "slice": _identity,
    "pad": _identity,
    "concat": _concat,
    "max_pool": pooled_first,
}
