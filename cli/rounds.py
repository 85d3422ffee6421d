"""The live table of rounds, the same for a demo, a simulation and a run on a coordinator."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from coterie.cli.output import Output, figure, size

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

COLUMNS = ("round", "state", "ok/failed", "loss", "accuracy", "up", "down", "sec")
# Of the plain lines; together with the spaces between them they fit 80 columns.
_WIDTHS = (5, 16, 9, 6, 8, 8, 8, 6)
# Lines of the drawn table that are not rounds.
_FRAME = 6


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """One round's event as the cells of its line."""
    state = str(row["state"]) if not row.get("cause") else f"{row['cause']}"
    return (
        str(row["round"]),
        state,
        f"{row.get('accepted', 0)}/{row.get('failed', 0)}",
        figure(row.get("loss")),
        figure(row.get("accuracy")),
        size(row.get("bytes_up")),
        size(row.get("bytes_down")),
        figure(row.get("seconds"), 2),
    )


@dataclass
class RoundTable:
    """A context in which rounds appear as they end.

    On a terminal the table is drawn anew with every round; into a pipe each round is one line of text; with JSON each
    round is its event. The mutable fields are the drawn rows and the live display.
    """

    output: Output
    title: str
    rows: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    _live: "Live | None" = None

    def __enter__(self) -> Self:
        if self.output.json:
            return self
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(draw(self.title, self.rows), auto_refresh=False)
            self._live.__enter__()
        else:
            self.output.say(self.title)
            self.output.say(_line(COLUMNS))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(draw(self.title, self.rows))
            self._live.__exit__(kind, error, trace)
            self._live = None

    def add(self, row: Mapping[str, Any]) -> None:
        """Show one more round."""
        self.rows.append(row)
        if self.output.json:
            self.output.event("round", **{key: value for key, value in row.items() if key != "event"})
        elif self._live is not None:
            shown = in_sight(self.rows, self._live.console.height)
            self._live.update(draw(self.title, shown), refresh=True)
        else:
            self.output.say(_line(cells(row)))


def in_sight(rows: Sequence[Mapping[str, Any]], height: int) -> Sequence[Mapping[str, Any]]:
    """The newest rounds, as many as a terminal of this height can show below the head of the table."""
    return rows[-max(1, height - _FRAME) :]


def draw(title: str, rows: Sequence[Mapping[str, Any]]) -> "Table":
    """The rounds as a table of at most 80 columns, but for a long cause."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "state" else "right", no_wrap=column != "state")
    for row in rows:
        table.add_row(*cells(row))
    return table


def _line(words: tuple[str, ...]) -> str:
    return "  ".join(word.rjust(width) for word, width in zip(words, _WIDTHS, strict=True))
