"""What a device remembers: one folder that survives a kill at any instruction.

    endorsement.json        an issuer's word for that key (`coterie.client_sdk.device.endorsement`)
    device.key              the Ed25519 private key, mode 0600
    device.db               SQLite: membership, tasks, which client state is committed, verdicts on providers,
                            the newest version seen of each experiment (`coterie.client_sdk.device.lineage`)
    updates/<task>.update   finished updates, masked ones too, until they are acknowledged
    updates/<task>.vector   a finished vector in clear, until it is masked
    states/<task>.state     client state that a finished task returned
    cache/                  blobs by hash (`coterie.client_sdk.device.blobs`)
    computing.json          execution providers that compute now (`coterie.client_sdk.device.watch`)

A fact is durable when the method that records it returns: files are synced before the row that names them is committed,
and files that no row names are removed when the store opens. One process at a time uses a folder: SQLite's exclusive
lock, which the system releases when the process dies, says so.

A task's states, each a row in ``STATES``:

    leased -> stored | attempt -> pending -> counted | rolled_back    training
    leased -> stored | attempt -> reported                            evaluation: nothing to settle
    leased | stored | attempt -> failed                               refused, expired or aborted

``attempt`` is what a task under secure aggregation goes through instead of ``stored``: several messages, each durable
before it is sent (`coterie.client_sdk.device.attempts`).

Client state is two-phase. What a training task returned lies in its ``states`` file; it becomes the experiment's state
only in the transaction that records ``counted``. A task that is rolled back or failed leaves the committed state as it
was.
"""

import json
import secrets
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from coterie.client_sdk.device.attempts import AFTER_MASKING, AttemptRecord, AttemptRows
from coterie.client_sdk.device.attempts import SCHEMA as ATTEMPTS
from coterie.client_sdk.device.database import ClientDatabase, add_column
from coterie.client_sdk.device.history import HistoryEntry, StoredMembership, history_in, membership_in
from coterie.client_sdk.device.lineage import SCHEMA as LINEAGES
from coterie.client_sdk.device.lineage import Lineages
from coterie.client_sdk.device.verdicts import SCHEMA as VERDICTS
from coterie.client_sdk.device.verdicts import Verdicts
from coterie.errors import InternalError
from coterie.protocol.arrays import FloatArrays
from coterie.protocol.files import storage_error, write_durably
from coterie.protocol.private_files import make_private_folder
from coterie.protocol.signing import SigningKey
from coterie.protocol.tensors import decode_tensors, encode_tensors

STATES: Final[Mapping[str, tuple[str, ...]]] = {
    "leased": ("stored", "attempt", "failed"),
    "stored": ("pending", "reported", "failed"),
    "attempt": ("pending", "reported", "failed"),
    "pending": ("counted", "rolled_back"),
    "reported": (),
    "counted": (),
    "rolled_back": (),
    "failed": (),
}
KEPT_TASKS: Final = 1000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS membership (one INTEGER PRIMARY KEY CHECK (one = 1), document TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS tasks (
    id TEXT PRIMARY KEY, experiment TEXT NOT NULL, round INTEGER NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL,
    message TEXT NOT NULL, weight INTEGER NOT NULL DEFAULT 0, steps INTEGER NOT NULL DEFAULT 0, sha256 TEXT NOT NULL
    DEFAULT '', size INTEGER NOT NULL DEFAULT 0, has_state INTEGER NOT NULL DEFAULT 0, detail TEXT NOT NULL DEFAULT '',
    at REAL NOT NULL, release TEXT NOT NULL DEFAULT '', name TEXT NOT NULL DEFAULT '', asks TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS client_states (experiment TEXT PRIMARY KEY, task TEXT NOT NULL, round INTEGER NOT NULL);
"""


@dataclass(frozen=True, kw_only=True)
class InFlight:
    """A task that is not over for this device.

    release: under which the device's record of what it has released knows the task; drawn by chance, so that no task
        has that of another, not even in a folder that was set back to an earlier state.
    message: the signed task as JSON text. sha256 and size are of the finished update once ``state`` is stored.
    """

    task: str
    release: str
    state: str
    message: str
    sha256: str
    size: int
    weight: int


class DeviceStore:
    """The device's memory in ``folder``, which is made when absent.

    Raises ConfigurationError when another process uses the folder, StorageError when the disk refuses.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.updates = folder / "updates"
        self.states = folder / "states"
        self.cache = folder / "cache"
        for path in (folder, self.updates, self.states, self.cache):
            make_private_folder(path)
        self._database = ClientDatabase(folder, _SCHEMA + ATTEMPTS + VERDICTS + LINEAGES)
        with self._database.transaction() as database:
            for column in ("release", "name", "asks"):
                add_column(database, "tasks", column, "TEXT NOT NULL DEFAULT ''")
            database.execute("UPDATE tasks SET release = lower(hex(randomblob(16))) WHERE release = ''")
        self.attempts = AttemptRows(self._database)
        self.verdicts = Verdicts(self._database)
        self.lineages = Lineages(self._database)
        self.key = SigningKey.load_or_create(folder / "device.key")
        self._sweep()

    def close(self) -> None:
        """Release the folder."""
        self._database.close()

    def membership(self) -> StoredMembership | None:
        """What was pinned at enrolment, or None before it."""
        return membership_in(self._database)

    def join(self, membership: StoredMembership) -> None:
        """Record a membership.

        The device's identity and the coordinator's key never change afterwards; signers and schema may.
        """
        with self._database.transaction() as database:
            database.execute("INSERT OR REPLACE INTO membership VALUES (1, ?)", (json.dumps(asdict(membership)),))

    def lease(self, *, task: str, experiment: str, round: int, kind: str, message: str) -> None:
        """Record a task that was just assigned; a task known already keeps its state."""
        with self._database.transaction() as database:
            database.execute(
                "INSERT OR IGNORE INTO tasks (id, experiment, round, kind, state, message, at, release)"
                " VALUES (?, ?, ?, ?, 'leased', ?, ?, ?)",
                (task, experiment, round, kind, message, time.time(), secrets.token_hex(16)),
            )

    def describe(self, task: str, *, name: str, asks: str) -> None:
        """Record what a task is for: the experiment's name, and the question that it asks."""
        with self._database.transaction() as database:
            database.execute("UPDATE tasks SET name = ?, asks = ? WHERE id = ?", (name, asks, task))

    def state_of(self, task: str) -> str | None:
        """The task's state, or None when it is unknown."""
        row = self._database.execute("SELECT state FROM tasks WHERE id = ?", (task,)).fetchone()
        return None if row is None else str(row[0])

    def in_flight(self) -> InFlight | None:
        """The oldest task that is not over, which is what a device that was killed resumes."""
        row = self._database.execute(
            "SELECT id, state, message, sha256, size, weight, release FROM tasks"
            " WHERE state IN ('leased', 'stored', 'attempt') ORDER BY rowid LIMIT 1"
        ).fetchone()
        names = ("task", "state", "message", "sha256", "size", "weight", "release")
        return None if row is None else InFlight(**dict(zip(names, row, strict=True)))

    def write_update(self, task: str, update: bytes, client_state: Mapping[str, NDArray[np.float32]]) -> None:
        """Make the bytes of a finished task durable. They count only after `stored`."""
        write_durably(self.update_path(task), update, mode=0o600)
        if client_state:
            write_durably(self.state_path(task), encode_tensors(client_state), mode=0o600)

    def stored(self, task: str, *, sha256: str, size: int, weight: int, steps: int) -> None:
        """Record that the update's file (see `write_update`) is the answer to this task: from here on no other bytes
        are ever sent for it.
        """
        self._set_state(
            task,
            "stored",
            sha256=sha256,
            size=size,
            weight=weight,
            steps=steps,
            has_state=int(self.state_path(task).exists()),
        )

    def write_vector(self, task: str, vector: bytes, client_state: Mapping[str, NDArray[np.float32]]) -> None:
        """Make the vector of a finished task durable, in clear. It counts only after `begin_attempt`."""
        write_durably(self.vector_path(task), vector, mode=0o600)
        if client_state:
            write_durably(self.state_path(task), encode_tensors(client_state), mode=0o600)

    def begin_attempt(self, task: str, record: AttemptRecord, *, weight: int, steps: int) -> None:
        """Record the first state of a task's attempt: from here on no other vector is ever masked for it."""
        has_state = int(self.state_path(task).exists())
        with self._database.transaction() as database:
            self._update_state(database, task, "attempt", weight=weight, steps=steps, has_state=has_state)
            self.attempts.begin(database, task, record)

    def write_masked(self, task: str, masked: bytes) -> None:
        """Make the file of a masked vector durable. It counts only after `masked`."""
        write_durably(self.update_path(task), masked, mode=0o600)

    def masked(self, task: str, record: AttemptRecord, *, sha256: str, size: int) -> None:
        """Record that the file is the masked vector of this attempt, and remove the vector in clear."""
        with self._database.transaction() as database:
            database.execute("UPDATE tasks SET sha256 = ?, size = ? WHERE id = ?", (sha256, size, task))
            self.attempts.write(database, task, record)
        self.vector_path(task).unlink(missing_ok=True)

    def acknowledged(self, task: str, *, kind: str, outcome: str = "") -> None:
        """Record that the coordinator has the update.

        outcome: of its attempt, which is over and forgotten by this.
        """
        with self._database.transaction() as database:
            self._update_state(database, task, "pending" if kind == "train" else "reported")
            self.attempts.end(database, task, outcome)
        self._remove(self.update_path(task), self.vector_path(task))

    def fail(self, task: str, detail: str) -> None:
        """Record that nothing will come of this task; what is secret of its attempt is forgotten."""
        with self._database.transaction() as database:
            self._update_state(database, task, "failed", detail=detail)
            self.attempts.end(database, task, "given_up")
        self._remove(self.update_path(task), self.vector_path(task), self.state_path(task))

    def withdraw(self) -> list[str]:
        """Record that the owner has left, and remove unsent work, client state and downloads. Returns under which names
        the device's record of releases knows the work that was given up; a task whose masked vector may have left is
        kept as sent.
        """
        membership, given_up = self.membership(), list[str]()
        if membership is not None:
            self.join(replace(membership, withdrawn=True))
        while (found := self.in_flight()) is not None:
            if found.state == "attempt" and self.attempts.message(found.task) in AFTER_MASKING:
                kind = self._database.execute("SELECT kind FROM tasks WHERE id = ?", (found.task,)).fetchone()[0]
                self.acknowledged(found.task, kind=kind, outcome="withdrawn")
            else:
                given_up.append(found.release)
                self.fail(found.task, "withdrawn: the owner has left the population")
        with self._database.transaction() as database:
            database.execute("DELETE FROM client_states")
            database.execute("UPDATE tasks SET has_state = 0")
        self._sweep()
        self._remove(*(path for path in self.cache.iterdir() if path.is_file()), self.folder / "computing.json")
        return given_up

    def pending(self) -> list[str]:
        """Tasks whose update is acknowledged and whose round is not known to be over, oldest first."""
        return [row[0] for row in self._database.execute("SELECT id FROM tasks WHERE state = 'pending' ORDER BY rowid")]

    def settle(self, outcomes: Mapping[str, str]) -> dict[str, str]:
        """Record what became of pending tasks, all in one transaction.

        outcomes: task id -> "counted" or "rolled_back"; ids that are not pending are ignored, so a repeated answer
            changes nothing. Of two counted tasks of one experiment the state of the later round stays.
        Returns the outcomes that were recorded.
        """
        recorded: dict[str, str] = {}
        with self._database.transaction() as database:
            for task, outcome in outcomes.items():
                row = database.execute(
                    "SELECT experiment, round, has_state FROM tasks WHERE id = ? AND state = 'pending'", (task,)
                ).fetchone()
                if row is None:
                    continue
                if outcome not in STATES["pending"]:
                    raise InternalError(f"Task {task} cannot settle as {outcome!r}.")
                database.execute("UPDATE tasks SET state = ?, at = ? WHERE id = ?", (outcome, time.time(), task))
                if outcome == "counted" and row[2]:
                    database.execute(
                        "INSERT INTO client_states VALUES (?, ?, ?) ON CONFLICT (experiment)"
                        " DO UPDATE SET task = excluded.task, round = excluded.round"
                        " WHERE excluded.round >= client_states.round",
                        (row[0], task, row[1]),
                    )
                recorded[task] = outcome
            _forget(database)
        if recorded:
            self._sweep()
        return recorded

    def client_state(self, experiment: str) -> FloatArrays:
        """The experiment's committed client state; empty when there is none yet."""
        row = self._database.execute("SELECT task FROM client_states WHERE experiment = ?", (experiment,)).fetchone()
        if row is None:
            return {}
        path = self.state_path(row[0])
        try:
            return decode_tensors(path.read_bytes())
        except OSError as error:
            raise storage_error(path, error) from error

    def history(self) -> list[HistoryEntry]:
        """All remembered tasks, oldest first; the last thousand finished ones are kept."""
        return history_in(self._database)

    def update_path(self, task: str) -> Path:
        """Where the task's finished update lies."""
        return self.updates / f"{_safe(task)}.update"

    def vector_path(self, task: str) -> Path:
        """Where the task's vector lies in clear until it is masked."""
        return self.updates / f"{_safe(task)}.vector"

    def state_path(self, task: str) -> Path:
        """Where the client state that the task returned lies."""
        return self.states / f"{_safe(task)}.state"

    def _set_state(self, task: str, state: str, **columns: str | int) -> None:
        with self._database.transaction() as database:
            self._update_state(database, task, state, **columns)

    def _update_state(self, database: sqlite3.Connection, task: str, state: str, **columns: str | int) -> None:
        allowed = [before for before, after in STATES.items() if state in after]
        assignments = "".join(f", {name} = ?" for name in columns)
        marks = ", ".join("?" for _ in allowed)
        changed = database.execute(
            f"UPDATE tasks SET state = ?, at = ?{assignments} WHERE id = ? AND state IN ({marks})",
            (state, time.time(), *columns.values(), task, *allowed),
        ).rowcount
        if changed != 1:
            raise InternalError(f"Task {task} cannot become {state}: it is {self.state_of(task)}.")

    @staticmethod
    def _remove(*paths: Path) -> None:
        for path in paths:
            path.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Remove files that no row needs: left by a kill between a file and its row, or made superfluous by a
        settlement.
        """
        rows = self._database.execute("SELECT id, state, has_state FROM tasks").fetchall()
        updates = {task for task, state, _ in rows if state in ("stored", "attempt")}
        states = {task for task, state, has_state in rows if has_state and state in ("stored", "attempt", "pending")}
        states |= {row[0] for row in self._database.execute("SELECT task FROM client_states")}
        vectors = self.attempts.with_vectors()
        for folder, suffix, needed in (
            (self.updates, ".update", updates),
            (self.updates, ".vector", vectors),
            (self.states, ".state", states),
        ):
            for path in folder.iterdir():
                if path.suffix not in (".update", ".vector", ".state") or (
                    path.suffix == suffix and path.stem not in needed
                ):
                    path.unlink(missing_ok=True)


def _forget(database: sqlite3.Connection) -> None:
    database.execute(
        "DELETE FROM tasks WHERE state IN ('counted', 'rolled_back', 'reported', 'failed')"
        " AND id NOT IN (SELECT task FROM client_states)"
        " AND rowid <= (SELECT max(rowid) FROM tasks) - ?",
        (KEPT_TASKS,),
    )
    database.execute("DELETE FROM attempts WHERE task NOT IN (SELECT id FROM tasks)")


def _safe(task: str) -> str:
    if not task or len(task) > 128 or not all(c.isalnum() or c in "-_" for c in task):
        raise InternalError(f"{task!r} cannot name a file.")
    return task
