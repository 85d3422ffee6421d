"""What a party keeps for its report: which messages it has opened, and what each step tells. It outlives the session's
keys.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from coterie.client_sdk.device.database import ClientDatabase
from coterie.protocol.disclosures import Disclosure

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS opened (
    session TEXT NOT NULL, stage TEXT NOT NULL, sender TEXT NOT NULL, sequence INTEGER NOT NULL,
    sealed TEXT NOT NULL, size INTEGER NOT NULL, step TEXT NOT NULL,
    PRIMARY KEY (session, stage, sender, sequence)
);
CREATE TABLE IF NOT EXISTS steps (
    session TEXT NOT NULL, stage TEXT NOT NULL, step TEXT NOT NULL, done INTEGER NOT NULL,
    PRIMARY KEY (session, stage, step)
);
CREATE TABLE IF NOT EXISTS disclosures (
    session TEXT NOT NULL, stage TEXT NOT NULL, step TEXT NOT NULL, disclosure TEXT NOT NULL,
    PRIMARY KEY (session, stage, step, disclosure)
)
"""
StepKey: TypeAlias = tuple[str, str]
"""Stage and step."""


@dataclass(frozen=True)
class PassedMessage:
    """A message that this party sent or opened.

    partner: the other role.
    sealed: SHA-256 of its sealed bytes, hex.
    size: how many.
    is_confirmed: of one that was sent, whether the coordinator has said that it has it.
    """

    stage: str
    partner: str
    sequence: int
    sealed: str
    size: int
    step: str
    is_confirmed: bool = True


class PartyRecord:
    """Rows of a party's database."""

    def __init__(self, database: ClientDatabase) -> None:
        self._database = database

    def add_opened(self, session: str, message: PassedMessage) -> None:
        """Keep that a message was opened whole; what came before of the same number is the same message."""
        values = (session, message.stage, message.partner, message.sequence, message.sealed, message.size, message.step)
        with self._database.transaction() as database:
            database.execute("INSERT OR IGNORE INTO opened VALUES (?, ?, ?, ?, ?, ?, ?)", values)

    def opened(self, session: str) -> Iterator[PassedMessage]:
        """What was opened, by stage, sender and number."""
        columns = "stage, sender, sequence, sealed, size, step"
        query = f"SELECT {columns} FROM opened WHERE session = ? ORDER BY stage, sender, sequence"
        for row in self._database.execute(query, (session,)):
            yield PassedMessage(*row)

    def sent(self, session: str) -> Iterator[PassedMessage]:
        """What was sealed, by stage, recipient and number."""
        columns = "stage, recipient, sequence, sealed, size, step, sent"
        query = f"SELECT {columns} FROM outbox WHERE session = ? ORDER BY stage, recipient, sequence"
        for row in self._database.execute(query, (session,)):
            yield PassedMessage(*row[:6], is_confirmed=bool(row[6]))

    def acknowledged(self, session: str) -> dict[tuple[str, str], int]:
        """How many messages count as worked in, by stage and sender."""
        query = "SELECT stage, sender, next FROM inbox WHERE session = ?"
        return {(stage, sender): count for stage, sender, count in self._database.execute(query, (session,))}

    def disclose(self, session: str, stage: str, disclosures: Iterable[Disclosure]) -> None:
        """Keep what steps tell, before they tell it. What was said once is never taken back."""
        told = [(each.step, each.model_dump_json()) for each in disclosures]
        with self._database.transaction() as database:
            for step, text in told:
                database.execute("INSERT OR IGNORE INTO steps VALUES (?, ?, ?, 0)", (session, stage, step))
                place = (session, stage, step)
                added = database.execute("INSERT OR IGNORE INTO disclosures VALUES (?, ?, ?, ?)", (*place, text))
                if added.rowcount:  # a step that says more goes on
                    query = "UPDATE steps SET done = 0 WHERE session = ? AND stage = ? AND step = ?"
                    database.execute(query, place)

    def finish(self, session: str, stage: str, step: str) -> None:
        """Keep that a step came to its end."""
        with self._database.transaction() as database:
            query = "UPDATE steps SET done = 1 WHERE session = ? AND stage = ? AND step = ?"
            database.execute(query, (session, stage, step))

    def steps(self, session: str) -> dict[StepKey, bool]:
        """Whether each step that told something came to its end, in the order in which they began."""
        query = "SELECT stage, step, done FROM steps WHERE session = ? ORDER BY rowid"
        return {(stage, step): bool(done) for stage, step, done in self._database.execute(query, (session,))}

    def disclosures(self, session: str) -> Iterator[tuple[str, Disclosure]]:
        """What was told, with the stage, in the order in which it was said."""
        query = "SELECT stage, disclosure FROM disclosures WHERE session = ? ORDER BY rowid"
        for stage, text in self._database.execute(query, (session,)):
            yield stage, Disclosure.model_validate_json(text)
