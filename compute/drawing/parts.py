"""What a picture of a graph consists of: boxes for inputs, nodes and outputs, and the arrows between them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from coterie.compute.ir import Graph, Node, Value

_UNDRAWABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Role: TypeAlias = Literal["input", "constant", "node", "holder", "output"]


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """One box. ``title`` is its label, ``note`` a smaller line below, ``source`` the user's line. ``graphs`` are those
    that its node holds, by name.
    """

    role: Role
    title: str
    note: str = ""
    source: str = ""
    graphs: tuple[tuple[str, Graph], ...] = ()


@dataclass(frozen=True, slots=True)
class Picture:
    """Boxes in the order of evaluation, and arrows between them by position."""

    boxes: tuple[Box, ...]
    arrows: tuple[tuple[int, int], ...]


def picture(graph: Graph) -> Picture:
    """A box for every input, node and output of a graph; graphs inside nodes are pictures of their own."""
    boxes: list[Box] = []
    arrows: dict[tuple[int, int], None] = {}
    makers: dict[Value, int] = {}
    for name, value in graph.inputs.items():
        makers[value] = len(boxes)
        boxes.append(Box("input", _shown(name), str(value.type)))
    for node in graph.nodes:
        for value in node.inputs:
            arrows[makers[value], len(boxes)] = None
        makers.update(dict.fromkeys(node.outputs, len(boxes)))
        boxes.append(_box(node))
    for name, value in graph.outputs.items():
        arrows[makers[value], len(boxes)] = None
        boxes.append(Box("output", _shown(name)))
    return Picture(tuple(boxes), tuple(arrows))


def _box(node: Node) -> Box:
    types = ", ".join(str(value.type) for value in node.outputs)
    if node.primitive == "constant":
        value = node.attributes["value"]
        title = f"{np.asarray(value).reshape(-1)[0]:.6g}" if value.size == 1 else "constant"
        return Box("constant", title, types, _shown(node.source))
    graphs = tuple(_graphs(node))
    return Box("holder" if graphs else "node", node.label, types, _shown(node.source), graphs)


def _shown(text: str) -> str:
    """Text without the characters that no picture can hold: XML has none for them, whatever the escape."""
    return _UNDRAWABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def _graphs(node: Node) -> Iterator[tuple[str, Graph]]:
    for name, value in node.attributes.items():
        if isinstance(value, Graph):
            yield name, value
