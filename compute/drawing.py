"""A graph as text in the DOT language of Graphviz."""

import json
import re
from collections.abc import Iterator

import numpy as np

from coterie.compute.ir import Graph, Node, Value, require_graph

_UNDRAWABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SHAPES = {"input": "ellipse", "constant": "plaintext", "node": "box", "holder": "box", "output": "ellipse"}


def to_dot(graph: Graph) -> str:
    """The graph as DOT text: a box for every node, an ellipse for every input and output. A graph inside a node is a
    cluster, joined to its node by a dotted line. Tooltips are the user's lines. Graphviz makes a picture of it:
    ``dot -Tsvg step.dot -o step.svg``.
    """
    require_graph("to_dot", graph)
    lines = ["digraph {", '  node [fontname="sans-serif", fontsize=10];', "  compound=true;"]
    lines += _lines(graph, "n", "  ")
    return "\n".join([*lines, "}"]) + "\n"


def _lines(graph: Graph, prefix: str, indent: str) -> Iterator[str]:
    """The boxes of a graph in the order of evaluation, those inside them, and the arrows between them."""
    makers: dict[Value, str] = {}
    arrows: dict[str, None] = {}
    count = 0

    def box(role: str, title: str, note: str, source: str = "") -> tuple[str, str]:
        nonlocal count
        name = f"{prefix}{count}"
        count += 1
        label = title + (f"\n{note}" if note else "")
        shown = {"label": label, "shape": _SHAPES[role], "class": role, "tooltip": source or title}
        return name, f"{indent}{name} [{', '.join(f'{key}={_quoted(text)}' for key, text in shown.items())}];"

    for name, value in graph.inputs.items():
        makers[value], line = box("input", name, str(value.type))
        yield line
    for node in graph.nodes:
        held = {name: value for name, value in node.attributes.items() if isinstance(value, Graph)}
        types = ", ".join(str(value.type) for value in node.outputs)
        place, line = box(_role(node, held), _title(node), types, node.source)
        yield line
        for number, (name, inner) in enumerate(held.items()):
            yield from _held(inner, place, number, f"{name} of {node.label}", indent)
        arrows |= dict.fromkeys(f"{makers[value]} -> {place}" for value in node.inputs)
        makers |= dict.fromkeys(node.outputs, place)
    for name, value in graph.outputs.items():
        place, line = box("output", name, "")
        yield line
        arrows[f"{makers[value]} -> {place}"] = None
    yield from (f"{indent}{arrow};" for arrow in arrows)


def _held(inner: Graph, place: str, number: int, title: str, indent: str) -> Iterator[str]:
    """A graph inside a node, and the dotted line between both."""
    inside = f"{place}_{number}_"
    lines = [*_lines(inner, inside, indent + "  ")]
    yield f"{indent}subgraph cluster_{inside} {{"
    yield f"{indent}  label={_quoted(title)}; style=rounded;"
    yield from lines
    yield f"{indent}}}"
    if lines:
        yield f"{indent}{place} -> {inside}0 [style=dotted, arrowhead=none, lhead=cluster_{inside}];"


def _role(node: Node, held: dict[str, Graph]) -> str:
    return "constant" if node.primitive == "constant" else "holder" if held else "node"


def _title(node: Node) -> str:
    if node.primitive != "constant":
        return node.label
    value = node.attributes["value"]
    return f"{np.asarray(value).reshape(-1)[0]:.6g}" if value.size == 1 else "constant"


def _quoted(text: str) -> str:
    """DOT has the escapes of JSON strings for quotes and line ends, and takes any other character that a picture can
    hold: pictures are often XML, which has nothing for the rest.
    """
    return json.dumps(_UNDRAWABLE.sub("\N{REPLACEMENT CHARACTER}", text), ensure_ascii=False)
