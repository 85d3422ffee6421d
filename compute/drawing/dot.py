"""A graph in the DOT language of Graphviz."""

import json

from coterie.compute.drawing.parts import Box, picture
from coterie.compute.ir import Graph, require_graph

_SHAPES = {"input": "ellipse", "constant": "plaintext", "node": "box", "holder": "box", "output": "ellipse"}


def to_dot(graph: Graph) -> str:
    """The graph as DOT text: a box for every node, an ellipse for every input and output. A graph inside a node is a
    cluster, joined to its node by a dotted line. Tooltips are the user's lines.
    """
    require_graph("to_dot", graph)
    lines = ["digraph {", '  node [fontname="sans-serif", fontsize=10];', "  compound=true;"]
    _write(graph, "n", lines, "  ")
    return "\n".join([*lines, "}"]) + "\n"


def _write(graph: Graph, prefix: str, lines: list[str], indent: str) -> None:
    drawn = picture(graph)
    for index, box in enumerate(drawn.boxes):
        name = f"{prefix}{index}"
        lines.append(f"{indent}{name} [{_attributes(box)}];")
        for held, (title, inner) in enumerate(box.graphs):
            inside = f"{name}_{held}_"
            lines.append(f"{indent}subgraph cluster_{inside} {{")
            lines.append(f"{indent}  label={_quoted(f'{title} of {box.title}')}; style=rounded;")
            _write(inner, inside, lines, indent + "  ")
            lines.append(f"{indent}}}")
            if picture(inner).boxes:
                lines.append(f"{indent}{name} -> {inside}0 [style=dotted, arrowhead=none, lhead=cluster_{inside}];")
    lines += [f"{indent}{prefix}{start} -> {prefix}{end};" for start, end in drawn.arrows]


def _attributes(box: Box) -> str:
    label = box.title + (f"\n{box.note}" if box.note else "")
    shown = {"label": label, "shape": _SHAPES[box.role], "class": box.role, "tooltip": box.source or box.title}
    return ", ".join(f"{name}={_quoted(value)}" for name, value in shown.items())


def _quoted(text: str) -> str:
    # DOT has the escapes of JSON strings for quotes and line ends, and takes any other character as it is.
    return json.dumps(text, ensure_ascii=False)
