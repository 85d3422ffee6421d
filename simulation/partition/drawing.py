"""The picture of a partition: one bar per client, as high as its rows, in the colours of its classes."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.errors import ConfigurationError
from coterie.protocol.files import make_folder, write_durably
from coterie.simulation.partition.skew import Skew

# Ten colours that stay apart for most eyes, and in grey; more classes repeat them.
COLOURS = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#ee7733", "#009988", "#332288",
)  # fmt: skip
MOST_NAMED = 20
ENDINGS = (".svg", ".png", ".pdf", ".jpg")
_WIDTH, _HEIGHT, _LEFT, _TOP, _LEGEND = 760, 300, 60, 46, 130


@dataclass(frozen=True, kw_only=True)
class Picture:
    """What a picture shows of a partition.

    method, parameters: the partitioner, and what it was given.
    skew: how much the clients' labels differ.
    classes: of the labels; none where these are unknown.
    sizes: rows of each client.
    counts: rows by client and class.
    """

    method: str
    parameters: Mapping[str, Any]
    skew: Skew
    classes: tuple[str, ...]
    sizes: tuple[int, ...]
    counts: NDArray[np.int64]


def title(picture: Picture) -> str:
    """What the partition is, in one line."""
    told = {name: value for name, value in picture.parameters.items() if isinstance(value, int | float)}
    given = "".join(f", {name} {value:g}" for name, value in told.items())
    skew = picture.skew
    labels = f", EMD {skew.mean_emd:.2f}, JS {skew.mean_js:.2f}" if picture.classes else ""
    return f"{picture.method}{given}: {len(picture.sizes)} clients, {sum(picture.sizes)} rows{labels}"


def stacks(picture: Picture) -> NDArray[np.int64]:
    """Rows by client and class; one class of all rows where labels are unknown."""
    return picture.counts if picture.classes else np.array(picture.sizes, np.int64)[:, None]


def svg(picture: Picture) -> str:
    """The picture as SVG text, which needs no library."""
    counts = stacks(picture)
    most = int(counts.sum(axis=1).max())
    width = _WIDTH / len(counts)
    bars: list[str] = []
    for client, row in enumerate(counts):
        top = _TOP + _HEIGHT
        for at in np.flatnonzero(row).tolist():
            high = _HEIGHT * int(row[at]) / most
            top -= high
            x, wide = _LEFT + client * width, max(width * 0.86, min(width, 0.6))
            bars.append(
                f'<rect x="{x:.2f}" y="{top:.2f}" width="{wide:.2f}" height="{high:.2f}" '
                f'fill="{COLOURS[at % len(COLOURS)]}"/>'
            )
    named = picture.classes if len(picture.classes) <= MOST_NAMED else ()
    legend = [
        f'<rect x="{_LEFT + _WIDTH + 16}" y="{_TOP + 16 * at}" width="10" height="10" '
        f'fill="{COLOURS[at % len(COLOURS)]}"/>'
        f'<text x="{_LEFT + _WIDTH + 32}" y="{_TOP + 16 * at + 9}">{escape(_short(name))}</text>'
        for at, name in enumerate(named)
    ]
    base = _TOP + _HEIGHT
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + _LEGEND}" height="{base + 40}" '
            'font-family="sans-serif" font-size="12">',
            '<rect width="100%" height="100%" fill="white"/>',
            f'<text x="{_LEFT}" y="24" font-size="14">{escape(title(picture))}</text>',
            *bars,
            f'<path d="M{_LEFT} {_TOP}V{base}H{_LEFT + _WIDTH}" fill="none" stroke="#333"/>',
            f'<text x="{_LEFT - 6}" y="{_TOP + 4}" text-anchor="end">{most}</text>',
            f'<text x="{_LEFT - 6}" y="{base}" text-anchor="end">0</text>',
            f'<text x="{_LEFT}" y="{base + 18}">client 0</text>',
            f'<text x="{_LEFT + _WIDTH}" y="{base + 18}" text-anchor="end">client {len(counts) - 1}</text>',
            *legend,
            "</svg>\n",
        ]
    )


def _short(name: str) -> str:
    """A class's name in the room that the legend has. What tells names apart often stands at their end."""
    return name if len(name) <= 14 else f"{name[:6]}…{name[-7:]}"


def draw(picture: Picture, path: Path) -> Path:
    """Write the picture; the ending of the path, one of ``ENDINGS``, says how.

    Raises ConfigurationError (``extra_missing``).
    """
    make_folder(path.parent)
    if path.suffix.lower() == ".svg":
        write_durably(path, svg(picture).encode())
        return path
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise ConfigurationError(
            f"Drawing {path.name} needs matplotlib, which is not installed.",
            hint='Run: pip install "coterie[plot]", or name a file that ends in .svg.',
            code="extra_missing",
        ) from error
    counts = stacks(picture)
    figure: Any = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    below = np.zeros(len(counts), np.int64)
    for at in range(counts.shape[1]):
        name = picture.classes[at] if picture.classes and len(picture.classes) <= MOST_NAMED else None
        axes.bar(
            np.arange(len(counts)), counts[:, at], bottom=below, width=0.86, label=name,
            color=COLOURS[at % len(COLOURS)],
        )  # fmt: skip
        below += counts[:, at]
    axes.set(title=title(picture), xlabel="client", ylabel="rows")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if 0 < len(picture.classes) <= MOST_NAMED:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    figure.savefig(path, dpi=120)
    return path
