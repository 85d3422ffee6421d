"""What a command says: tables and sentences for people, JSON lines for programs."""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON lines on standard output; sentences go to stderr.")
]


def jsonable(value: Any) -> Any:
    """The same value for JSON: tuples become lists, and NaN or infinity, which JSON does not have, become null."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {str(key): jsonable(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case list() | tuple():
            return [jsonable(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)


@dataclass(frozen=True)
class Output:
    """Where a command's words go. With json, standard output carries JSON lines and nothing else."""

    json: bool

    def event(self, event: str, **fields: Any) -> None:
        """One JSON line; people do not see it."""
        if self.json:
            print(json.dumps(jsonable({"event": event, **fields}), allow_nan=False), flush=True)

    def say(self, text: str = "") -> None:
        """A sentence for people."""
        print(text, file=sys.stderr if self.json else sys.stdout, flush=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str) -> None:
        """A table for people; the sentence `empty`, which names the next command, where there are no rows."""
        if self.json:
            return
        if not rows:
            self.say(empty)
            return
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            # As text: a cell such as coterie[server] is no markup.
            table.add_row(*(Text("-" if cell is None else str(cell)) for cell in row))
        Console().print(table)


def size(count: float | None) -> str:
    """A number of bytes for people: 1.2 MB."""
    if count is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return "-"


def figure(value: float | None, digits: int = 4) -> str:
    """A metric for people; a dash where it was not measured."""
    return "-" if value is None else f"{value:.{digits}f}"


def short_id(identifier: str) -> str:
    """The start of an id that no other has: the kind and the millisecond in which it was made."""
    kind, _, digits = identifier.partition("_")
    return f"{kind}_{digits[:12]}"
