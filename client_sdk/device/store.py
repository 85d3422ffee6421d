"""What a device remembers: one folder that survives a kill at any instruction.

    device.key              the Ed25519 private key, mode 0600
    device.db               SQLite: membership, tasks, which client state is committed
    updates/<task>.update   finished updates, until they are acknowledged
    states/<task>.state     client state that a finished task returned
    cache/                  blobs by hash (`coterie.client_sdk.device.blobs`)

A fact is durable when the method that records it returns: files are synced before the row that names them is committed,
and files that no row names are removed when the store opens. One process at a time uses a folder: SQLite's exclusive
lock, which the system releases when the process dies, says so.

A task's states, each a row in ``STATES``:

    leased -> stored -> pending -> counted | rolled_back          training
    leased -> stored -> reported                                  evaluation: nothing to settle
    leased | stored -> failed                                     refused, expired or aborted

Client state is two-phase. What a training task returned lies in its ``states`` file; it becomes the experiment's state
only in the transaction that records ``counted``. A task that is rolled back or failed leaves the committed state as it
was.
"""

import json
import sqlite3
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from coterie.errors import ConfigurationError, InternalError
from coterie.protocol.files import storage_error, write_durably
from coterie.protocol.signing import SigningKey
from coterie.protocol.tensors import decode_tensors, encode_tensors

Tensors = dict[str, NDArray[np.float32]]

STATES: Final[Mapping[str, tuple[str, ...]]] = {
    "leased": ("stored", "failed"),
    "stored": ("pending", "reported", "failed"),
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
    at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS client_states (experiment TEXT PRIMARY KEY, task TEXT NOT NULL, round INTEGER NOT NULL);
"""


@dataclass(frozen=True, kw_only=True)
class StoredMembership:
    """What the device pinned when it joined.

    schema: the population's schema as JSON text. signers: public keys (hex) of those who may sign plans.
    """

    url: str
    population: str
    device_id: str
    coordinator_key: str
    signers: tuple[str, ...]
    schema: str


@dataclass(frozen=True, kw_only=True)
class HistoryEntry:
    """One task as the device remembers it.

    at: Unix seconds of the last change, by this device's clock. bytes_up: size of the update.
    """

    task: str
    experiment: str
    round: int
    kind: str
    state: str
    weight: int
    steps: int
    bytes_up: int
    detail: str
    at: float

    def to_json(self) -> dict[str, Any]:
        """This entry as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class InFlight:
    """A task that is not over for this device.

    message: the signed task as JSON text. sha256 and size are of the finished update once ``state`` is stored.
    """

    task: str
    state: str
    message: str
    sha256: str
    size: int
    weight: int


class Store:
    """The device's memory in ``folder``, which is made when absent.

    Raises ConfigurationError when another process uses the folder, StorageError when the disk refuses.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.updates = folder / "updates"
        self.states = folder / "states"
        self.cache = folder / "cache"
        try:
            for path in (folder, self.updates, self.states, self.cache):
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error(folder, error) from error
        self._database = _connect(folder / "device.db")
        self.key = SigningKey.load_or_create(folder / "device.key")
        self._sweep()

    def close(self) -> None:
        """Release the folder."""
        self._database.close()

    def membership(self) -> StoredMembership | None:
        """What was pinned at enrolment, or None before it."""
        row = self._database.execute("SELECT document FROM membership").fetchone()
        if row is None:
            return None
        document = cast(dict[str, Any], json.loads(row[0]))
        document["signers"] = tuple(document["signers"])
        return StoredMembership(**document)

    def join(self, membership: StoredMembership) -> None:
        """Record a membership.

        The device's identity and the coordinator's key never change afterwards; signers and schema may.
        """
        with self._transaction() as database:
            database.execute("INSERT OR REPLACE INTO membership VALUES (1, ?)", (json.dumps(asdict(membership)),))

    def lease(self, *, task: str, experiment: str, round: int, kind: str, message: str) -> None:
        """Record a task that was just assigned; a task known already keeps its state."""
        with self._transaction() as database:
            database.execute(
                "INSERT OR IGNORE INTO tasks (id, experiment, round, kind, state, message, at)"
                " VALUES (?, ?, ?, ?, 'leased', ?, ?)",
                (task, experiment, round, kind, message, time.time()),
            )

    def state_of(self, task: str) -> str | None:
        """The task's state, or None when it is unknown."""
        row = self._database.execute("SELECT state FROM tasks WHERE id = ?", (task,)).fetchone()
        return None if row is None else str(row[0])

    def in_flight(self) -> InFlight | None:
        """The oldest task that is leased or stored, which is what a device that was killed resumes."""
        row = self._database.execute(
            "SELECT id, state, message, sha256, size, weight FROM tasks"
            " WHERE state IN ('leased', 'stored') ORDER BY rowid LIMIT 1"
        ).fetchone()
        return (
            None
            if row is None
            else InFlight(task=row[0], state=row[1], message=row[2], sha256=row[3], size=row[4], weight=row[5])
        )

    def write_update(self, task: str, update: bytes, client_state: Mapping[str, NDArray[np.float32]]) -> None:
        """Make the bytes of a finished task durable. They count only after `stored`."""
        write_durably(self.update_path(task), update, mode=0o600)
        if client_state:
            write_durably(self.state_path(task), encode_tensors(client_state), mode=0o600)

    def stored(self, task: str, *, sha256: str, size: int, weight: int, steps: int) -> None:
        """Record that the update's file (see `write_update`) is the answer to this task: from here on no other bytes
        are ever sent for it.
        """
        self._move(
            task,
            "stored",
            sha256=sha256,
            size=size,
            weight=weight,
            steps=steps,
            has_state=int(self.state_path(task).exists()),
        )

    def acknowledged(self, task: str, *, kind: str) -> None:
        """Record that the coordinator has the update."""
        self._move(task, "pending" if kind == "train" else "reported")
        self.update_path(task).unlink(missing_ok=True)

    def fail(self, task: str, detail: str) -> None:
        """Record that nothing will come of this task."""
        self._move(task, "failed", detail=detail)
        self.update_path(task).unlink(missing_ok=True)
        self.state_path(task).unlink(missing_ok=True)

    def pending(self) -> list[str]:
        """Tasks whose update is acknowledged and whose round is not known to be over, oldest first."""
        return [row[0] for row in self._database.execute("SELECT id FROM tasks WHERE state = 'pending' ORDER BY rowid")]

    def settle(self, outcomes: Mapping[str, str]) -> dict[str, str]:
        """Record what became of pending tasks, all in one transaction.

        outcomes: task id -> "counted" or "rolled_back"; ids that are not pending are ignored, so a repeated answer
        changes nothing. Of two counted tasks of one experiment the state of the later round stays. Returns the outcomes
        that were recorded.
        """
        recorded: dict[str, str] = {}
        with self._transaction() as database:
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

    def client_state(self, experiment: str) -> Tensors:
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
        rows = self._database.execute(
            "SELECT id, experiment, round, kind, state, weight, steps, size, detail, at FROM tasks ORDER BY rowid"
        )
        names = ("task", "experiment", "round", "kind", "state", "weight", "steps", "bytes_up", "detail", "at")
        return [HistoryEntry(**dict(zip(names, row, strict=True))) for row in rows]

    def update_path(self, task: str) -> Path:
        """Where the task's finished update lies."""
        return self.updates / f"{_safe(task)}.update"

    def state_path(self, task: str) -> Path:
        """Where the client state that the task returned lies."""
        return self.states / f"{_safe(task)}.state"

    def _move(self, task: str, state: str, **columns: str | int) -> None:
        allowed = [before for before, after in STATES.items() if state in after]
        assignments = "".join(f", {name} = ?" for name in columns)
        marks = ", ".join("?" for _ in allowed)
        with self._transaction() as database:
            changed = database.execute(
                f"UPDATE tasks SET state = ?, at = ?{assignments} WHERE id = ? AND state IN ({marks})",
                (state, time.time(), *columns.values(), task, *allowed),
            ).rowcount
        if changed != 1:
            raise InternalError(f"Task {task} cannot become {state}: it is {self.state_of(task)}.")

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            yield self._database
            self._database.execute("COMMIT")
        except BaseException as error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError):
                raise _database_error(self.folder, error) from error
            raise

    def _sweep(self) -> None:
        """Remove files that no row needs: left by a kill between a file and its row, or made superfluous by a
        settlement.
        """
        updates = {row[0] for row in self._database.execute("SELECT id FROM tasks WHERE state = 'stored'")}
        states = {
            row[0]
            for row in self._database.execute("SELECT id FROM tasks WHERE state IN ('stored', 'pending') AND has_state")
        }
        states |= {row[0] for row in self._database.execute("SELECT task FROM client_states")}
        for folder, needed in ((self.updates, updates), (self.states, states)):
            for path in folder.iterdir():
                if path.stem not in needed:
                    path.unlink(missing_ok=True)


def _connect(path: Path) -> sqlite3.Connection:
    try:
        database = sqlite3.connect(path, timeout=0.2, isolation_level=None, check_same_thread=False)
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("BEGIN EXCLUSIVE")
        for statement in _SCHEMA.split(";"):
            database.execute(statement)
        database.execute("COMMIT")
    except sqlite3.OperationalError as error:
        raise _database_error(path.parent, error) from error
    except sqlite3.DatabaseError as error:
        raise ConfigurationError(
            f"{path} is not a device's database: {error}.", hint="Choose another folder."
        ) from error
    return database


def _database_error(folder: Path, error: sqlite3.OperationalError) -> Exception:
    if "locked" in str(error):
        return ConfigurationError(
            f"Another client uses the folder {folder}.",
            hint="Stop that client, or give this one a folder of its own.",
            code="store_in_use",
        )
    return storage_error(folder, OSError(28 if "full" in str(error) else 5, str(error)))


def _forget(database: sqlite3.Connection) -> None:
    database.execute(
        "DELETE FROM tasks WHERE state IN ('counted', 'rolled_back', 'reported', 'failed')"
        " AND id NOT IN (SELECT task FROM client_states)"
        " AND rowid <= (SELECT max(rowid) FROM tasks) - ?",
        (KEPT_TASKS,),
    )


def _safe(task: str) -> str:
    if not task or len(task) > 128 or not all(c.isalnum() or c in "-_" for c in task):
        raise InternalError(f"{task!r} cannot name a file.")
    return task
