"""How each operator works on a part of the rows: a table, one row an operator.

A rule gets a node and where its inputs are, ``whole`` or cut along an axis; it says where they have to be, and where
the result is then. A tensor that is whole may be cut, since each process can take its part; nothing else is moved.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from coterie.compute.onnx.spread.placement import PART, WHOLE, Placement, Unspreadable, rows
from coterie.compute.onnx.spread.reading import Shape, StepNode


@dataclass(frozen=True)
class Work:
    """How a node works. needs: where its inputs have to be. gives: where its results are.

    added: an input that is added to a sum, so that only the first process has it; the others add nothing.
    grouped: whether the node's groups are cut with its channels.
    """

    needs: tuple[Placement, ...]
    gives: Placement
    added: int | None = None
    grouped: bool = False


Rule: TypeAlias = Callable[[StepNode, Sequence[Placement]], Work]


def work_of(node: StepNode, places: Sequence[Placement]) -> Work:
    """What a node does where some of its inputs are cut by rows. Raises Unspreadable where it needs all rows."""
    rule = RULES.get(node.operator)
    if rule is None or node.nested:
        raise Unspreadable(f"{node} cannot be shared out by rows.")
    return rule(node, places)


def _mixes(node: StepNode) -> Unspreadable:
    return Unspreadable(f"{node} compares or mixes rows of the batch.")


def _axes(node: StepNode, places: Sequence[Placement]) -> dict[int, int]:
    """The axes along which inputs are cut, by the inputs' places."""
    return {place: where.axis for place, where in enumerate(places) if where.kind == "rows"}


def _whole(node: StepNode) -> list[Placement]:
    return [WHOLE] * len(node.inputs)


def _broadcast(node: StepNode, places: Sequence[Placement]) -> Work:
    """Of each element from the elements at its place, sizes of 1 repeated."""
    rank = len(node.out_shape)
    found = {axis + rank - len(node.shape(place)) for place, axis in _axes(node, places).items()}
    if len(found) != 1:
        raise _mixes(node)
    axis = found.pop()
    needs = _whole(node)
    for place in range(len(needs)):
        own = axis - rank + len(node.shape(place)) if node.has(place) else -1
        if own >= 0 and node.shape(place)[own] > 1:
            needs[place] = rows(own)
    return Work(tuple(needs), rows(axis))


def _first_alone(moved: Callable[[StepNode, int], int | None]) -> Rule:
    """Of operators that read one tensor, and say by constants what to do with it. moved: where an axis goes; None where
    what is done with it needs all of it.
    """

    def rule(node: StepNode, places: Sequence[Placement]) -> Work:
        axis = None if places[0].kind != "rows" else moved(node, places[0].axis)
        if axis is None or len(_axes(node, places)) > 1:
            raise _mixes(node)
        return Work((places[0], *_whole(node)[1:]), rows(axis))

    return rule


def _reshaped(node: StepNode, axis: int) -> int | None:
    return regrouped(node.shape(0), axis, node.out_shape)


def regrouped(before: Shape, axis: int, after: Shape) -> int | None:
    """The axis of another shape of the same numbers that is cut where this one is; None where there is none."""
    outer = prod(before[:axis])
    for place, size in enumerate(after):
        if size > 1 and prod(after[:place]) == outer:
            return place
    return None


def _transposed(node: StepNode, axis: int) -> int:
    rank = len(node.out_shape)
    return list(node.attribute("perm", range(rank)[::-1])).index(axis)


def _unsqueezed(node: StepNode, axis: int) -> int:
    rank = len(node.out_shape)
    new = {number % rank for number in node.numbers(1)}
    return [place for place in range(rank) if place not in new][axis]


def _expanded(node: StepNode, axis: int) -> int:
    return axis + len(node.out_shape) - len(node.shape(0))


def _along(default: int) -> Callable[[StepNode, int], int | None]:
    """Where each line along the node's axis is computed by itself."""
    return lambda node, axis: axis if axis != node.attribute("axis", default) % len(node.shape(0)) else None


def _cumulated(node: StepNode, axis: int) -> int | None:
    return axis if axis != node.numbers(1)[0] % len(node.shape(0)) else None


def _windowed(node: StepNode, axis: int) -> int | None:
    return axis if axis < 2 else None


def _same_size(node: StepNode, axis: int) -> int | None:
    """Where nothing happens along the axis."""
    return axis if node.shape(0)[axis] == node.out_shape[axis] else None


def _sliced(node: StepNode, axis: int) -> int | None:
    rank, steps = len(node.out_shape), node.numbers(4)
    named = [number % rank for number in node.numbers(3)] or list(range(len(node.numbers(1))))
    if axis in named and steps and steps[named.index(axis)] != 1:
        return None
    return _same_size(node, axis)


def _reduced(node: StepNode, places: Sequence[Placement]) -> Work:
    axis, rank = places[0].axis, len(node.shape(0))
    away = {number % rank for number in node.attribute("axes", None) or node.numbers(1)} or set(range(rank))
    needs = (places[0], *_whole(node)[1:])
    if axis in away:
        if node.operator != "ReduceSum":
            raise _mixes(node)
        return Work(needs, PART)
    kept = axis if node.attribute("keepdims", 1) else axis - sum(each < axis for each in away)
    return Work(needs, rows(kept))


def _joined(node: StepNode, places: Sequence[Placement]) -> Work:
    found = set(_axes(node, places).values())
    axis = found.pop()
    if found or axis == node.attribute("axis", 0) % len(node.out_shape):
        raise _mixes(node)
    return Work((rows(axis),) * len(node.inputs), rows(axis))


@dataclass(frozen=True)
class _Product:
    """A product of two tensors by the meaning of their axes. left, right: the axes that stand for themselves in the
    result, with where they stand there. summed: pairs of axes that are summed over.
    """

    left: Mapping[int, int]
    right: Mapping[int, int]
    summed: tuple[int, int]

    def work(self, node: StepNode, places: Sequence[Placement], *, added: int | None) -> Work:
        axes = {place: axis for place, axis in _axes(node, places).items() if place < 2}
        needs = _whole(node)
        if axes and all(axis == self.summed[place] for place, axis in axes.items()):
            needs[:2] = rows(self.summed[0]), rows(self.summed[1])
            return Work(tuple(needs), PART, added=added)
        kept = (self.left, self.right)
        results = {kept[place].get(axis) for place, axis in axes.items()}
        result = results.pop() if results else None
        if result is None or results:
            raise _mixes(node)
        for place in (0, 1):
            own = next((axis for axis, into in kept[place].items() if into == result), None)
            if own is not None and node.shape(place)[own] > 1:
                needs[place] = rows(own)
        return Work(tuple(needs), rows(result))


def _matmul(node: StepNode, places: Sequence[Placement]) -> Work:
    first, second, out = len(node.shape(0)), len(node.shape(1)), len(node.out_shape)
    if min(first, second) < 2:
        raise Unspreadable(f"{node} multiplies by a vector, which is not shared out.")
    left = {axis: axis + out - first for axis in range(first - 1)}
    right = {axis: axis + out - second for axis in range(second) if axis != second - 2}
    return _Product(left, right, (first - 1, second - 2)).work(node, places, added=None)


def _gemm(node: StepNode, places: Sequence[Placement]) -> Work:
    row, column = node.attribute("transA", 0), 1 - node.attribute("transB", 0)
    added = 2 if node.has(2) else None
    done = _Product({row: 0}, {column: 1}, (1 - row, 1 - column)).work(node, places, added=added)
    return _with_added(node, places, done)


def _with_added(node: StepNode, places: Sequence[Placement], done: Work) -> Work:
    """The third operand of a Gemm goes with the result."""
    if not node.has(2) or done.gives.kind != "rows":
        if len(places) > 2 and places[2].kind == "rows":
            raise _mixes(node)
        return done
    own = done.gives.axis - 2 + len(node.shape(2))
    cut = own >= 0 and node.shape(2)[own] > 1
    if places[2].kind == "rows" and not (cut and places[2].axis == own):
        raise _mixes(node)
    return Work((*done.needs[:2], rows(own) if cut else WHOLE), done.gives)


def _convolved(filters: int, channels: int) -> Rule:
    """filters, channels: which axis of the kernel counts the results, and which the channels that are summed over."""

    def rule(node: StepNode, places: Sequence[Placement]) -> Work:
        axes, groups = _axes(node, places), int(node.attribute("group", 1))
        bias = (WHOLE,) if node.has(2) else ()
        added = 2 if bias else None
        if 2 in axes:
            raise _mixes(node)
        if axes == {0: 0}:
            return Work((rows(0), WHOLE, *bias), rows(0))
        if groups > 1 and axes.get(0, 1) == 1 and axes.get(1, 0) == 0 and not bias:
            return Work((rows(1), rows(0)), rows(1), grouped=True)
        if groups == 1 and axes.get(0, 1) == 1 and axes.get(1, channels) == channels:
            return Work((rows(1), rows(channels), *bias), PART, added=added)
        if groups == 1 and axes == {1: filters}:
            return Work((WHOLE, rows(filters), *(rows(0) for _ in bias)), rows(1))
        raise _mixes(node)

    return rule


def _gathered(node: StepNode, places: Sequence[Placement]) -> Work:
    axes, axis = _axes(node, places), node.attribute("axis", 0) % len(node.shape(0))
    if axes.keys() == {1}:
        return Work((WHOLE, places[1]), rows(axis + axes[1]))
    if axes.keys() == {0} and axes[0] != axis:
        moved = axes[0] if axes[0] < axis else axes[0] + len(node.shape(1)) - 1
        return Work((places[0], WHOLE), rows(moved))
    raise _mixes(node)


def _gathered_elements(node: StepNode, places: Sequence[Placement]) -> Work:
    found, along = set(_axes(node, places).values()), node.attribute("axis", 0) % len(node.shape(0))
    axis = found.pop()
    if found or (axis == along and places[0].kind == "rows"):
        raise _mixes(node)
    if axis == along:
        return Work((WHOLE, rows(axis)), rows(axis))
    if node.shape(0)[axis] != node.shape(1)[axis]:
        raise _mixes(node)
    return Work((rows(axis), rows(axis)), rows(axis))


def _scattered(node: StepNode, places: Sequence[Placement]) -> Work:
    found, along = set(_axes(node, places).values()), node.attribute("axis", 0) % len(node.shape(0))
    axis = found.pop()
    if found:
        raise _mixes(node)
    if axis == along:
        if places[0].kind == "rows":
            raise _mixes(node)
        return Work((WHOLE, rows(axis), rows(axis)), PART, added=0)
    if node.shape(0)[axis] != node.shape(1)[axis]:
        raise _mixes(node)
    return Work((rows(axis),) * 3, rows(axis))


ELEMENTWISE = frozenset(
    "Add Atan Cast Clip Cos Div Equal Erf Exp Floor Greater Log Max Min Mul Pow Relu Sigmoid Sin Sqrt Sub Tanh Where"
    .split()
)  # fmt: skip

# Of a sum of tensors they make the sum of what they make of each.
ADDITIVE = frozenset({"Reshape", "Transpose", "Unsqueeze", "Concat", "Slice"})

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _broadcast),
    "Conv": _convolved(0, 1),
    "ConvTranspose": _convolved(1, 0),
    "Gemm": _gemm,
    "MatMul": _matmul,
    "AveragePool": _first_alone(_windowed),
    "MaxPool": _first_alone(_windowed),
    "Resize": _first_alone(_same_size),
    "ReduceMax": _reduced,
    "ReduceSum": _reduced,
    "Softmax": _first_alone(_along(-1)),
    "CumSum": _first_alone(_cumulated),
    "TopK": _first_alone(_along(-1)),
    "GatherElements": _gathered_elements,
    "ScatterElements": _scattered,
    "Concat": _joined,
    "Expand": _first_alone(_expanded),
    "Gather": _gathered,
    "Pad": _first_alone(_same_size),
    "Reshape": _first_alone(_reshaped),
    "Slice": _first_alone(_sliced),
    "Transpose": _first_alone(_transposed),
    "Unsqueeze": _first_alone(_unsqueezed),
}
