"""Places for boxes in layers, after Sugiyama, Tagawa and Toda (1981): every arrow points down, long ones bend around
the boxes between (unless they are very long), and neighbours stand near each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_SWEEPS = 8
_GAP, _RISE = 18.0, 34.0  # between boxes of a layer, and between layers
_THREAD = 6.0  # the width that a long arrow takes in a layer that it crosses
_FAR = 40  # layers; an arrow across more goes straight, behind the boxes, or there would be more bends than boxes

Size = tuple[float, float]
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Layout:
    """The upper left corner of every box, the points of every arrow, and the size of all."""

    corners: tuple[Point, ...]
    paths: tuple[tuple[Point, ...], ...]
    size: Size


def arranged(sizes: Sequence[Size], arrows: Sequence[tuple[int, int]], late: Sequence[bool]) -> Layout:
    """The layout of boxes. Arrows go from an earlier box to a later one. late: boxes that stand just above the first
    that they point to, instead of as high as they can.
    """
    if not sizes:
        return Layout((), (), (0.0, 0.0))
    layers = _layers(len(sizes), arrows, late)
    threads, width = _threads(arrows, layers, [size[0] for size in sizes])
    rows: list[list[int]] = [[] for _ in range(max(layers) + 1)]
    for item, layer in enumerate(layers):
        rows[layer].append(item)
    links = [
        (upper, lower)
        for thread in threads
        for upper, lower in zip(thread, thread[1:], strict=False)
        if layers[lower] - layers[upper] == 1
    ]
    above, below = _neighbours(len(layers), links)
    _order(rows, above, below)
    centres = _centres(rows, width, above, below)
    heights = [max((sizes[item][1] for item in row if item < len(sizes)), default=0.0) for row in rows]
    tops = [sum(heights[:row]) + _RISE * row for row in range(len(rows))]
    corners = tuple((centres[i] - size[0] / 2, tops[layers[i]]) for i, size in enumerate(sizes))
    paths = tuple(_path(thread, len(sizes), sizes, corners, centres, layers, tops, heights) for thread in threads)
    right = max(centres[i] + width[i] / 2 for i in range(len(width)))
    return Layout(corners, paths, (right, tops[-1] + heights[-1]))


def _layers(count: int, arrows: Sequence[tuple[int, int]], late: Sequence[bool]) -> list[int]:
    """The longest way from the top; a late box then sinks."""
    layers = [0] * count
    for start, end in sorted(arrows, key=lambda arrow: arrow[1]):
        layers[end] = max(layers[end], layers[start] + 1)
    highest: dict[int, int] = {}  # the layer of the first box that each points to
    for start, end in arrows:
        highest[start] = min(layers[end], highest.get(start, layers[end]))
    for item in range(count):
        if late[item] and item in highest:
            layers[item] = highest[item] - 1
    lowest = min(layers)
    return [layer - lowest for layer in layers]


def _threads(
    arrows: Sequence[tuple[int, int]], layers: list[int], widths: list[float]
) -> tuple[list[list[int]], list[float]]:
    """Each arrow as a row of items, one in each layer; new items, appended to ``layers``, stand in those between."""
    threads: list[list[int]] = []
    width = list(widths)
    for start, end in arrows:
        thread = [start]
        crossed = range(layers[start] + 1, layers[end])
        for layer in crossed if len(crossed) < _FAR else ():
            thread.append(len(layers))
            layers.append(layer)
            width.append(_THREAD)
        threads.append([*thread, end])
    return threads, width


def _neighbours(count: int, links: Sequence[tuple[int, int]]) -> tuple[list[list[int]], list[list[int]]]:
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for upper, lower in links:
        below[upper].append(lower)
        above[lower].append(upper)
    return above, below


def _order(rows: list[list[int]], above: list[list[int]], below: list[list[int]]) -> None:
    """Sort every row by the mean place of its neighbours in the row before, down and up in turn."""
    place = {item: float(index) for row in rows for index, item in enumerate(row)}
    for sweep in range(_SWEEPS):
        near = below if sweep % 2 else above
        for row in reversed(rows) if sweep % 2 else rows:
            mean = {item: _mean([place[n] for n in near[item]], place[item]) for item in row}
            row.sort(key=lambda item: (mean[item], place[item]))
            place.update({item: float(index) for index, item in enumerate(row)})


def _mean(numbers: Sequence[float], otherwise: float) -> float:
    return sum(numbers) / len(numbers) if numbers else otherwise


def _centres(rows: list[list[int]], width: list[float], above: list[list[int]], below: list[list[int]]) -> list[float]:
    """Middles of all items: each wants to stand at the mean of its neighbours, and none may touch the next."""
    centres = [0.0] * len(width)
    for row in rows:
        edge = 0.0
        for item in row:
            centres[item] = edge + width[item] / 2
            edge += width[item] + _GAP
    for sweep in range(_SWEEPS):
        near = below if sweep % 2 else above
        for row in reversed(rows) if sweep % 2 else rows:
            wanted = [_mean([centres[n] for n in near[item]], centres[item]) for item in row]
            _settle(row, wanted, width, centres)
    left = min(centre - width[item] / 2 for item, centre in enumerate(centres))
    return [centre - left for centre in centres]


def _settle(row: list[int], wanted: list[float], width: list[float], centres: list[float]) -> None:
    """Give each item of a row the middle between the places that it gets pushed from the left and from the right."""
    count = len(row)
    apart = [(width[a] + width[b]) / 2 + _GAP for a, b in zip(row, row[1:], strict=False)]
    right, left = list(wanted), list(wanted)
    for index in range(1, count):
        right[index] = max(right[index], right[index - 1] + apart[index - 1])
    for index in reversed(range(count - 1)):
        left[index] = min(left[index], left[index + 1] - apart[index])
    for index, item in enumerate(row):
        centres[item] = (right[index] + left[index]) / 2


def _path(
    thread: Sequence[int],
    boxes: int,
    sizes: Sequence[Size],
    corners: Sequence[Point],
    centres: Sequence[float],
    layers: Sequence[int],
    tops: Sequence[float],
    heights: Sequence[float],
) -> tuple[Point, ...]:
    start, end = thread[0], thread[-1]
    points: list[Point] = [(centres[start], corners[start][1] + sizes[start][1])]
    for item in thread[1:-1]:
        layer = layers[item]
        points += [(centres[item], tops[layer]), (centres[item], tops[layer] + heights[layer])]
    return (*points, (centres[end], corners[end][1]))
