"""A step as graphs over micro-batches: once before them, for each of them, and once after the last."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from coterie.compute.onnx.spread.placement import PART, WHOLE, Unspreadable
from coterie.compute.onnx.spread.placing import Placed, placed
from coterie.compute.onnx.spread.reading import StepGraph
from coterie.compute.onnx.spread.stages import Shares, Staged, StageGraph
from coterie.compute.onnx.spread.writing import stage_graph

# While the pipeline fills and empties, stages wait; more micro-batches make that a smaller part of the step, and
# products smaller.
MOST_FOR_A_STAGE = 4

_BEFORE, _EACH, _AFTER = range(3)


@dataclass(frozen=True)
class MicroStep:
    """before: makes what is the same for all micro-batches and is cut by rows, such as normalised weights of the rows.
    each: a micro-batch, forward and backward, up to its part of every sum over rows. after: from the sums to the
    results of the step that are no sums themselves. parts: tensors of which each micro-batch makes a
    part. sums: those of them that have to be added up.
    """

    step: StepGraph
    before: StageGraph
    each: tuple[StageGraph, ...]
    after: StageGraph
    parts: tuple[str, ...]
    sums: tuple[str, ...]


def micro_step(data: bytes, *, batch: Collection[str], processes: int) -> MicroStep:
    """A serialised step for micro-batches of equally many rows.

    batch: the inputs ``[rows, …]`` that are cut by rows. processes: how many stages the micro-batches go through.
    Raises Unspreadable for a step that mixes rows, or whose batch is not divisible.
    """
    found = placed(StepGraph(data), batch, stretches=False)
    after, sums = _after(found)
    each = _needed(found, sums)
    for index in after | each:
        _check_rows(found, index)
    makers, several = _makers(found), _of_several(found)
    shared = [
        name
        for index in each
        for name, need in zip(found.graph.nodes[index].inputs, found.work[index].needs, strict=True)
        if name in makers and found.places[name] == WHOLE and (need.kind == "rows" or name in several)
    ]
    stage = dict.fromkeys(after, _AFTER) | dict.fromkeys(each, _EACH)
    stage |= dict.fromkeys(_needed(found, shared), _BEFORE)
    micro = Staged(found, Shares.of(found.rows, found.unit, _count(found, processes)), stage, 3)
    # A stage that is not the last one does not store sums, which lie where they are added up.
    whole = Staged(found, Shares.of(found.rows, found.unit, 1), dict.fromkeys(after, 0), 2)
    parts = (name for index in sorted(each) for name in found.graph.nodes[index].outputs)
    return MicroStep(
        found.graph,
        stage_graph(micro, _BEFORE, 0),
        tuple(stage_graph(micro, _EACH, rank) for rank in range(micro.shares.processes)),
        stage_graph(whole, 0, 0),
        tuple(name for name in parts if found.places[name] == PART),
        tuple(sums),
    )


def _count(found: Placed, processes: int) -> int:
    """Of the micro-batches."""
    units = found.rows // found.unit
    counts = [count for count in range(2, MOST_FOR_A_STAGE * processes + 1) if units % count == 0]
    if not counts:
        raise Unspreadable(
            f"A batch of {found.rows} rows, of which {found.unit} go together, makes no equal micro-batches.",
            hint=f"Use a batch that 2 or another number up to {MOST_FOR_A_STAGE * processes} divides.",
        )
    return max(counts)


def _after(found: Placed) -> tuple[set[int], list[str]]:
    """The nodes behind the sums, and the sums."""
    makers = _makers(found)
    nodes, sums, waiting = set[int](), dict[str, None](), list(found.graph.outputs)
    while waiting:
        name = waiting.pop()
        if found.places[name] == PART:
            sums[name] = None
        elif (index := makers.get(name)) is not None and index not in nodes:
            nodes.add(index)
            waiting += found.graph.nodes[index].inputs
    return nodes, [name for name in makers if name in sums]


def _needed(found: Placed, names: Iterable[str]) -> set[int]:
    """The nodes that make these tensors, and all that they need."""
    makers, nodes, waiting = _makers(found), set[int](), list(names)
    while waiting:
        index = makers.get(waiting.pop())
        if index is not None and index not in nodes:
            nodes.add(index)
            waiting += found.graph.nodes[index].inputs
    return nodes


def _makers(found: Placed) -> dict[str, int]:
    return {name: node.index for node in found.graph.nodes for name in node.outputs if name}


def _of_several(found: Placed) -> set[str]:
    """Small tensors that are made of several large inputs, as a distance between all weights is, and of no row."""
    graph, roots, several = found.graph, dict[str, frozenset[str]](), set[str]()
    for name in graph.inputs:
        roots[name] = frozenset({name} if graph.size(name) > 1 else ())
    for node in graph.nodes:
        own = frozenset[str]().union(*(roots.get(name, frozenset()) for name in node.inputs))
        roots.update(dict.fromkeys(node.outputs, own))
        if len(own) > 1 and found.work[node.index].gives == WHOLE and graph.size(node.outputs[0]) == 1:
            several.update(node.outputs)
    return several


def _check_rows(found: Placed, index: int) -> None:
    node, work = found.graph.nodes[index], found.work[index]
    if found.level[node.outputs[0]] and any(place.kind == "rows" for place in (*work.needs, work.gives)):
        raise Unspreadable(
            f"{node} needs for each row a sum over the whole batch, as BatchNorm does: no micro-batch can go on before"
            " the last one is there.",
            hint="Share the rows instead: data(n).",
        )
