"""A device's memory of its attempts of secure aggregation.

A row holds the client machine's state, secrets and all, and the one message that this state has to send. They change in
one transaction, before the message leaves; so a device that was killed sends the same message again, and never another
one for the same phase. Both are erased when the attempt is over; what the device gave away by it stays as history.
"""

import json
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

from coterie.client_sdk.device.database import ClientDatabase
from coterie.errors import PolicyRefused
from coterie.protocol.canonical import canonical_json, sha256_hex

MessageKind = Literal["keys", "shares", "masked", "agreement", "reveal"]
AFTER_MASKING: Final = frozenset(("masked", "agreement", "reveal"))
"""Messages at which the coordinator may hold the masked vector, so that only it knows whether the round counts it."""

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS attempts (
    task TEXT PRIMARY KEY, attempt TEXT NOT NULL, mode TEXT NOT NULL, clients INTEGER NOT NULL DEFAULT 0, survivors
    INTEGER NOT NULL DEFAULT 0, sent TEXT NOT NULL DEFAULT '', outcome TEXT NOT NULL DEFAULT '', message TEXT NOT NULL
    DEFAULT '', body TEXT NOT NULL DEFAULT '', state TEXT NOT NULL DEFAULT '', vector TEXT NOT NULL DEFAULT '', digest
    TEXT NOT NULL DEFAULT '', at REAL NOT NULL);
"""

# Whatever was to be sent may have left once the next message is made, or the attempt is over.
_LEFT: Final = "sent = trim(sent || ' ' || message)"


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """An attempt that goes on.

    attempt, mode: of its terms.
    message: the kind of what is to be sent now.
    body: that message as JSON text, empty for the masked vector, which is a file.
    state: of the client machine, secret.
    vector: SHA-256 of the vector in clear, which lies in a file until it is masked; empty from then on.
    clients, survivors: how many there are in the roster and in the sum, 0 as long as that is not known.
    """

    attempt: str
    mode: str
    message: MessageKind
    body: str = field(repr=False)
    state: Mapping[str, Any] = field(repr=False)
    vector: str
    clients: int = 0
    survivors: int = 0


class AttemptRows:
    """The rows of attempts, by task."""

    def __init__(self, database: ClientDatabase) -> None:
        self._database = database

    def begin(self, connection: sqlite3.Connection, task: str, record: AttemptRecord) -> None:
        """Within a transaction: the first state and message of a task's attempt."""
        connection.execute(
            "INSERT INTO attempts (task, attempt, mode, at) VALUES (?, ?, ?, ?)",
            (task, record.attempt, record.mode, time.time()),
        )
        self.write(connection, task, record)

    def advance(self, task: str, record: AttemptRecord) -> None:
        """The next state and message; durable when this returns."""
        with self._database.transaction() as connection:
            self.write(connection, task, record)

    def write(self, connection: sqlite3.Connection, task: str, record: AttemptRecord) -> None:
        """Within a transaction: the next state and message."""
        state = canonical_json(record.state).decode()
        digest = _digest(task, record.attempt, record.message, record.body, state, record.vector)
        values = (record.message, record.body, state, record.vector, record.clients, record.survivors, digest)
        connection.execute(
            f"UPDATE attempts SET {_LEFT}, message = ?, body = ?, state = ?, vector = ?, clients = ?, survivors = ?,"
            " digest = ?, at = ? WHERE task = ?",
            (*values, time.time(), task),
        )

    def message(self, task: str) -> str:
        """The kind of message that the task's attempt sends or sent last; empty without one that goes on."""
        row = self._database.execute("SELECT message FROM attempts WHERE task = ?", (task,)).fetchone()
        return "" if row is None else str(row[0])

    def load(self, task: str) -> AttemptRecord:
        """The attempt as it was left.

        Raises PolicyRefused (``attempt_lost``) when there is none, or when it is not what was written: whoever cannot
        know what he has answered must not answer again.
        """
        row = self._database.execute(
            "SELECT attempt, mode, message, body, state, vector, clients, survivors, digest FROM attempts"
            " WHERE task = ?",
            (task,),
        ).fetchone()
        if row is None or not row[4]:
            raise _attempt_lost(task, "is not in the store any more")
        attempt, mode, message, body, state, vector, clients, survivors, digest = row
        if _digest(task, attempt, message, body, state, vector) != digest:
            raise _attempt_lost(task, "is damaged in the store")
        return AttemptRecord(
            attempt=attempt,
            mode=mode,
            message=cast(MessageKind, message),
            body=body,
            state=cast(dict[str, Any], json.loads(state)),
            vector=vector,
            clients=clients,
            survivors=survivors,
        )

    def end(self, connection: sqlite3.Connection, task: str, outcome: str) -> None:
        """Within a transaction: erase what is secret, and keep what became of it."""
        connection.execute(
            f"UPDATE attempts SET {_LEFT}, state = '', body = '', message = '', vector = '', digest = '',"
            " outcome = CASE outcome WHEN '' THEN ? ELSE outcome END, at = ? WHERE task = ?",
            (outcome, time.time(), task),
        )

    def with_vectors(self) -> set[str]:
        """The tasks whose vector still lies in clear, since it is not masked yet."""
        return {row[0] for row in self._database.execute("SELECT task FROM attempts WHERE vector != ''")}


def _digest(*parts: str) -> str:
    return sha256_hex(canonical_json(list(parts)))


def _attempt_lost(task: str, what: str) -> PolicyRefused:
    return PolicyRefused(
        f"The attempt of task {task} {what}, so this device sends nothing more in it.",
        hint="Check the disk; the device goes on with its next task.",
        code="attempt_lost",
    )
