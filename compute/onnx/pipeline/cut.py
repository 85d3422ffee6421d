"""A step for the processes of a pipeline: the graphs of its pieces and of its end."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from coterie.compute.onnx.pipeline.balance import balanced
from coterie.compute.onnx.pipeline.duties import Duty, duties, with_free
from coterie.compute.onnx.pipeline.micro import MicroStep
from coterie.compute.onnx.pipeline.origins import moved_by
from coterie.compute.onnx.pipeline.pieces import Pieces, finest, grouped, stage_of
from coterie.compute.onnx.pipeline.subgraph import subgraph, summed
from coterie.compute.onnx.spread.placement import Unspreadable
from coterie.compute.onnx.spread.reading import Shape, StepGraph
from coterie.compute.onnx.spread.stages import StageGraph


@dataclass(frozen=True)
class Piece:
    """What one process makes of one micro-batch in one go. data: b"" where that is nothing. inputs, outputs: names of
    the micro-batch's graph. sums: outputs to which the sum of the micro-batches before is added.
    """

    data: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sums: tuple[str, ...]


@dataclass(frozen=True)
class Crossing:
    """A tensor that a later piece reads. first, last: the piece that makes it, and the last one that reads it."""

    first: int
    last: int
    shape: Shape
    dtype: str

    @property
    def copies(self) -> int:
        """Of how many micro-batches it is there at once."""
        return self.last - self.first + 1


@dataclass(frozen=True)
class Cut:
    """micro: the step by micro-batches. pieces: by micro-batch, then by number. crossings: by tensor. places: of the
    sums, the piece that makes them. begin, end: what is made before and after the micro-batches. seconds: of one
    micro-batch in each process, as measured.
    """

    micro: MicroStep
    processes: int
    pieces: tuple[tuple[Piece, ...], ...]
    crossings: Mapping[str, Crossing]
    places: Mapping[str, int]
    begin: tuple[Duty, ...]
    end: tuple[Duty, ...]
    seconds: tuple[float, ...]

    @property
    def ticks(self) -> int:
        """How often the processes meet while micro-batches are on their way."""
        return len(self.pieces) + 2 * self.processes - 2


def turns(made: Sequence[Duty]) -> int:
    """How often the processes meet for these duties."""
    return 1 + max((duty.turn for duty in made), default=-1)


def cut(
    micro: MicroStep, carry: Mapping[str, str], kept: Collection[str], seconds: Sequence[float], processes: int
) -> Cut:
    """A step for so many processes.

    carry: output → the input that it replaces. kept: inputs of the step that stay where they are read: weights, state
    and constants. seconds: of each node of the first micro-batch's graph. Raises Unspreadable where the model cannot be
    cut so often.
    """
    graph = StepGraph(micro.each[0].data)
    bounds = {bound.name: bound for bound in micro.each[0].inputs}
    rows = [name for name, bound in bounds.items() if bound.shape != micro.step.shapes[bound.tensor]]
    weights = [name for name in bounds if name in kept and name not in rows and micro.step.size(name) > 1]
    gradients = _gradients(micro, carry)
    fine = finest(graph, rows, weights, gradients)
    if fine.stages < processes:
        raise Unspreadable(
            f"The model can be cut into {fine.stages} stage{'s' * (fine.stages > 1)}, not into {processes}: the weights"
            " of a stage are read before and after those of another one, or there are no more.",
            hint=f"Say pipeline({fine.stages})." if fine.stages > 1 else "Share the rows instead: data(n).",
        )
    costs = [0.0] * fine.stages
    for index, piece in fine.piece.items():
        costs[fine.process(piece)] += seconds[index]
    groups = balanced(costs, processes)
    pieces = grouped(graph, rows, gradients, fine, dict(enumerate(groups)))
    if pieces is None:
        raise Unspreadable(f"The model has no {processes} stages of which each only waits for the one before.")
    spent = [sum(cost for cost, group in zip(costs, groups, strict=True) if group == each) for each in range(processes)]
    return _Cutter(micro, graph, pieces).cut(tuple(spent))


def _gradients(micro: MicroStep, carry: Mapping[str, str]) -> dict[str, set[str]]:
    """Of each part of a sum, the weights that it moves."""
    found = {name: {carry[name]} if name in carry else set[str]() for name in micro.parts}
    if micro.after.data:
        names = {bound.name: bound.tensor for bound in micro.after.inputs if bound.tensor in found}
        for name, results in moved_by(StepGraph(micro.after.data), names).items():
            found[names[name]] |= {carry[result] for result in results if result in carry}
    return found


class _Cutter:
    def __init__(self, micro: MicroStep, graph: StepGraph, pieces: Pieces) -> None:
        self._micro, self._graph, self._pieces = micro, graph, pieces
        self._made = {name: piece for index, piece in pieces.piece.items() for name in graph.nodes[index].outputs}
        # What depends on no row is added up where the loss is.
        self._places = {name: self._made.get(name, pieces.stages - 1) for name in micro.sums}

    def cut(self, seconds: tuple[float, ...]) -> Cut:
        crossings = self._crossings()
        count = 2 * self._pieces.stages - 1
        read: dict[bytes, StepGraph] = {self._micro.each[0].data: self._graph}
        made: dict[tuple[bytes, bool], tuple[Piece, ...]] = {}
        found: list[tuple[Piece, ...]] = []
        for number, each in enumerate(self._micro.each):
            key = (each.data, number > 0)
            if key not in made:
                if each.data not in read:
                    read[each.data] = StepGraph(each.data)
                graph = read[each.data]
                made[key] = tuple(self._piece(graph, piece, crossings, more=number > 0) for piece in range(count))
            found.append(made[key])
        begin, end = (tuple(self._duties(graph)) for graph in (self._micro.before, self._micro.after))
        return Cut(self._micro, self._pieces.stages, tuple(found), crossings, self._places, begin, end, seconds)

    def _crossings(self) -> dict[str, Crossing]:
        graph, last = self._graph, dict[str, int]()
        for index, piece in self._pieces.piece.items():
            for name in graph.nodes[index].inputs:
                if self._made.get(name, piece) < piece:
                    last[name] = max(last.get(name, 0), piece)
        for name in self._places.keys() & last.keys():
            raise Unspreadable(f"A later stage goes on with the sum {name!r} of each micro-batch.")
        return {
            name: Crossing(self._made[name], end, graph.shapes[name], graph.dtype(name).name)
            for name, end in last.items()
        }

    def _piece(self, graph: StepGraph, piece: int, crossings: Mapping[str, Crossing], *, more: bool) -> Piece:
        """more: whether sums of micro-batches before are there."""
        moving = {node.index for node in graph.nodes if self._made.get(node.outputs[0], -1) == piece}
        free = {node.index for node in graph.nodes if node.outputs[0] not in self._made}
        sums = tuple(name for name, place in self._places.items() if place == piece)
        wanted = {node.index for node in graph.nodes if not set(sums).isdisjoint(node.outputs)}
        nodes = with_free(graph, moving | wanted, free)
        made = {name for index in moving for name in graph.nodes[index].outputs}
        handed = tuple(name for name in crossings if name in made)
        if not sums and not handed:
            return Piece(b"", (), (), ())
        added = {name: before(name) for name in sums} if more else {}
        data, inputs = subgraph(graph, nodes, (*sums, *handed), added)
        return Piece(data, tuple(name for name in inputs if name not in added.values()), handed, sums)

    def _duties(self, made: StageGraph) -> list[Duty]:
        if not made.data:
            return []
        graph, stages = StepGraph(made.data), self._pieces.stages
        owners: dict[str, int] = {}
        for bound in made.inputs:
            if bound.tensor in self._places:
                owners[bound.name] = stage_of(self._places[bound.tensor], stages)
            elif bound.tensor in self._pieces.stage:
                owners[bound.name] = self._pieces.stage[bound.tensor]
        return duties(graph, owners, [bound.name for bound in made.inputs if bound.tensor in self._places])


def before(name: str) -> str:
    """The name of the sum of the micro-batches before this one."""
    return f"{name}/before"


def sum_name(name: str, *, more: bool) -> str:
    """The name of the output that has the sum."""
    return summed(name) if more else name
