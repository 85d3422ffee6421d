"""Holds transactions to the order of locks that `coterie.server.store.experiments` asks for.

SQLite has no rows to lock, so the order is read off the statements: PostgreSQL would lock what they change, and what
they select for a change. Every engine of this process is watched.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, Table, event
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Compiled, ExecutionContext
from sqlalchemy.sql import Delete, Insert, Select, Update

FIRST: Final = ("experiments", "rounds")
"""Locked before anything else is, and changed under that lock only."""
ORDER: Final = (*FIRST, "attempts", "tasks")
BEGIN: Final = {"BEGIN": True, "BEGIN IMMEDIATE": False}
"""How transactions begin (`coterie.server.store.engine`), and whether they only read."""
POSTGRESQL: Final = postgresql.dialect()
KNOWN: Final = WeakKeyDictionary[Compiled, "Locks | None"]()
"""What compiled statements lock, as far as they were seen."""


@dataclass(frozen=True)
class Locks:
    """What a statement locks: rows that it selects for a change, that it adds, or that it changes or deletes."""

    how: Literal["lock", "add", "change"]
    table: str

    def __str__(self) -> str:
        return f"{self.how} {self.table}"


@dataclass
class Transaction:
    """One that is under way. taken: what its statements have locked, in their order."""

    reads: bool
    taken: list[Locks] = field(default_factory=list[Locks])

    def take(self, locks: Locks) -> str | None:
        """Note what a statement locks; what is wrong with it, if anything."""
        wrong = self._wrong(locks)
        self.taken.append(locks)
        return None if wrong is None else f"{wrong}: {', '.join(map(str, self.taken))}"

    def _wrong(self, locks: Locks) -> str | None:
        if self.reads:
            return "a transaction that reads locks rows"
        if locks.table not in ORDER:
            return None
        place = ORDER.index(locks.table)
        known = {each.table for each in self.taken}
        own = {each.table for each in self.taken if each.how != "change"}
        if locks.table in FIRST and locks.how == "lock":
            if locks in self.taken:
                return f"{locks.table} are locked twice"  # the second row may come before the first in the order
            if known - set(ORDER[:place]):
                return f"{locks.table} are locked too late"
        if locks.table == "rounds" and "experiments" not in own:
            return "rounds are reached without a lock of their experiment"
        if locks.table in FIRST and locks.how == "change" and locks.table not in own:
            return f"{locks.table} are changed without a lock"
        # What was locked by its turn may be changed at any time.
        if locks.table not in known and known.intersection(ORDER[place + 1 :]):
            return f"{locks.table} are locked too late"
        return None


@contextmanager
def watched(tell: Callable[[str], None]) -> Generator[None]:
    """Tell of every statement that goes against the order, as it is executed."""
    under_way = WeakKeyDictionary[Connection, Transaction]()

    def see(connection: Connection, _cursor: object, text: str, _parameters: object, context: Any, _many: bool) -> None:
        if text in BEGIN:
            under_way[connection] = Transaction(BEGIN[text])
            return
        compiled = context.compiled if isinstance(context, ExecutionContext) else None
        if compiled is None or connection not in under_way:
            return
        if compiled not in KNOWN:
            KNOWN[compiled] = locks_of(compiled.statement)
        locks = KNOWN[compiled]
        wrong = None if locks is None else under_way[connection].take(locks)
        if wrong is not None:
            tell(wrong)

    event.listen(Engine, "before_cursor_execute", see)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", see)


@contextmanager
def in_order() -> Generator[None]:
    """Fail at the end when a transaction has gone against the order."""
    wrong: list[str] = []
    with watched(wrong.append):
        yield
    assert not wrong, "\n".join(sorted(set(wrong)))


@contextmanager
def told_to(file: Path) -> Generator[None]:
    """Append what goes against the order to a file, which outlives a process that is killed."""

    def tell(wrong: str) -> None:
        with file.open("a") as lines:
            lines.write(f"{wrong}\n")

    with watched(tell):
        yield


def check_told(file: Path) -> None:
    """Fail where processes have written to a file by `told_to`."""
    assert not file.exists(), "\n".join(sorted(set(file.read_text().splitlines())))


def locks_of(statement: Any) -> Locks | None:
    """What PostgreSQL would lock for a statement."""
    if isinstance(statement, Update | Insert | Delete):
        return Locks("add" if isinstance(statement, Insert) else "change", str(statement.table))
    if isinstance(statement, Select) and " FOR " in str(statement.compile(dialect=POSTGRESQL)):
        (table,) = statement.get_final_froms()
        assert isinstance(table, Table), "a query that locks rows of several tables has no order"
        return Locks("lock", table.name)
    return None
