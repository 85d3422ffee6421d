"""How each operator works on a part of the rows: a table, one row an operator.

A rule gets a node and where its inputs are, ``whole`` or cut along an axis; it says where they have to be, and where
the result is then. A tensor that is whole may be cut, since each process can take its part; nothing else is moved.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    return Unspreadable(
        f"{node} takes rows of the batch together: it compares or mixes them, or the compiler has laid them beside "
        "each other (convolutions of 8 rows or fewer, recompute=True)."
    )


def _cuts(places: Sequence[Placement]) -> dict[int, Placement]:
    """How inputs are cut, by the inputs' places."""
    return {place: where for place, where in enumerate(places) if where.kind == "rows"}


def _alike(node: StepNode, cuts: Iterable[Placement]) -> Placement:
    """The one way in which all are cut."""
    found = set(cuts)
    if len(found) != 1:
        raise _mixes(node)
    return found.pop()


def _whole(node: StepNode) -> list[Placement]:
    return [WHOLE] * len(node.inputs)


def _broadcast(node: StepNode, places: Sequence[Placement]) -> Work:
    """Of each element from the elements at its place, sizes of 1 repeated."""
    rank = len(node.out_shape)
    cuts = _cuts(places).items()
    cut = _alike(node, (where.at(where.axis + rank - len(node.shape(place))) for place, where in cuts))
    needs = _whole(node)
    for place in range(len(needs)):
        own = cut.axis - rank + len(node.shape(place)) if node.has(place) else -1
        if own >= 0 and node.shape(place)[own] > 1:
            needs[place] = cut.at(own)
    return Work(tuple(needs), cut)


def _first_alone(moved: Callable[[StepNode, Placement], Placement | None]) -> Rule:
    """Of operators that read one tensor, and say by constants what to do with it. moved: how the result is cut; None
    where what is done needs all rows.
    """

    def rule(node: StepNode, places: Sequence[Placement]) -> Work:
        gives = moved(node, places[0]) if _cuts(places).keys() == {0} else None
        if gives is None:
            raise _mixes(node)
        return Work((places[0], *_whole(node)[1:]), gives)

    return rule


def _reshaped(node: StepNode, cut: Placement) -> Placement | None:
    return regrouped(node.shape(0), cut, node.out_shape)


def regrouped(before: Shape, cut: Placement, after: Shape) -> Placement | None:
    """How another shape of the same numbers is cut where this one is; None where it cannot say so."""
    outside = prod(before[: cut.axis]) * cut.blocks
    found: Placement | None = None
    for axis, size in enumerate(after):
        blocks, rest = divmod(outside, prod(after[:axis]))
        if not rest and blocks and size % blocks == 0 and size > blocks:
            found = rows(axis, blocks)
    return found


def _transposed(node: StepNode, cut: Placement) -> Placement:
    rank = len(node.out_shape)
    return cut.at(list(node.attribute("perm", range(rank)[::-1])).index(cut.axis))


def _unsqueezed(node: StepNode, cut: Placement) -> Placement:
    rank = len(node.out_shape)
    new = {number % rank for number in node.numbers(1)}
    return cut.at([place for place in range(rank) if place not in new][cut.axis])


def _expanded(node: StepNode, cut: Placement) -> Placement:
    return cut.at(cut.axis + len(node.out_shape) - len(node.shape(0)))


def _along(default: int) -> Callable[[StepNode, Placement], Placement | None]:
    """Where each line along the node's axis is computed by itself."""
    return lambda node, cut: None if cut.axis == node.attribute("axis", default) % len(node.shape(0)) else cut


def _cumulated(node: StepNode, cut: Placement) -> Placement | None:
    return None if cut.axis == node.numbers(1)[0] % len(node.shape(0)) else cut


def _windowed(node: StepNode, cut: Placement) -> Placement | None:
    return cut if cut.axis < 2 else None


def _resized(node: StepNode, cut: Placement) -> Placement | None:
    """Where nothing happens along the axis."""
    return cut if node.shape(0)[cut.axis] == node.out_shape[cut.axis] and not node.has(3) else None


def _sliced(node: StepNode, cut: Placement) -> Placement | None:
    """Whole blocks of rows, or another axis."""
    rank, starts, steps = len(node.out_shape), node.numbers(1), node.numbers(4)
    named = [number % rank for number in node.numbers(3)] or list(range(len(starts)))
    if cut.axis not in named:
        return cut
    place, block = named.index(cut.axis), node.shape(0)[cut.axis] // cut.blocks
    length = node.out_shape[cut.axis]
    if length % block or starts[place] % block or (steps and steps[place] != 1):
        return None
    return rows(cut.axis, length // block)


def _padded(node: StepNode, cut: Placement) -> Placement | None:
    """By whole blocks, or along another axis."""
    rank, block = len(node.out_shape), node.shape(0)[cut.axis] // cut.blocks
    pads = node.numbers(1)
    if any(pads[end] < 0 or pads[end] % block for end in (cut.axis, cut.axis + rank)):
        return None
    return rows(cut.axis, node.out_shape[cut.axis] // block)


def _reduced(node: StepNode, places: Sequence[Placement]) -> Work:
    cut, rank = places[0], len(node.shape(0))
    away = {number % rank for number in node.attribute("axes", None) or node.numbers(1)} or set(range(rank))
    needs = (cut, *_whole(node)[1:])
    if cut.axis in away:
        if node.operator != "ReduceSum":
            raise _mixes(node)
        return Work(needs, PART)
    kept = cut.axis if node.attribute("keepdims", 1) else cut.axis - sum(each < cut.axis for each in away)
    return Work(needs, cut.at(kept))


def _joined(node: StepNode, places: Sequence[Placement]) -> Work:
    """Beside each other, or blocks of rows after one another."""
    cuts = _cuts(places)
    along = int(node.attribute("axis", 0)) % len(node.out_shape)
    if {cut.axis for cut in cuts.values()} == {along}:
        sizes = [node.shape(place)[along] for place in range(len(places))]
        blocks = {sizes[place] // cut.blocks for place, cut in cuts.items()}
        block = blocks.pop()
        if blocks or any(size % block for size in sizes):
            raise _mixes(node)
        return Work(tuple(rows(along, size // block) for size in sizes), rows(along, sum(sizes) // block))
    cut = _alike(node, cuts.values())
    if cut.axis == along:
        raise _mixes(node)
    return Work((cut,) * len(node.inputs), cut)


@dataclass(frozen=True)
class _Product:
    """A product of two tensors by the meaning of their axes. left, right: the axes that stand for themselves in the
    result, with where they stand there. summed: of each, the axis that is summed over.
    """

    left: Mapping[int, int]
    right: Mapping[int, int]
    summed: tuple[int, int]

    def work(self, node: StepNode, places: Sequence[Placement], *, added: int | None) -> Work:
        cuts = _cuts(places[:2])
        needs = _whole(node)
        if cuts and all(cut.axis == self.summed[place] for place, cut in cuts.items()):
            cut = _alike(node, (cut.at(0) for cut in cuts.values()))
            needs[:2] = cut.at(self.summed[0]), cut.at(self.summed[1])
            return Work(tuple(needs), PART, added=added)
        kept = (self.left, self.right)
        if any(cut.axis not in kept[place] for place, cut in cuts.items()):
            raise _mixes(node)
        gives = _alike(node, (cut.at(kept[place][cut.axis]) for place, cut in cuts.items()))
        for place in (0, 1):
            own = next((axis for axis, into in kept[place].items() if into == gives.axis), None)
            if own is not None and node.shape(place)[own] > 1:
                needs[place] = gives.at(own)
        return Work(tuple(needs), gives)


def _matmul(node: StepNode, places: Sequence[Placement]) -> Work:
    first, second, out = len(node.shape(0)), len(node.shape(1)), len(node.out_shape)
    if min(first, second) < 2:
        raise Unspreadable(f"{node} multiplies by a vector, which is not shared out.")
    left = {axis: axis + out - first for axis in range(first - 1)}
    right = {axis: axis + out - second for axis in range(second) if axis != second - 2}
    return _Product(left, right, (first - 1, second - 2)).work(node, places, added=None)


def _gemm(node: StepNode, places: Sequence[Placement]) -> Work:
    """The third operand, if there is one, goes with the result."""
    row, column = node.attribute("transA", 0), 1 - node.attribute("transB", 0)
    product = _Product({row: 0}, {column: 1}, (1 - row, 1 - column))
    if not node.has(2):
        return product.work(node, places, added=None)
    third = places[2]
    if third.kind == "rows" and not _cuts(places[:2]):
        leading = third.axis + 2 - len(node.shape(2)) == 0
        places = (third.at(row), WHOLE, third) if leading else (WHOLE, third.at(column), third)
    done = product.work(node, places, added=2)
    own = done.gives.axis - 2 + len(node.shape(2))
    needed = WHOLE
    if done.gives.kind == "rows" and own >= 0 and node.shape(2)[own] > 1:
        needed = done.gives.at(own)
    if third.kind == "rows" and third != needed:
        raise _mixes(node)
    return Work((*done.needs[:2], needed), done.gives, added=done.added)


def _convolved(filters: int, channels: int) -> Rule:
    """filters, channels: which axis of the kernel counts the results, and which the channels that are summed over."""

    def rule(node: StepNode, places: Sequence[Placement]) -> Work:
        cuts, groups = _cuts(places), int(node.attribute("group", 1))
        bias = (WHOLE,) if node.has(2) else ()
        axes = {place: cut.axis for place, cut in cuts.items()}
        if 2 in cuts:
            raise _mixes(node)
        cut = _alike(node, (cut.at(0) for cut in cuts.values()))
        if axes == {0: 0}:
            return Work((cut, WHOLE, *bias), cut)
        if groups > 1 and axes.get(0, 1) == 1 and axes.get(1, 0) == 0 and not bias and cut.blocks == 1:
            return Work((rows(1), rows(0)), rows(1), grouped=True)
        if groups == 1 and axes.get(0, 1) == 1 and axes.get(1, channels) == channels:
            return Work((cut.at(1), cut.at(channels), *bias), PART, added=2 if bias else None)
        if groups == 1 and axes == {1: filters}:
            return Work((WHOLE, cut.at(filters), *(cut for _ in bias)), cut.at(1))
        raise _mixes(node)

    return rule


def _gathered(node: StepNode, places: Sequence[Placement]) -> Work:
    cuts, axis = _cuts(places), node.attribute("axis", 0) % len(node.shape(0))
    if cuts.keys() == {1}:
        return Work((WHOLE, cuts[1]), cuts[1].at(axis + cuts[1].axis))
    if cuts.keys() == {0} and cuts[0].axis != axis:
        own = cuts[0].axis
        return Work((cuts[0], WHOLE), cuts[0].at(own if own < axis else own + len(node.shape(1)) - 1))
    raise _mixes(node)


def _gathered_elements(node: StepNode, places: Sequence[Placement]) -> Work:
    cuts, along = _cuts(places), node.attribute("axis", 0) % len(node.shape(0))
    cut = _alike(node, cuts.values())
    if cut.axis == along and 0 not in cuts:
        return Work((WHOLE, cut), cut)
    if cut.axis == along or node.shape(0)[cut.axis] != node.shape(1)[cut.axis]:
        raise _mixes(node)
    return Work((cut, cut), cut)


def _scattered(node: StepNode, places: Sequence[Placement]) -> Work:
    cuts, along = _cuts(places), node.attribute("axis", 0) % len(node.shape(0))
    cut = _alike(node, cuts.values())
    if cut.axis == along and 0 not in cuts:
        return Work((WHOLE, cut, cut), PART, added=0)
    if cut.axis == along or node.shape(0)[cut.axis] != node.shape(1)[cut.axis]:
        raise _mixes(node)
    return Work((cut, cut, cut), cut)


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
    "Resize": _first_alone(_resized),
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
    "Pad": _first_alone(_padded),
    "Reshape": _first_alone(_reshaped),
    "Slice": _first_alone(_sliced),
    "Transpose": _first_alone(_transposed),
    "Unsqueeze": _first_alone(_unsqueezed),
}
