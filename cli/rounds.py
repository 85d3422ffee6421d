"""The live table of rounds, the same for a demo, a simulation and a run on a coordinator."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from coterie.cli.output import Output, figure, size

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

COLUMNS = ("round", "state", "ok/failed", "loss", "accuracy", "up", "down", "sec")
# What a narrow terminal goes without, the first first: cut cells would say less than absent ones.
_SPARE = ("down", "up", "sec")
# Of the plain lines; together with the spaces between them they fit 80 columns.
_WIDTHS = (5, 16, 9, 6, 8, 8, 8, 6)
# Lines of the drawn table that are not rounds.
_FRAME = 7


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
    _drawn: float = 0.0

    def __enter__(self) -> Self:
        if self.output.json:
            return self
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(auto_refresh=False)
            self._live.update(draw(self.title, self.rows, self._live.console.width))
            self._live.__enter__()
        else:
            self.output.say(self.title)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(draw(self.title, self.rows, self._live.console.width))
            self._live.__exit__(kind, error, trace)
            self._live = None

    def add(self, row: Mapping[str, Any]) -> None:
        """Show one more round."""
        self.rows.append(row)
        if self.output.json:
            self.output.event("round", **{key: value for key, value in row.items() if key != "event"})
        elif self._live is not None:
            self._live.update(self._table(self._live), refresh=True)
        else:
            if len(self.rows) == 1:
                self.output.say(_line(COLUMNS))
            self.output.say(_line(cells(row)))

    def work(self, round: int, kind: str, done: int, total: int) -> None:
        """Show how far the clients of the open round are, on a terminal; ten times a second at most."""
        now = time.monotonic()
        if self._live is None or now - self._drawn < 0.1:
            return
        from rich.columns import Columns
        from rich.console import Group
        from rich.progress_bar import ProgressBar

        self._drawn = now
        told = f"round {round}: {_DOING.get(kind, kind)} {done}/{total}"
        bar = ProgressBar(total=max(total, 1), completed=done, width=24)
        self._live.update(Group(self._table(self._live), Columns([told, bar], padding=(0, 2))), refresh=True)

    def _table(self, live: "Live") -> "Table":
        return draw(self.title, in_sight(self.rows, live.console.height), live.console.width)


_DOING = {"train": "training", "evaluate": "evaluating"}


def in_sight(rows: Sequence[Mapping[str, Any]], height: int) -> Sequence[Mapping[str, Any]]:
    """The newest rounds, as many as a terminal of this height can show below the head of the table."""
    return rows[-max(1, height - _FRAME) :]


def columns_for(rows: Sequence[Mapping[str, Any]], width: int) -> tuple[str, ...]:
    """The columns that fit a terminal of this width, whole."""
    widest = {name: len(name) for name in COLUMNS}
    for row in rows:
        widest |= {name: max(widest[name], len(cell)) for name, cell in zip(COLUMNS, cells(row), strict=True)}
    shown = list(COLUMNS)
    for name in _SPARE:
        if sum(widest[column] + 2 for column in shown) - 2 <= width:
            break
        shown.remove(name)
    return tuple(shown)


def draw(title: str, rows: Sequence[Mapping[str, Any]], width: int = 80) -> "Table":
    """The rounds as a table for a terminal of this width: at most 80 columns wide, but for a long cause."""
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
    shown = columns_for(rows, width)
    for column in shown:
        table.add_column(column, justify="left" if column == "state" else "right", no_wrap=column != "state")
    for row in rows:
        table.add_row(*(cell for name, cell in zip(COLUMNS, cells(row), strict=True) if name in shown))
    return table


def _line(words: tuple[str, ...]) -> str:
    return "  ".join(word.rjust(width) for word, width in zip(words, _WIDTHS, strict=True))
