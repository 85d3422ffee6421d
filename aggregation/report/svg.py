"""Panels of curves as SVG text, which needs no library."""

import math
from collections.abc import Sequence
from html import escape

from coterie.aggregation.report.panels import Panel, Series

# Colours that stay apart for most eyes; a curve has the colour of its place in the panel.
COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#ccbb44", "#66ccee", "#777777", "#000000")
_NOTED = "#994455"
_WIDE, _HIGH = 420, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 30, 44
_HEAD = 40
_TICKS = 5
_LINE = 14


def svg(title: str, panels: Sequence[Panel], *, columns: int = 3) -> str:
    """The panels side by side, ``columns`` to a line, under a title."""
    lines = max(1, math.ceil(len(panels) / columns))
    width, height = _WIDE * max(1, min(columns, len(panels))), _HEAD + _HIGH * lines
    drawn = [
        f'<g transform="translate({_WIDE * (at % columns)} {_HEAD + _HIGH * (at // columns)})">{_panel(panel)}</g>'
        for at, panel in enumerate(panels)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
            '<rect width="100%" height="100%" fill="white"/>',
            f'<text x="{_LEFT}" y="26" font-size="16">{escape(title)}</text>',
            *drawn,
            "</svg>\n",
        ]
    )


def ticks(low: float, high: float) -> list[float]:
    """Round numbers, two to seven of them, that lie between two bounds."""
    rough = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _panel(panel: Panel) -> str:
    points = [point for series in panel.series for point in series.points]
    first, last = min(round for round, _ in points), max(round for round, _ in points)
    low, high = _bounds([value for _, value in points], from_zero=panel.from_zero)
    legend = _legend([series.name for series in panel.series])
    base = _HIGH - _BOTTOM - legend[-1][1]

    def x(round: float) -> float:
        share = 0.5 if last == first else (round - first) / (last - first)
        return _LEFT + share * (_WIDE - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return base - (value - low) / (high - low) * (base - _TOP)

    unit = f" ({panel.unit})" if panel.unit else ""
    parts = [f'<text x="{_LEFT}" y="18" font-size="13">{escape(panel.title + unit)}</text>']
    if panel.note:
        place = f'x="{_WIDE - _RIGHT}" y="18" text-anchor="end"'
        parts.append(f'<text {place} fill="{_NOTED}">{escape(panel.note)}</text>')
    for value in ticks(low, high):
        parts.append(f'<path d="M{_LEFT} {y(value):.1f}H{_WIDE - _RIGHT}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.6g}</text>')
    for round in sorted({math.floor(tick) for tick in ticks(first, last)} if last > first else {first}):
        parts.append(f'<text x="{x(round):.1f}" y="{base + 15}" text-anchor="middle">{round}</text>')
    for round in panel.marks:
        if first <= round <= last:
            parts.append(f'<path d="M{x(round):.1f} {_TOP}V{base}" stroke="#999" stroke-dasharray="3 3"/>')
    parts.append(f'<path d="M{_LEFT} {_TOP}V{base}H{_WIDE - _RIGHT}" fill="none" stroke="#333"/>')
    for place, (series, (at, down)) in enumerate(zip(panel.series, legend, strict=True)):
        if not series.points:
            continue
        colour = COLOURS[place % len(COLOURS)]
        line = " ".join(f"{x(round):.1f},{y(value):.1f}" for round, value in series.points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" {_weight(series)}/>')
        if len(series.points) == 1:
            round, value = series.points[0]
            parts.append(f'<circle cx="{x(round):.1f}" cy="{y(value):.1f}" r="3" fill="{colour}"/>')
        parts.append(f'<path d="M{at} {base + down + 32}h16" stroke="{colour}" {_weight(series)}/>')
        parts.append(f'<text x="{at + 20}" y="{base + down + 36}">{escape(series.name)}</text>')
    return "\n".join(parts)


def _legend(names: Sequence[str]) -> list[tuple[int, int]]:
    """Where each name of a legend begins: to the right, and down from its first line."""
    places: list[tuple[int, int]] = []
    at, down = _LEFT, 0
    for name in names:
        wide = 30 + 6 * len(name)
        if places and at + wide > _WIDE:
            at, down = _LEFT, down + _LINE
        places.append((at, down))
        at += wide
    return places


def _weight(series: Series) -> str:
    return 'stroke-width="1" stroke-opacity="0.55"' if series.faint else 'stroke-width="2"'


def _bounds(values: Sequence[float], *, from_zero: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    low = min(low, 0.0) if from_zero else low
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return (low if from_zero else low - margin), high + margin
