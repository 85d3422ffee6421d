"""In which piece of a pipeline each node of a micro-batch is: up through the stages forward, and down again backward.

With n stages there are 2 n - 1 pieces: 0 … n - 1 are the stages forward, of which the last also begins to go back, and
the others backward, 2 n - 2 being the first stage again. A tensor is only read in the piece that makes it or in a later
one. A node is in the stage that has the weights which it reads; going back, a node is where the activations are that it
reads again, so that they stay in their stage.

The finest stages are found from the graph alone: every weight begins one, in the order in which weights are read first,
and stages that turn out to need each other both ways become one.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from coterie.compute.onnx.spread.reading import StepGraph, StepNode


@dataclass(frozen=True)
class Pieces:
    """piece: of a node that depends on rows, by its index. The others are made wherever they are needed. stage: of a
    weight. stages: how many there are.
    """

    piece: Mapping[int, int]
    stage: Mapping[str, int]
    stages: int

    def process(self, piece: int) -> int:
        """The stage that runs a piece."""
        return stage_of(piece, self.stages)


@dataclass(frozen=True)
class _Clash:
    """Stages that need each other both ways, from the first to the last."""

    first: int
    last: int


def stage_of(piece: int, stages: int) -> int:
    """The stage that a piece belongs to."""
    return min(piece, 2 * stages - 2 - piece)


def finest(
    graph: StepGraph, rows: Collection[str], weights: Collection[str], gradients: Mapping[str, Collection[str]]
) -> Pieces:
    """The pieces of as many stages as there can be.

    rows: inputs that are others in each micro-batch. weights: inputs that stay in their stage. gradients: parts of
    sums over rows, with the weights that they move.
    """
    flow = _Flow(graph, rows, weights, gradients)
    stage = {name: number for number, name in enumerate(flow.order)}
    while True:
        found = flow.walked(stage)
        if isinstance(found, Pieces):
            return found
        merged = found.last - found.first
        stage = {name: each if each <= found.first else max(found.first, each - merged) for name, each in stage.items()}


def grouped(
    graph: StepGraph,
    rows: Collection[str],
    gradients: Mapping[str, Collection[str]],
    pieces: Pieces,
    groups: Mapping[int, int],
) -> Pieces | None:
    """The pieces when stages are put together; None where they cannot be.

    groups: of each stage, the one that it is in then.
    """
    stage = {name: groups[each] for name, each in pieces.stage.items()}
    found = _Flow(graph, rows, pieces.stage, gradients).walked(stage)
    return found if isinstance(found, Pieces) else None


class _Flow:
    """order: weights as they are read first."""

    def __init__(
        self,
        graph: StepGraph,
        rows: Collection[str],
        weights: Collection[str],
        gradients: Mapping[str, Collection[str]],
    ) -> None:
        self._gradients = gradients
        self._roots: dict[str, frozenset[str]] = {name: frozenset({name}) for name in weights}
        moving, order, deep = set(rows), dict[str, None](), set[str]()
        self._moving: list[StepNode] = []
        # What is made of the batch alone is made where it is read first.
        self._shallow: list[StepNode] = []
        for node in graph.nodes:
            roots = frozenset[str]().union(*(self._roots.get(name, frozenset()) for name in node.inputs))
            if moving.isdisjoint(node.inputs):
                self._roots.update(dict.fromkeys(node.outputs, roots))
                continue
            moving.update(node.outputs)
            if not roots and deep.isdisjoint(node.inputs):
                self._shallow.append(node)
                continue
            deep.update(node.outputs)
            self._moving.append(node)
            if gradients.keys().isdisjoint(node.outputs):
                order.update(dict.fromkeys(sorted(roots)))
        # What is only added to a gradient, such as a momentum, is wherever that is.
        self.order = tuple(order)

    def walked(self, stage: Mapping[str, int]) -> Pieces | _Clash:
        """The pieces for these stages of weights."""
        stages = max(stage.values(), default=0) + 1
        reads = {
            node.index: {
                stage[root] for name in node.inputs for root in self._roots.get(name, frozenset()) if root in stage
            }
            for node in self._moving
        }
        ahead = self._ahead(reads, stage)
        made: dict[str, int] = {}
        piece: dict[int, int] = {}
        for node in self._moving:
            own = reads[node.index]
            if len(own) > 1:
                return _Clash(min(own), max(own))
            low = max((made[name] for name in node.inputs if name in made), default=0)
            if own:
                (wanted,) = own
                found = wanted if low <= wanted else 2 * stages - 2 - wanted
                if found < low:
                    return _Clash(2 * stages - 2 - low, wanted)
            else:
                # Going back, a node is where the weights are that its results move.
                back = low >= stages - 1 and ahead[node.index] >= 0
                found = max(low, 2 * stages - 2 - ahead[node.index]) if back else low
            piece[node.index] = found
            made.update(dict.fromkeys(node.outputs, found))
        return Pieces(piece | self._read_first(piece, stages), dict(stage), stages)

    def _read_first(self, piece: Mapping[int, int], stages: int) -> dict[int, int]:
        """The pieces of what is made of the batch alone; of its sums, that of the loss."""
        first: dict[str, int] = {}
        found: dict[int, int] = {}
        for node in self._moving:
            for name in node.inputs:
                first[name] = min(first.get(name, piece[node.index]), piece[node.index])
        for node in reversed(self._shallow):
            found[node.index] = min((first[name] for name in node.outputs if name in first), default=stages - 1)
            for name in node.inputs:
                first[name] = min(first.get(name, found[node.index]), found[node.index])
        return found

    def _ahead(self, reads: Mapping[int, Collection[int]], stage: Mapping[str, int]) -> Mapping[int, int]:
        """The last stage whose weights are read, or moved, by a node or by one that depends on it; -1 for none."""
        found: dict[int, int] = {}
        readers = {
            name: max((stage[weight] for weight in weights if weight in stage), default=-1)
            for name, weights in self._gradients.items()
        }
        for node in reversed(self._moving):
            here = max((*reads[node.index], *(readers.get(name, -1) for name in node.outputs)), default=-1)
            found[node.index] = here
            for name in node.inputs:
                readers[name] = max(readers.get(name, -1), here)
        return found
