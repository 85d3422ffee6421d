"""The step as stages, between which processes meet: what each of them makes, and where its tensors lie."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal, TypeAlias

from coterie.compute.onnx.spread.placement import PART, WHOLE, Placement, Unspreadable
from coterie.compute.onnx.spread.placing import Placed, placed
from coterie.compute.onnx.spread.reading import Shape, StepGraph

# Stretches begin where vector units like to read: at multiples of 64 bytes of float32.
_STRETCH = 16

Home: TypeAlias = Literal["input", "output", "own"]


@dataclass(frozen=True)
class Bound:
    """A name of a stage's graph, and the memory that it reads or writes.

    tensor: by its name in the step. home: what of it lies there: the step's input, its result, or what one process
    (``rank``) has made of it. start: the first of its numbers. shape, dtype: as the stage's graph sees it.
    """

    name: str
    tensor: str
    home: Home
    rank: int
    start: int
    shape: Shape
    dtype: str


@dataclass(frozen=True)
class StageGraph:
    """What one process runs between two meetings. data: b"" where it has nothing to make."""

    data: bytes
    inputs: tuple[Bound, ...]
    outputs: tuple[Bound, ...]


@dataclass(frozen=True)
class Shares:
    """Who has what. processes: how many there are. bounds: the first row of each, and the number of rows."""

    processes: int
    bounds: tuple[int, ...]

    @staticmethod
    def of(rows: int, unit: int, processes: int) -> "Shares":
        """Shares of whole units, as equal as they can be. Raises Unspreadable for fewer units than processes."""
        units = rows // unit
        if units < processes:
            together = f", of which {unit} go together in this plan" if unit > 1 else ""
            raise Unspreadable(
                f"{processes} processes cannot share a batch of {rows} rows{together}.",
                hint=f"Use at most {units}." if units > 1 else "Use one process.",
            )
        return Shares(processes, tuple(units * rank // processes * unit for rank in range(processes + 1)))

    def cut(self, length: int, rank: int) -> tuple[int, int]:
        """Where the share of a process begins and ends on an axis on which the batch lies."""
        rows = self.bounds[-1]
        return self.bounds[rank] * length // rows, self.bounds[rank + 1] * length // rows

    def stretch(self, size: int, rank: int) -> tuple[int, int]:
        """Where the share of a process begins and ends in a tensor of so many numbers."""
        blocks = -(-size // _STRETCH)
        ends = (min(size, blocks * each // self.processes * _STRETCH) for each in (rank, rank + 1))
        begin, end = ends
        return begin, end

    def shape(self, shape: Shape, place: Placement, rank: int) -> Shape:
        """The shape of what a process has."""
        if place.kind == "rows":
            begin, end = self.cut(shape[place.axis] // place.blocks, rank)
            return (*shape[: place.axis], place.blocks * (end - begin), *shape[place.axis + 1 :])
        if place.kind == "flat":
            begin, end = self.stretch(prod(shape), rank)
            return (end - begin,)
        return shape


@dataclass(frozen=True)
class Staged:
    """A step whose nodes have a stage each. stage: of a node, by its index. count: of the stages."""

    placed: Placed
    shares: Shares
    stage: Mapping[int, int]
    count: int

    @property
    def graph(self) -> StepGraph:
        """The step."""
        return self.placed.graph

    @cached_property
    def makers(self) -> Mapping[str, int]:
        """The node that makes a tensor."""
        return {name: node.index for node in self.graph.nodes for name in node.outputs}

    @cached_property
    def read_later(self) -> frozenset[str]:
        """Tensors that a later stage reads than the one that makes them, or that have to be added up."""
        found = {name for name in self.graph.outputs if self.placed.places[name] == PART}
        for node in self.graph.nodes:
            if node.index not in self.stage:
                continue
            for name, need in zip(node.inputs, self.placed.work[node.index].needs, strict=True):
                if name not in self.makers:
                    continue
                parts = self.placed.places[name] == PART and need != PART
                if parts or self.stage[self.makers[name]] < self.stage[node.index]:
                    found.add(name)
        return frozenset(found)

    def made(self, name: str, rank: int) -> Bound:
        """Where a process leaves what it makes of a tensor."""
        place, shape = self.placed.places[name], self.graph.shapes[name]
        held, dtype = self.shares.shape(shape, place, rank), self.graph.dtype(name).name
        if name in self.graph.outputs and place.kind == "flat":
            return Bound(name, name, "output", 0, self.shares.stretch(prod(shape), rank)[0], held, dtype)
        if name in self.graph.outputs and place == WHOLE and rank == 0:
            return Bound(name, name, "output", 0, 0, held, dtype)
        return Bound(name, name, "own", rank, 0, held, dtype)


def staged(data: bytes, *, batch: Collection[str], processes: int) -> Staged:
    """A serialised step for so many processes.

    batch: the inputs ``[rows, …]`` that are cut by rows; a weight of each row is best left whole, as its sum is then
    known at once. Raises Unspreadable for a step that mixes rows, or has too few of them.
    """
    found = placed(StepGraph(data), batch)
    shares = Shares.of(found.rows, found.unit, processes)
    last = max(found.summed(name) for name in found.graph.outputs)
    stage: dict[int, int] = {}
    makers = {name: node.index for node in found.graph.nodes for name in node.outputs}
    for level in range(last + 1):
        wanted = [name for name in _added_up(found) if found.level[name] == level]
        if level == last:
            wanted += found.graph.outputs
        while wanted:
            index = makers.get(wanted.pop())
            if index is not None and index not in stage:
                stage[index] = level
                wanted += found.graph.nodes[index].inputs
    return Staged(found, shares, stage, last + 1)


def _added_up(found: Placed) -> frozenset[str]:
    """Parts that somebody needs the sum of."""
    needed = {name for name in found.graph.outputs if found.places[name] == PART}
    for node in found.graph.nodes:
        for name, need in zip(node.inputs, found.work[node.index].needs, strict=True):
            if found.places[name] == PART and need != PART:
                needed.add(name)
    return frozenset(needed)
