"""Where every tensor of a step is, by what the operators need: found from the inputs on, node by node.

A sum over rows is a ``part`` in each process until somebody needs it. Large tensors of the optimizer's update are
``flat``: an elementwise update needs no more of a gradient, a moment or a weight than the same stretch of each.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import gcd, lcm

from coterie.compute.onnx.spread.placement import FLAT, PART, WHOLE, Placement, Unspreadable, rows
from coterie.compute.onnx.spread.reading import StepGraph, StepNode
from coterie.compute.onnx.spread.rules import ADDITIVE, ELEMENTWISE, Work, work_of

# Below it every process makes the whole of an update by itself, which costs less than to think about it.
LEAST_FLAT = 1 << 14


@dataclass
class Placed:
    """places: of every tensor. work: of every node, by its index. level: how many times processes have to meet before
    a tensor can be there. unit: of how many rows shares are made.
    """

    graph: StepGraph
    rows: int
    places: dict[str, Placement] = field(default_factory=dict[str, Placement])
    work: dict[int, Work] = field(default_factory=dict[int, Work])
    level: dict[str, int] = field(default_factory=dict[str, int])
    unit: int = 1

    def summed(self, name: str) -> int:
        """The level at which a tensor is there for everybody: later where it has to be added up first."""
        return self.level[name] + (self.places[name] == PART)


def placed(graph: StepGraph, batch: Collection[str], *, stretches: bool = True) -> Placed:
    """Where everything is, when the tensors of the batch are cut by rows.

    batch: inputs ``[rows, …]``. stretches: whether large sums are moved by stretches; without it each sum is whole, and
    sums are joined after they are added up. Raises Unspreadable.
    """
    counts = {graph.shapes[name][0] for name in batch}
    if len(counts) != 1:
        raise Unspreadable("The step takes no batch of rows.")
    count, denied = counts.pop(), set[str]()
    while True:
        attempt = _Attempt(graph, count, batch, denied, stretches=stretches)
        found = attempt.run()
        if not attempt.refused:
            return found
        denied |= attempt.refused


class _Attempt:
    """One walk over the nodes. denied: tensors that must not be flat. refused: those that turned out not to be able."""

    def __init__(
        self, graph: StepGraph, count: int, batch: Collection[str], denied: Collection[str], *, stretches: bool
    ) -> None:
        self._graph, self._denied, self._stretches = graph, denied, stretches
        self.refused: set[str] = set()
        self._found = Placed(graph, count)
        for name in (*graph.inputs, *graph.constants, ""):
            self._found.places[name] = rows(0) if name in batch else WHOLE
            self._found.level[name] = 0

    def run(self) -> Placed:
        """Where everything is; to be believed where nothing was refused."""
        found = self._found
        for node in self._graph.nodes:
            work = self._work(node)
            found.work[node.index] = work
            later = (
                found.summed(name) if need != PART else found.level[name]
                for name, need in zip(node.inputs, work.needs, strict=True)
            )
            level = max(later, default=0)
            for name in node.outputs:
                found.places[name], found.level[name] = work.gives, level
            self._note_shares(node, work)
        made = {name for node in self._graph.nodes for name in node.outputs}
        for name in self._graph.outputs:
            if name not in made or found.places[name].kind == "rows":
                raise Unspreadable(f"The step's result {name!r} is one of each row, or no result of a node.")
        if all(place != PART for place in found.places.values()):
            raise Unspreadable("No node of the step adds rows up.")
        return found

    def _work(self, node: StepNode) -> Work:
        places = [self._found.places[name] for name in node.inputs]
        if PART in places:
            if self._stays_a_part(node, places):
                return Work(tuple(PART if place == PART else WHOLE for place in places), PART)
            if (more := self._more_of_a_part(node, places)) is not None:
                return more
            places = [self._added_up(name, place) for name, place in zip(node.inputs, places, strict=True)]
        if FLAT in places:
            flat = self._flat_work(node, places)
            if flat is not None:
                return flat
            self.refused |= {name for name, place in zip(node.inputs, places, strict=True) if place == FLAT}
            places = [WHOLE if place == FLAT else place for place in places]
        if any(place.kind == "rows" for place in places):
            return work_of(node, places)
        if self._may_be_flat(node):
            flat = self._flat_work(node, places)
            if flat is not None:
                return flat
        return Work(tuple(places), WHOLE)

    def _more_of_a_part(self, node: StepNode, places: Sequence[Placement]) -> Work | None:
        """A product over rows that is added to a part of a sum, as recurrent layers add up gradients; else None."""
        if node.operator != "Gemm" or [place == PART for place in places] != [False, False, True]:
            return None
        if FLAT in places or all(place == WHOLE for place in places[:2]):
            return None
        work = work_of(node, (*places[:2], WHOLE))
        return Work((*work.needs[:2], PART), PART) if work.gives == PART else None

    def _added_up(self, name: str, place: Placement) -> Placement:
        if place != PART:
            return place
        small = self._graph.size(name) < LEAST_FLAT
        return WHOLE if not self._stretches or small or name in self._denied else FLAT

    def _stays_a_part(self, node: StepNode, places: Sequence[Placement]) -> bool:
        """Whether the node may as well be applied to each part of a sum."""
        graph, shared = self._graph, [place == PART for place in places]
        match node.operator:
            case "Add":
                return all(shared) and node.shape(0) == node.shape(1)
            case "Cast":
                return [graph.dtype(name).name for name in (node.inputs[0], node.outputs[0])] == ["float16", "float32"]
            case "Concat":
                return self._stretches and all(shared)
            case operator:
                return operator in ADDITIVE and shared[0]

    def _may_be_flat(self, node: StepNode) -> bool:
        large = self._graph.size(node.outputs[0]) >= LEAST_FLAT
        return self._stretches and large and node.operator in ELEMENTWISE

    def _flat_work(self, node: StepNode, places: Sequence[Placement]) -> Work | None:
        """What a node does to a stretch of its operands; None where a stretch is not enough, or not allowed."""
        graph, output = self._graph, node.outputs[0]
        if any(place.kind == "rows" for place in places):
            return None
        if node.operator in ("Reshape", "Unsqueeze") and output not in self._denied:
            return Work((FLAT, *(WHOLE for _ in places[1:])), FLAT)
        if node.operator == "ReduceSum" and graph.size(output) == 1:
            return Work((FLAT, *(WHOLE for _ in places[1:])), PART)
        if node.operator not in ELEMENTWISE or output in self._denied:
            return None
        sizes = [graph.size(name) if name else 1 for name in node.inputs]
        if any(size not in (1, graph.size(output)) for size in sizes):
            return None
        return Work(tuple(WHOLE if size == 1 else FLAT for size in sizes), FLAT)

    def _note_shares(self, node: StepNode, work: Work) -> None:
        """Shares must be such that every axis on which the batch lies can be cut where they end."""
        found, lengths = self._found, list[int]()
        for name, place in (*zip(node.inputs, work.needs, strict=True), (node.outputs[0], work.gives)):
            if place.kind == "rows":
                lengths.append(self._graph.shapes[name][place.axis] // place.blocks)
        if work.grouped:
            lengths.append(int(node.attribute("group", 1)))
        for length in lengths:
            found.unit = lcm(found.unit, found.rows // gcd(found.rows, length))
