"""Products with one-hot matrices: what the gradient of a look-up is."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coterie.compute.ir import Graph, NDArray, Node, Value
from coterie.compute.passes.rewrite import View


@dataclass(frozen=True, slots=True)
class RowsAdded:
    """one_hot(ids).T @ rows: the rows [n, size] added at their ids, [..., 1] of n elements, in ``count`` rows of zeros.

    own: the indices that ``ids`` are made of, which may count from the end; None where they are made otherwise.
    """

    ids: Value
    rows: Value
    count: int
    own: Value | None

    def flat(self, view: View) -> Value:
        """The ids as [n]. They may be out of range: such a row is added nowhere."""
        return view.emit("reshape", self.ids, shape=(self.ids.type.size,))

    def placed(self, view: View) -> tuple[Value, Value]:
        """Ids [n] that are in range, and rows of zeros for those that were not."""
        ids, rows = self.flat(view), self.rows
        dtype = ids.type.dtype
        lowered = view.emit("minimum", ids, view.emit_constant(np.full((), self.count - 1, dtype)))
        inside = view.emit("maximum", lowered, view.emit_constant(np.zeros((), dtype)))
        same = view.emit("reshape", view.emit("equal", inside, ids), shape=(ids.type.size, 1))
        return inside, view.emit("where", same, rows, view.emit_constant(np.zeros((), rows.type.dtype)))


def rows_added(node: Node, view: View) -> RowsAdded | None:
    """What a gemm adds where, if its first operand is a transposed one-hot matrix and its second one is not transposed;
    None for any other node. Its addend is not looked at.
    """
    if node.primitive != "gemm" or not node.attributes["transpose_a"] or node.attributes["transpose_b"]:
        return None
    one_hot, rows = node.inputs[:2]
    if one_hot.type.rank != 2:
        return None
    count = one_hot.type.shape[1]
    apart = view.producer(one_hot, "reshape")
    if apart is not None and apart.inputs[0].type.shape[-1:] == (count,):
        one_hot = apart.inputs[0]
    cast = view.producer(one_hot, "astype")
    equal = view.producer(cast.inputs[0], "equal") if cast else None
    for ids, steps in (equal.inputs, equal.inputs[::-1]) if equal else ():
        counted = view.constant(steps)
        if counted is None or ids.type.shape != (*one_hot.type.shape[:-1], 1) or ids.type.dtype not in _INDICES:
            continue
        if np.array_equal(counted.reshape(-1), np.arange(count)):
            return RowsAdded(ids, rows, count, _own(ids, count, view))
    return None


_INDICES = ("int32", "int64")


def _own(ids: Value, count: int, view: View) -> Value | None:
    """The indices of which ids + count * (0 > ids) is made, as a look-up makes them count from the start."""
    total = view.producer(_shapeless(ids, view), "add")
    for own, shift in (total.inputs, total.inputs[::-1]) if total else ():
        product = view.producer(shift, "multiply")
        for number, mask in (product.inputs, product.inputs[::-1]) if product else ():
            factor, cast = view.constant(number), view.producer(mask, "astype")
            below = view.producer(cast.inputs[0], "greater") if cast else None
            if factor is None or below is None or factor.size != 1 or int(factor.reshape(())) != count:
                continue
            if _is_zero(view.constant(below.inputs[0])) and below.inputs[1] is own:
                return _shapeless(own, view)
    return None


def _is_zero(constant: NDArray | None) -> bool:
    return constant is not None and not constant.any()


def _shapeless(value: Value, view: View) -> Value:
    """What a value is before it gets its shape."""
    while (node := view.producer(value, "reshape")) is not None:
        value = node.inputs[0]
    return value


@dataclass(frozen=True)
class LookUps:
    """The look-ups of a graph: which indices a runtime refuses anyway where they are out of range."""

    graph: Graph

    @cached_property
    def _read(self) -> frozenset[tuple[Value, int]]:
        view = View(self.graph)
        found: set[tuple[Value, int]] = set()
        for node in self.graph.nodes:
            if node.primitive == "gather":
                axis: int = node.attributes["axis"]
                found.add((_shapeless(node.inputs[1], view), node.inputs[0].type.shape[axis]))
        return frozenset(found)

    def refuse(self, added: RowsAdded) -> bool:
        """Whether the indices of these rows are read from an axis of as many rows, so that they are in range there."""
        return added.own is not None and (added.own, added.count) in self._read
