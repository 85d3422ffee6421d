"""Who makes what after the last micro-batch: the optimizer's update of each weight in the process that has its
gradient.

A process hands to the others what they need of it, such as its part of a norm over all gradients; then all meet, and a
further turn follows. Small things that are made of inputs alone, such as a corrected learning rate, each makes itself.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from coterie.compute.onnx.pipeline.subgraph import subgraph
from coterie.compute.onnx.spread.reading import StepGraph

_SMALL = 1 << 10


@dataclass(frozen=True)
class Duty:
    """What a process makes in one turn. inputs, outputs: names of the whole graph."""

    turn: int
    process: int
    data: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def duties(graph: StepGraph, owners: Mapping[str, int], sums: Collection[str]) -> list[Duty]:
    """The duties of all processes, in their order.

    owners: of some inputs, who has them: of the sums and the weights. sums: inputs that nobody makes for himself.
    """
    free = _free(graph, sums)
    process = _processes(graph, owners, free)
    makers = {name: node for node in graph.nodes for name in node.outputs}
    turn: dict[int, int] = {}
    for node in graph.nodes:
        if node.index in process:
            before = [makers[name].index for name in node.inputs if name in makers]
            own = process[node.index]
            later = [turn[each] + (process[each] != own) for each in before if each in process]
            turn[node.index] = max(later, default=0)
    groups: dict[tuple[int, int], set[int]] = defaultdict(set)
    for index, own in process.items():
        groups[turn[index], own].add(index)
    lonely = [name for name in graph.outputs if makers[name].index in free]
    if lonely:
        groups[0, 0] |= {makers[name].index for name in lonely}
    handed = {
        name
        for key, nodes in groups.items()
        for index in nodes
        for name in graph.nodes[index].inputs
        if name in makers and makers[name].index in process and makers[name].index not in groups[key]
    }
    found: list[Duty] = []
    for (number, own), nodes in sorted(groups.items()):
        made = {name for index in nodes for name in graph.nodes[index].outputs}
        outputs = tuple(name for name in (*graph.outputs, *sorted(handed - set(graph.outputs))) if name in made)
        data, inputs = subgraph(graph, with_free(graph, nodes, free), outputs)
        found.append(Duty(number, own, data, inputs, outputs))
    return found


def with_free(graph: StepGraph, nodes: Collection[int], free: Collection[int]) -> set[int]:
    """Nodes, and those that each makes for itself, as far as they need them."""
    makers = {name: node.index for node in graph.nodes for name in node.outputs}
    found, waiting = set(nodes), [name for index in nodes for name in graph.nodes[index].inputs]
    while waiting:
        index = makers.get(waiting.pop())
        if index is not None and index in free and index not in found:
            found.add(index)
            waiting += graph.nodes[index].inputs
    return found


def _free(graph: StepGraph, sums: Collection[str]) -> set[int]:
    bound, found = set(sums), set[int]()
    for node in graph.nodes:
        if bound.isdisjoint(node.inputs) and graph.size(node.outputs[0]) <= _SMALL:
            found.add(node.index)
        else:
            bound.update(node.outputs)
    return found


def _processes(graph: StepGraph, owners: Mapping[str, int], free: Collection[int]) -> dict[int, int]:
    """By the largest operand that somebody has; else by who needs the result."""
    known, found = dict(owners), dict[int, int]()
    for node in graph.nodes:
        if node.index in free:
            continue
        own = [(graph.size(name), known[name]) for name in node.inputs if name in known]
        largest = max((graph.size(name) for name in node.inputs if name), default=0)
        if own and (max(own)[0] == largest or len(own) == len(node.inputs)):
            found[node.index] = max(own, key=lambda each: each[0])[1]
            known.update(dict.fromkeys(node.outputs, found[node.index]))
    needed: dict[str, int] = {}
    for node in reversed(graph.nodes):
        if node.index in free:
            continue
        if node.index not in found:
            found[node.index] = next((needed[name] for name in node.outputs if name in needed), 0)
        for name in node.inputs:
            needed.setdefault(name, found[node.index])
    return dict(sorted(found.items()))
