"""Compute cheap values a second time where they are read late, instead of keeping them, when that lowers the peak.

In a training step these are the intermediate values of activations: made in the forward pass, read again in the
backward pass, and live at the fullest moment between. The second computation reads its operands through barriers, so
that no pass and no runtime takes it for the first (Chen et al., arXiv 1604.06174, for elementwise nodes alone).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from coterie.compute.ir import Graph, Node, Value
from coterie.compute.memory.in_place import in_place
from coterie.compute.memory.lifetimes import levels, lifetimes
from coterie.compute.table import having
from coterie.compute.verify import verify

_CHEAP = having(lambda facts: facts.cheap)  # less work than a training step does anyway for each element
_TRIES = 24  # single values that are tried, the largest first, when all of them together do not help


def recompute(graph: Graph, budget_bytes: int | None = None) -> Graph:
    """The graph that computes some elementwise values again and needs fewer bytes at its fullest step; the same graph
    when no such change helps, or when it keeps within the budget already.

    budget_bytes: where to stop; as low as it gets unless given. The peak is the lower bound of ``memory_report`` with
    results written in place. Results are the same bit for bit. Optimise before; graphs inside nodes stay as they are.
    """
    first = best = _fullest(graph)
    current = graph
    while budget_bytes is None or best.peak > budget_bytes:
        found = next(_better(current, best), None)
        if found is None:
            break
        current, best = found
    return current if best.peak < first.peak else graph


@dataclass(frozen=True, slots=True, order=True)
class _Fullest:
    """The peak, at how many steps it stands, and the first of them."""

    peak: int
    steps: int
    step: int = field(compare=False)


def _fullest(graph: Graph) -> _Fullest:
    found = levels(lifetimes(graph, in_place(graph)))
    peak = max((level for _, level in found), default=0)
    lengths = [
        (step, after - step) for (step, level), (after, _) in zip(found, found[1:], strict=False) if level == peak
    ]
    return _Fullest(peak, sum(length for _, length in lengths), lengths[0][0] if lengths else 0)


def _better(graph: Graph, now: _Fullest) -> Iterator[tuple[Graph, _Fullest]]:
    """Graphs with a lower peak, or with the same peak at fewer steps."""
    candidates = _candidates(graph, now.step)
    trials: list[Sequence[Value]] = [candidates] if len(candidates) > 1 else []
    trials += [[value] for value in candidates[:_TRIES]]
    for dropped in trials:
        changed = _Rewriter(graph, dropped, now.step).run()
        if (fullest := _fullest(changed)) < now:
            yield changed, fullest


def _candidates(graph: Graph, step: int) -> list[Value]:
    """Cheap values made before a step and read after it, but not by it; the largest first."""
    kept = set(graph.outputs.values())
    used = set(graph.nodes[step].inputs) if 0 <= step < len(graph.nodes) else set[Value]()
    late = {value for node in graph.nodes[step + 1 :] for value in node.inputs}
    found = [
        node.output
        for node in graph.nodes[: max(step, 0)]
        if node.primitive in _CHEAP and node.output in late and node.output not in used and node.output not in kept
    ]
    return sorted(found, key=lambda value: -value.type.size)


class _Rewriter:
    """Copies a graph; after a step, what is dropped is read from copies made where they are first read."""

    def __init__(self, graph: Graph, dropped: Sequence[Value], step: int) -> None:
        self._graph = graph
        self._dropped = set(dropped)
        self._step = step
        self._producers = graph.producers()
        self._last = {value: index for index, node in enumerate(graph.nodes) for value in node.inputs}
        self._last.update(dict.fromkeys([*graph.inputs.values(), *graph.outputs.values()], len(graph.nodes)))
        self._nodes: list[Node] = []
        self._again: dict[Value, Value] = {}
        self._barriers: dict[Value, Value] = {}

    def run(self) -> Graph:
        """The new graph."""
        for index, node in enumerate(self._graph.nodes):
            operands = node.inputs
            if index > self._step:
                operands = tuple(self._copy(v, index) if v in self._dropped else v for v in operands)
            same = operands == node.inputs
            self._nodes.append(
                node if same else Node(node.primitive, operands, node.outputs, node.attributes, node.source)
            )
        return verify(Graph(self._graph.inputs, tuple(self._nodes), self._graph.outputs))

    def _copy(self, value: Value, index: int) -> Value:
        if value not in self._again:
            node = self._producers[value]
            operands = tuple(self._operand(operand, index, node) for operand in node.inputs)
            copy = Value(value.type)
            self._nodes.append(Node(node.primitive, operands, (copy,), node.attributes, node.source))
            self._again[value] = copy
        return self._again[value]

    def _operand(self, value: Value, index: int, reader: Node) -> Value:
        node = self._producers.get(value)
        if node is not None and node.primitive == "constant":
            return value
        gone = value in self._dropped or self._last.get(value, -1) < index
        if node is not None and gone and node.primitive in _CHEAP:
            return self._copy(value, index)
        if reader.primitive == "barrier":
            return value
        if value not in self._barriers:
            self._barriers[value] = Value(value.type)
            self._nodes.append(Node("barrier", (value,), (self._barriers[value],), {}, reader.source))
        return self._barriers[value]
