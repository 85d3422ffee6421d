"""When each value of a graph is live: from the node that makes it to the last node that reads it."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal, TypeAlias

import numpy as np

from coterie.compute.extension.kernels import node_workspace
from coterie.compute.extension.row import NODE
from coterie.compute.ir import Graph, Node, Type, Value
from coterie.compute.table import having

VIEWS = having(lambda facts: facts.view)

Kind: TypeAlias = Literal["held", "temporary"]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Bytes that are needed from one step of a run to another, both included. Step i is node i; inputs are there from
    step -1, outputs stay for one step after the last.

    kind: "held" for inputs, constants and outputs, which are somebody else's too; "temporary" for what a run makes for
    itself alone.
    source: the user's line, "file:line", or the name of an input. values: what lives there, one after the other.
    """

    bytes: int
    start: int
    end: int
    kind: Kind
    source: str
    values: tuple[Value, ...] = ()

    def meets(self, other: "Block") -> bool:
        """Whether both are needed at some step."""
        return self.start <= other.end and other.start <= self.end


def type_bytes(type_: Type) -> int:
    """The size of a tensor. A stack whose length is known only when a loop has run counts as one element."""
    return prod(abs(n) for n in type_.shape) * np.dtype(type_.dtype).itemsize


def lifetimes(graph: Graph, merged: Mapping[Value, Value] | None = None) -> tuple[Block, ...]:
    """The blocks of a graph in the order of its nodes: one for each value that has a size, and one for the work space
    of each node that needs some: the largest graph inside it, at its own fullest moment.

    merged: values written over others (``in_place``); such a chain is one block. A reshape shares the block of its
    operand.
    """
    homes = _homes(graph, merged or {})
    last = len(graph.nodes)
    ends: dict[Value, int] = {}
    for index, node in enumerate(graph.nodes):
        for value in (*node.inputs, *node.outputs):
            ends[homes.get(value, value)] = index
    for value in graph.outputs.values():
        ends[homes.get(value, value)] = last
    members: dict[Value, list[Value]] = {}
    for value, home in homes.items():
        members.setdefault(home, []).append(value)
    blocks = [
        Block(type_bytes(value.type), -1, last, "held", name, (value, *members.get(value, ())))
        for name, value in graph.inputs.items()
    ]
    for index, node in enumerate(graph.nodes):
        for value in node.outputs:
            if value in homes:
                continue
            span = (-1, last) if node.primitive == "constant" else (index, ends[value])
            kind: Kind = "held" if span[1] == last else "temporary"
            group = (value, *members.get(value, ()))
            blocks.append(Block(type_bytes(value.type), *span, kind, node.source, group))
        if scratch := work_space(node):
            blocks.append(Block(scratch, index, index, "temporary", node.source))
    return tuple(block for block in blocks if block.bytes)


def _homes(graph: Graph, merged: Mapping[Value, Value]) -> dict[Value, Value]:
    """The first value of the chain in whose block each merged value lives."""
    homes: dict[Value, Value] = {}
    for node in graph.nodes:
        for value in node.outputs:
            before = node.inputs[0] if node.primitive in VIEWS else merged.get(value)
            if before is not None:
                homes[value] = homes.get(before, before)
    return homes


def work_space(node: Node) -> int:
    """Bytes that a node needs while it runs, beside operands and results."""
    if node.primitive == NODE:
        return node_workspace(node)
    return max((_inner(held) for held in node.attributes.values() if isinstance(held, Graph)), default=0)


def _inner(graph: Graph) -> int:
    """The fullest moment of a graph inside a node, without what the node hands it."""
    return lower_bound(tuple(block for block in lifetimes(graph) if block.start >= 0))


def lower_bound(blocks: tuple[Block, ...]) -> int:
    """The bytes that are live at the fullest step: no layout can do with less."""
    return max((level for _, level in levels(blocks)), default=0)


def levels(blocks: tuple[Block, ...]) -> list[tuple[int, int]]:
    """Live bytes at each step at which they change."""
    changes: dict[int, int] = {}
    for block in blocks:
        changes[block.start] = changes.get(block.start, 0) + block.bytes
        changes[block.end + 1] = changes.get(block.end + 1, 0) - block.bytes
    found: list[tuple[int, int]] = []
    level = 0
    for step in sorted(changes):
        level += changes[step]
        found.append((step, level))
    return found
