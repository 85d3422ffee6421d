"""A graph as one SVG file."""

from dataclasses import dataclass
from xml.sax.saxutils import escape

from coterie.compute.drawing.layout import Layout, Point, Size, arranged
from coterie.compute.drawing.parts import Box, picture
from coterie.compute.ir import Graph, require_graph

_LETTER, _LINE, _MARGIN = 6.6, 15.0, 10.0  # pixels: the width of a letter, the height of a line, the inner margin
_STYLE = (
    "text{font:11px sans-serif;text-anchor:middle}.note{font-size:9px;fill:#555}"
    ".input rect,.output rect{fill:#e8f0fb;stroke:#4a74b0}.node>rect{fill:#fff;stroke:#333}"
    ".constant>rect{fill:#f4f4f4;stroke:#bbb}.holder>rect{fill:#fbf7ea;stroke:#a08a40}"
    ".inner>rect{fill:#fff;stroke:#a08a40;stroke-dasharray:4 3}"
    "path{fill:none;stroke:#888}"
)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Markup whose upper left corner is at the origin, and its size."""

    markup: str
    size: Size


def to_svg(graph: Graph) -> str:
    """The graph as SVG text: a box for every input, node and output, arrows downwards in the order of evaluation. The
    graphs of loops, choices and calls stand inside their nodes. Titles (shown by browsers under the pointer) are the
    user's lines.
    """
    require_graph("to_svg", graph)
    drawn = _graph(graph)
    width, height = (side + 2 * _MARGIN for side in drawn.size)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
    arrow = (
        '<marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<polygon points="0,0 8,4 0,8" fill="#888"/></marker>'
    )
    return (
        f'{head} viewBox="0 0 {width:.0f} {height:.0f}"><style>{_STYLE}</style><defs>{arrow}</defs>'
        f'<rect width="100%" height="100%" fill="#fff"/>{_moved(drawn.markup, (_MARGIN, _MARGIN))}</svg>\n'
    )


def _graph(graph: Graph) -> _Drawn:
    shown = picture(graph)
    boxes = [_box(box) for box in shown.boxes]
    layout: Layout = arranged(
        [b.size for b in boxes], shown.arrows, [b.role in ("input", "constant") for b in shown.boxes]
    )
    parts = [_arrow(path) for path in layout.paths]
    parts += [_moved(box.markup, corner) for box, corner in zip(boxes, layout.corners, strict=True)]
    return _Drawn("".join(parts), layout.size)


def _box(box: Box) -> _Drawn:
    inner = [(name, _graph(held)) for name, held in box.graphs]
    lines = 1 + bool(box.note)
    width = max(len(box.title) * _LETTER, len(box.note) * _LETTER * 0.8, 30.0) + 2 * _MARGIN
    height = lines * _LINE + 6.0
    below = height
    if inner:
        width = max(width, sum(d.size[0] + 2 * _MARGIN for _, d in inner) + _MARGIN * (len(inner) + 1))
        height += max(d.size[1] for _, d in inner) + _LINE + 3 * _MARGIN
    parts = [f'<g class="{box.role}"><title>{escape(box.source or box.title)}</title>']
    rounding = height / 2 if box.role in ("input", "output") else 3.0
    parts.append(f'<rect width="{width:.1f}" height="{height:.1f}" rx="{rounding:.1f}"/>')
    parts.append(f'<text x="{width / 2:.1f}" y="{_LINE:.1f}">{escape(box.title)}</text>')
    if box.note:
        parts.append(f'<text class="note" x="{width / 2:.1f}" y="{2 * _LINE:.1f}">{escape(box.note)}</text>')
    left = _MARGIN
    for name, drawn in inner:
        parts.append(_moved(_framed(name, drawn), (left, below)))
        left += drawn.size[0] + 3 * _MARGIN
    return _Drawn("".join([*parts, "</g>"]), (width, height))


def _framed(name: str, drawn: _Drawn) -> str:
    width, height = drawn.size[0] + 2 * _MARGIN, drawn.size[1] + _LINE + 2 * _MARGIN
    return (
        f'<g class="inner"><rect width="{width:.1f}" height="{height:.1f}" rx="6"/>'
        f'<text x="{width / 2:.1f}" y="{_LINE:.1f}">{escape(name)}</text>'
        f"{_moved(drawn.markup, (_MARGIN, _LINE + _MARGIN))}</g>"
    )


def _arrow(points: tuple[Point, ...]) -> str:
    """A curve through the points that leaves and enters boxes vertically."""
    x, y = points[0]
    parts = [f"M{x:.1f} {y:.1f}"]
    for at, (to_x, to_y) in enumerate(points[1:], 1):
        if at % 2:  # across the space between two layers
            middle = (y + to_y) / 2
            parts.append(f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}")
        else:  # straight through a layer
            parts.append(f"L{to_x:.1f} {to_y:.1f}")
        x, y = to_x, to_y
    return f'<path d="{"".join(parts)}" marker-end="url(#arrow)"/>'


def _moved(markup: str, by: Point) -> str:
    return f'<g transform="translate({by[0]:.1f} {by[1]:.1f})">{markup}</g>'
