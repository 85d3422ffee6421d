"""What a role that learns keeps: how far it has come, its part of the model, results of calls, and messages that are
not worked in yet. One file, one process at a time, for this user alone.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, TypeVar

import numpy as np
from pydantic import Field

from coterie.aggregation.plan.stage import TaskName
from coterie.client_sdk.device.database import ClientDatabase
from coterie.errors import ConfigurationError, InputError, StorageError
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.conversion import from_text, to_text
from coterie.protocol.metrics import MetricSums
from coterie.protocol.private_files import make_private_folder
from coterie.protocol.tensors import decode_tensors, encode_tensors

Kind = TypeVar("Kind")

FILE: Final = "learner.db"
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS state (id INTEGER PRIMARY KEY, progress TEXT NOT NULL, tensors BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS results (number INTEGER PRIMARY KEY, call TEXT NOT NULL, tensors BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS received (
    session TEXT NOT NULL, stage TEXT NOT NULL, role TEXT NOT NULL, number INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (session, stage, role, number)
)
"""
_Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, kw_only=True)
class LearnerCall:
    """A call that a role makes, and how far it is.

    number: of the calls in a session, from 0.
    trained: how many trainings were done before it, in all sessions.
    rows, digest: how many rows it is about, and the SHA-256 (hex) of them.
    threads: of one graph run; another number could give other bits.
    agreed: whether all roles have said that they make it.
    step: batches that are done.
    epochs: metric sums of each epoch, the present one last.
    """

    number: _Count
    task: TaskName
    rows: _Count
    digest: str
    threads: int
    trained: _Count = 0
    agreed: bool = False
    step: _Count = 0
    epochs: tuple[Mapping[str, float], ...] = ()

    @property
    def changed_weights(self) -> bool:
        """Whether the part of the model is another by now than when the call began."""
        return self.task == "train" and self.step > 0

    def same_as(self, other: "LearnerCall") -> bool:
        """Whether both are one call, however far each is."""
        return (self.number, self.task, self.digest) == (other.number, other.task, other.digest)

    def counted(self, sums: Mapping[str, float], per_epoch: int) -> "LearnerCall":
        """After one more batch, whose metric sums these are."""
        if self.step % per_epoch == 0:
            return replace(self, step=self.step + 1, epochs=(*self.epochs, MetricSums(sums).sums))
        last = MetricSums(self.epochs[-1]).add(sums).sums
        return replace(self, step=self.step + 1, epochs=(*self.epochs[:-1], last))


def digest_of_rows(arrays: ArraysByName) -> str:
    """SHA-256 of the rows of a call, hex."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}\n".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class RoleProgress:
    """How far a role has come in a plan.

    plan, session: ids.
    done: how many calls of the session are done.
    trained: how many trainings are, in all sessions.
    call: the one that is being made.
    sent, received: messages to and from each role that are worked in.
    left: sessions that the folder was in before this one. It cannot go back: what they know of it is out of date.
    """

    plan: str
    role: str
    session: str
    done: _Count = 0
    trained: _Count = 0
    call: LearnerCall | None = None
    sent: Mapping[str, _Count] = field(default_factory=dict[str, int])
    received: Mapping[str, _Count] = field(default_factory=dict[str, int])
    left: tuple[str, ...] = ()

    def require_not_left(self, session: str, folder: Path) -> None:
        """Raise ConfigurationError (``session_left``) for a session that the folder has left."""
        if session in self.left:
            raise ConfigurationError(
                f"{folder} has left session {session}: it is in session {self.session} now.",
                hint="Go on in that session, or make a new one, in every role.",
                code="session_left",
            )


class LearnerStore:
    """A folder of a role. Raises ConfigurationError when another program uses it, StorageError."""

    def __init__(self, folder: Path) -> None:
        make_private_folder(folder)
        self.folder = folder
        self._database = ClientDatabase(folder, _SCHEMA, FILE)

    def close(self) -> None:
        """Release the folder."""
        self._database.close()

    def state(self) -> tuple[RoleProgress, ArraysByName] | None:
        """Progress and client state as they were kept last; None in a new folder.

        Raises StorageError (``checkpoint_damaged``).
        """
        row = self._database.execute("SELECT progress, tensors FROM state").fetchone()
        return None if row is None else (self._read(RoleProgress, row[0]), self._tensors(row[1]))

    def keep(self, stage: str, progress: RoleProgress, tensors: ArraysByName) -> None:
        """Keep progress and client state, and delete the messages of a stage that are worked in, and what earlier
        sessions have left.
        """
        with self._database.transaction() as database:
            values = (to_text(progress), encode_tensors(tensors))
            database.execute("INSERT OR REPLACE INTO state VALUES (1, ?, ?)", values)
            for role, number in progress.received.items():
                query = "DELETE FROM received WHERE session = ? AND stage = ? AND role = ? AND number < ?"
                database.execute(query, (progress.session, stage, role, number))
            database.execute("DELETE FROM received WHERE stage = ? AND session <> ?", (stage, progress.session))
            database.execute("DELETE FROM results WHERE number >= ?", (progress.done,))

    def finish(
        self, stage: str, call: LearnerCall, outputs: ArraysByName, progress: RoleProgress, tensors: ArraysByName
    ) -> None:
        """Keep the result of a call and, in the same transaction, that it is done."""
        with self._database.transaction() as database:
            values = (call.number, to_text(call), encode_tensors(outputs))
            database.execute("INSERT INTO results VALUES (?, ?, ?)", values)
            database.execute(
                "INSERT OR REPLACE INTO state VALUES (1, ?, ?)", (to_text(progress), encode_tensors(tensors))
            )
            database.execute("DELETE FROM received WHERE stage = ?", (stage,))

    def result(self, number: int) -> tuple[LearnerCall, ArraysByName] | None:
        """The result of a call that is done. Raises StorageError (``checkpoint_damaged``)."""
        row = self._database.execute("SELECT call, tensors FROM results WHERE number = ?", (number,)).fetchone()
        return None if row is None else (self._read(LearnerCall, row[0]), self._tensors(row[1]))

    def message(self, session: str, stage: str, role: str, number: int) -> bytes | None:
        """A message that was kept."""
        query = "SELECT body FROM received WHERE session = ? AND stage = ? AND role = ? AND number = ?"
        row = self._database.execute(query, (session, stage, role, number)).fetchone()
        return None if row is None else row[0]

    def add_message(self, session: str, stage: str, role: str, number: int, body: bytes) -> None:
        """Keep a message that has come, before it is acknowledged."""
        with self._database.transaction() as database:
            database.execute("INSERT INTO received VALUES (?, ?, ?, ?, ?)", (session, stage, role, number, body))

    def _read(self, kind: type[Kind], stored: object) -> Kind:
        try:
            return from_text(kind, stored if isinstance(stored, str) else "")
        except InputError as error:
            raise self.damaged(error.message) from error

    def _tensors(self, stored: object) -> ArraysByName:
        try:
            return decode_tensors(stored if isinstance(stored, bytes) else b"")
        except InputError as error:
            raise self.damaged(error.message) from error

    def damaged(self, what: str) -> StorageError:
        """The error for what is kept and cannot be."""
        return StorageError(
            f"{self.folder / FILE} is damaged: {what}",
            hint="Restore the folder from a backup, or make another session and train from the beginning.",
            code="checkpoint_damaged",
            path=str(self.folder / FILE),
        )
