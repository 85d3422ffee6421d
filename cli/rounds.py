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
# Only where a round tells them: the share of clients shortened to the public norm of a secret sum, and privacy spent.
PRIVATE = ("clipped", "epsilon")
# What a narrow terminal goes without, the first first: cut cells would say less than absent ones.
_SPARE = ("down", "up", "sec")
# Of the plain lines; those of COLUMNS together with the spaces between them fit 80 columns.
_WIDTHS = {
    "round": 5, "state": 16, "ok/failed": 9, "loss": 6, "accuracy": 8, "up": 8, "down": 8, "sec": 6,
    "clipped": 7, "epsilon": 7,
}  # fmt: skip
_WIDE = 80
# Lines of the drawn table that are not rounds.
_FRAME = 7


def cells(row: Mapping[str, Any]) -> dict[str, str]:
    """One round's event as the cells of its line, by column."""
    clipped = row.get("clipped")
    return {
        "round": str(row["round"]),
        "state": _state(row),
        "ok/failed": f"{row.get('accepted', 0)}/{row.get('failed', 0)}",
        "loss": figure(row.get("loss")),
        "accuracy": figure(row.get("accuracy")),
        "up": size(row.get("bytes_up")),
        "down": size(row.get("bytes_down")),
        "sec": figure(row.get("seconds"), 2),
        "clipped": "-" if clipped is None else f"{clipped:.0%}",
        "epsilon": figure(row.get("epsilon"), 3),
    }


def _state(row: Mapping[str, Any]) -> str:
    """How a round ended: committed, or why not."""
    if row["state"] == "abandoned" and row.get("diverged"):
        return "diverged"
    return str(row.get("cause") or row["state"])


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
    _head: tuple[str, ...] = ()
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
            shown = _columns_that_fit(columns_with_values(self.rows), _WIDTHS, _WIDE)
            if shown != self._head:
                self._head = shown
                self.output.say(_line({name: name for name in shown}))
            found = cells(row)
            self.output.say(_line({name: found[name] for name in shown}))

    def work(self, round: int, kind: str, done: int, total: int) -> None:
        """Show how far the clients of the open round are, on a terminal; ten times a second at most."""
        now = time.monotonic()
        if self._live is None or now - self._drawn < 0.1:
            return
        from rich.columns import Columns
        from rich.console import Group
        from rich.progress_bar import ProgressBar

        self._drawn = now
        line = f"round {round}: {_DOING.get(kind, kind)} {done}/{total}"
        bar = ProgressBar(total=max(total, 1), completed=done, width=24)
        self._live.update(Group(self._table(self._live), Columns([line, bar], padding=(0, 2))), refresh=True)

    def _table(self, live: "Live") -> "Table":
        return draw(self.title, in_sight(self.rows, live.console.height), live.console.width)


_DOING = {"train": "training", "evaluate": "evaluating"}


def in_sight(rows: Sequence[Mapping[str, Any]], height: int) -> Sequence[Mapping[str, Any]]:
    """The newest rounds, as many as a terminal of this height can show below the head of the table."""
    return rows[-max(1, height - _FRAME) :]


def columns_with_values(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The columns that these rounds have something to say in."""
    return (*COLUMNS, *(name for name in PRIVATE if any(row.get(name) is not None for row in rows)))


def columns_for(rows: Sequence[Mapping[str, Any]], width: int) -> tuple[str, ...]:
    """The columns that fit a terminal of this width, whole."""
    shown = columns_with_values(rows)
    lines = [{name: name for name in shown}, *map(cells, rows)]
    return _columns_that_fit(shown, {name: max(len(line[name]) for line in lines) for name in shown}, width)


def _columns_that_fit(columns: Sequence[str], widths: Mapping[str, int], room: int) -> tuple[str, ...]:
    shown = list(columns)
    for name in _SPARE:
        if sum(widths[column] + 2 for column in shown) - 2 <= room:
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
        found = cells(row)
        table.add_row(*(found[name] for name in shown))
    return table


def advise(output: Output, rows: Sequence[Mapping[str, Any]]) -> None:
    """Say what these rounds tell about the settings of their experiment, if anything."""
    from coterie.aggregation.history import History
    from coterie.aggregation.report.hints import hints

    for hint in hints(History.from_dicts(rows)):
        output.say(hint)


def _line(words: Mapping[str, str]) -> str:
    return "  ".join(word.rjust(_WIDTHS[name]) for name, word in words.items())
