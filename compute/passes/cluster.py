"""Group chains of elementwise nodes and reductions into calls, each of which could be one kernel: what passes between
its nodes need not go through memory.

A group is convex: no way leads out of it and back in, also not through other groups, so that every group can run at
once. The ONNX writer writes a group's nodes in place of the call: the operators that stock providers run stay the same,
and a runtime that fuses may do so within them.
"""

import heapq
from collections.abc import Iterable

from coterie.compute.ir import Graph, Node, Value
from coterie.compute.passes.dead_code import remove_dead_code
from coterie.compute.primitives.table import ELEMENTWISE
from coterie.compute.verify import verify

FUSIBLE = ELEMENTWISE | frozenset(
    "broadcast_to sum max softmax floor sin cos atan erf log1p power floor_divide".split()
)
_DESCENDED = frozenset({"scan", "while", "cond"})


def cluster(graph: Graph) -> Graph:
    """The graph with groups of two and more fusible nodes as ``call`` nodes; the same graph when there are none. Run it
    last: other passes write calls out again.
    """
    graph = _inside(remove_dead_code(graph))
    groups = _Groups(graph)
    for index, node in enumerate(graph.nodes):
        if node.primitive in FUSIBLE:
            for value in node.inputs:
                groups.join(index, value)
    if not groups.large():
        return graph
    return remove_dead_code(verify(_rebuilt(graph, groups)))  # constants that moved into groups


def _inside(graph: Graph) -> Graph:
    """The graph with groups inside its loops and choices."""
    nodes: list[Node] = []
    for node in graph.nodes:
        held = {
            name: cluster(value) if node.primitive in _DESCENDED and isinstance(value, Graph) else value
            for name, value in node.attributes.items()
        }
        same = all(held[name] is value for name, value in node.attributes.items())
        nodes.append(node if same else Node(node.primitive, node.inputs, node.outputs, held, node.source))
    if all(new is old for new, old in zip(nodes, graph.nodes, strict=True)):
        return graph
    return verify(Graph(graph.inputs, tuple(nodes), graph.outputs))


class _Groups:
    """Which group each node belongs to, by the number of its first node; at first every node is alone."""

    def __init__(self, graph: Graph) -> None:
        self._nodes = graph.nodes
        self._maker = {value: index for index, node in enumerate(graph.nodes) for value in node.outputs}
        self.group = list(range(len(graph.nodes)))
        self.members = [[index] for index in range(len(graph.nodes))]
        self._readers: list[list[int]] = [[] for _ in graph.nodes]
        for index, node in enumerate(graph.nodes):
            for maker in self._makers(node):
                self._readers[maker].append(index)

    def _makers(self, node: Node) -> set[int]:
        return {self._maker[value] for value in node.inputs if value in self._maker}

    def join(self, index: int, operand: Value) -> None:
        """Put a node into the group of the one that makes an operand, if that is fusible and the group stays convex."""
        maker = self._maker.get(operand)
        if maker is None or self._nodes[maker].primitive not in FUSIBLE:
            return
        first, second = self.group[maker], self.group[index]
        if first == second:
            return
        union = {*self.members[first], *self.members[second]}
        if self._leads_back(union):
            return
        keep, drop = min(first, second), max(first, second)
        self.members[keep] = sorted(union)
        self.members[drop] = []
        for member in union:
            self.group[member] = keep

    def _leads_back(self, union: set[int]) -> bool:
        """Whether a way through other groups leads from a set of nodes back into it."""
        last = max(union)
        frontier = [reader for member in union for reader in self._readers[member] if reader not in union]
        seen: set[int] = set()
        while frontier:
            group = self.group[frontier.pop()]
            if group in seen:
                continue
            seen.add(group)
            for member in self.members[group]:
                for reader in self._readers[member]:
                    if reader in union:
                        return True
                    # Edges lead to later nodes, and a group may hold earlier ones: ask for its first.
                    if self.members[self.group[reader]][0] <= last:
                        frontier.append(reader)
        return False

    def large(self) -> bool:
        """Whether any group has two nodes."""
        return any(len(members) > 1 for members in self.members)

    def in_order(self) -> Iterable[list[int]]:
        """The groups so that each follows all that it reads, else in the order of their first nodes."""
        waiting = {g: self._needed(members) - {g} for g, members in enumerate(self.members) if members}
        ready = [g for g, needed in waiting.items() if not needed]
        readers: dict[int, list[int]] = {}
        for group, needed in waiting.items():
            for other in needed:
                readers.setdefault(other, []).append(group)
        heapq.heapify(ready)
        while ready:
            group = heapq.heappop(ready)
            yield self.members[group]
            for reader in readers.get(group, ()):
                waiting[reader].discard(group)
                if not waiting[reader]:
                    heapq.heappush(ready, reader)

    def _needed(self, members: list[int]) -> set[int]:
        return {self.group[maker] for member in members for maker in self._makers(self._nodes[member])}


def _rebuilt(graph: Graph, groups: _Groups) -> Graph:
    producers = graph.producers()
    readers: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            readers.setdefault(value, []).append(node)
    given = set(graph.outputs.values())
    nodes: list[Node] = []
    for members in groups.in_order():
        held = [graph.nodes[index] for index in members]
        if len(held) == 1:
            nodes.append(held[0])
            continue
        inner = set(held)
        made = [value for node in held for value in node.outputs]
        results = [value for value in made if value in given or any(r not in inner for r in readers.get(value, ()))]
        nodes.append(_call(held, results, producers))
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


def _call(held: list[Node], results: list[Value], producers: dict[Value, Node]) -> Node:
    """A call of the graph of some nodes. Constants of one element move into it."""
    mapping: dict[Value, Value] = {}
    operands: dict[Value, Value] = {}
    nodes: list[Node] = []
    for node in held:
        for value in node.inputs:
            if value in mapping:
                continue
            mapping[value] = Value(value.type)
            maker = producers.get(value)
            if maker is not None and maker.primitive == "constant" and value.type.size == 1:
                nodes.append(Node("constant", (), (mapping[value],), maker.attributes, maker.source))
            else:
                operands[value] = mapping[value]
        outputs = tuple(Value(value.type) for value in node.outputs)
        mapping.update(zip(node.outputs, outputs, strict=True))
        inputs = tuple(mapping[value] for value in node.inputs)
        nodes.append(Node(node.primitive, inputs, outputs, node.attributes, node.source))
    body = Graph(
        {str(index): value for index, value in enumerate(operands.values())},
        tuple(nodes),
        {str(index): mapping[value] for index, value in enumerate(results)},
    )
    return Node("call", tuple(operands), tuple(results), {"graph": body}, held[-1].source)
