"""What this device has released under promises of differential privacy: its own record, which no coordinator can reset.

One SQLite file, ``ledger.db``: a row for every task that was or may have been sent, with what it costs by the device's
own account (`coterie.client_sdk.device.promise`). Two limits are held, for each task before it is done and again, in
the transaction that writes its row, before anything of it is stored to be sent:

- **the promise of its experiment**: all that this device has sent in it costs no more than the promise for all rounds;
- **the owner's limit**: all that this device has sent, in every experiment and population of this file, costs no more
  than ``max_epsilon`` at ``max_delta``.

A device that is killed in between has the row and sends what it has, or has paid for nothing; never the other way
round. Before the first byte leaves, the row is marked as sent. A row without the mark goes again where its task comes
to nothing; one with it stays, and a task that a folder from a backup would do again under it is refused. Several
clients on one machine may share one file (``ledger`` in their policies): whoever writes first counts first.
"""

import json
import math
import sqlite3
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from coterie.aggregation.plan.manifest import Manifest
from coterie.client_sdk.device.database import add_column
from coterie.client_sdk.device.policy import DevicePolicy
from coterie.client_sdk.device.promise import HINT, events_of
from coterie.errors import ConfigurationError, InputError, PolicyRefused
from coterie.privacy.dp import loss_distribution
from coterie.privacy.dp.accounting import Accountant, total_cost
from coterie.privacy.dp.events import Approximate, Concentrated, Gaussian, PrivacyEvent, event_from_json
from coterie.protocol.canonical import canonical_json
from coterie.protocol.claims import PrivacyTerms
from coterie.protocol.conversion import to_json
from coterie.protocol.device import Task
from coterie.protocol.files import storage_error
from coterie.protocol.private_files import make_private_database

FILE: Final = "ledger.db"
RENYI_EXCESS: Final = 1.2
"""Rényi's bound may be this much above the price by loss distributions, at which a coordinator makes its promise and
which devices need not be able to compute; it is a tenth above it in common cases. So a device without dp-accounting
lets a promise be passed by a fifth at most. The owner's limit knows no excess.
"""
_ROUNDING: Final = 1 + 1e-6
_WAIT_S: Final = 60.0
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS releases (key TEXT PRIMARY KEY, task TEXT NOT NULL, coordinator TEXT NOT NULL,"
    " population TEXT NOT NULL, experiment TEXT NOT NULL, once INTEGER NOT NULL, events TEXT NOT NULL,"
    " at REAL NOT NULL, sent TEXT NOT NULL DEFAULT '', epsilon REAL, delta REAL, device TEXT NOT NULL DEFAULT '')"
)


@dataclass(frozen=True, kw_only=True)
class Release:
    """What one task releases of this device's rows.

    key: of its row, this device's own, which no coordinator chooses.
    task: its id.
    coordinator: the key that signed it.
    device: that it is for; clients that share one file may take part in one experiment, each at its price.
    population, experiment: of the task.
    promise: as the task says it.
    events: what the release costs.
    once: whether they are the price of the whole experiment instead, as its coordinator claims it, however many tasks
        it has.
    """

    key: str
    task: str
    coordinator: str
    population: str
    experiment: str
    promise: PrivacyTerms
    events: tuple[PrivacyEvent, ...]
    once: bool
    device: str = ""

    @staticmethod
    def of(task: Task, manifest: Manifest, *, key: str, coordinator: str, population: str) -> "Release | None":
        """What doing the task releases; None for a task without a promise.

        Raises PolicyRefused (``privacy_unkept``) as `events_of` does.
        """
        promise = task.privacy
        if promise is None:
            return None
        return Release(
            key=key,
            task=task.id,
            coordinator=coordinator,
            population=population,
            experiment=task.experiment,
            promise=promise,
            events=events_of(task, promise, manifest),
            once=promise.unit == "user" and promise.trusts == "coordinator",
            device=task.device,
        )


@dataclass(frozen=True, kw_only=True)
class Total:
    """What releases come to together.

    releases: how many tasks.
    epsilon: at ``delta``.
    """

    releases: int
    epsilon: float
    delta: float


class PrivacyLedger:
    """The record in ``path``, which is made when the first release is written.

    Raises ConfigurationError (``privacy_ledger``) for a file that is no such record, StorageError when the disk
    refuses.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def check(self, release: Release, policy: DevicePolicy) -> None:
        """Raise PolicyRefused (``privacy_unkept``, ``privacy_spent``) for a release that would pass a limit."""
        if self.path.exists():
            with self._transaction() as database:
                _require_limits(database, release, policy)
        else:
            with closing(sqlite3.connect(":memory:")) as database:
                database.execute(_SCHEMA)
                _require_limits(database, release, policy)

    def charge(self, release: Release, policy: DevicePolicy) -> None:
        """Write a release down, durably, unless it would pass a limit; once, however often, until it is sent.

        Raises as `check` does, and PolicyRefused (``privacy_recorded``) for one that was sent before.
        """
        with self._transaction() as database:
            sent = database.execute("SELECT sent FROM releases WHERE key = ?", (release.key,)).fetchone()
            if sent is not None and sent[0]:
                raise _sent_before()
            _require_limits(database, release, policy)
            events = canonical_json([to_json(event) for event in release.events]).decode()
            database.execute(
                "INSERT OR IGNORE INTO releases VALUES (?, ?, ?, ?, ?, ?, ?, ?, '', ?, ?, ?)",
                (
                    release.key,
                    release.task,
                    release.coordinator,
                    release.population,
                    release.experiment,
                    int(release.once),
                    events,
                    time.time(),
                    release.promise.epsilon,
                    release.promise.delta,
                    release.device,
                ),
            )

    def refund(self, key: str) -> None:
        """Strike a release that is not marked as sent."""
        if self.path.exists():
            with self._transaction() as database:
                database.execute("DELETE FROM releases WHERE key = ? AND sent = ''", (key,))

    def send(self, key: str, sha256: str) -> None:
        """Mark a release as sent, durably.

        sha256: of the bytes that go out.
        Raises PolicyRefused: where none is written down (``privacy_unrecorded``), and where other bytes were sent for
        it before (``privacy_recorded``).
        """
        if self.path.exists():
            with self._transaction() as database:
                found = database.execute("SELECT sent FROM releases WHERE key = ?", (key,)).fetchone()
                if found is not None and found[0] not in ("", sha256):
                    raise _sent_before()
                if found is not None:
                    database.execute("UPDATE releases SET sent = ? WHERE key = ?", (sha256, key))
                    return
        raise PolicyRefused(
            "This device's record of what it has released lacks the finished task, so it is not sent.",
            hint=f"Was {self.path} removed or replaced? The device goes on with its next task.",
            code="privacy_unrecorded",
        )

    def total(self, delta: float, *, experiment: str | None = None) -> Total:
        """What all releases, or those of one experiment, come to at a delta."""
        if not self.path.exists():
            return Total(releases=0, epsilon=0.0, delta=delta)
        with self._transaction() as database:
            rows = [row for row in _rows(database) if experiment in (None, row.experiment)]
        return Total(releases=len(rows), epsilon=epsilon_of(_events(rows), delta), delta=delta)

    def experiments(self) -> list[str]:
        """Those of which something is written down, in the order of their first releases."""
        if not self.path.exists():
            return []
        with self._transaction() as database:
            return list(dict.fromkeys(row.experiment for row in _rows(database)))

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        try:
            make_private_database(self.path)
            with closing(sqlite3.connect(self.path, timeout=_WAIT_S, isolation_level=None)) as database:
                database.execute("PRAGMA synchronous = FULL")
                database.execute("BEGIN IMMEDIATE")
                database.execute(_SCHEMA)
                add_column(database, "releases", "sent", "TEXT NOT NULL DEFAULT 'unknown'")
                add_column(database, "releases", "epsilon", "REAL")
                add_column(database, "releases", "delta", "REAL")
                add_column(database, "releases", "device", "TEXT NOT NULL DEFAULT ''")
                yield database
                database.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise storage_error(self.path, OSError(28 if "full" in str(error) else 5, str(error))) from error
        except sqlite3.DatabaseError as error:
            raise _damaged(self.path, str(error)) from error
        except OSError as error:
            raise storage_error(self.path, error) from error


def epsilon_of(events: Iterable[PrivacyEvent], delta: float, *, accountant: Accountant = "auto") -> float:
    """What events of one or of several experiments cost together at a delta; infinite where their own deltas are more.

    Claims of (epsilon, delta) add up, and so do they and whatever the rest costs at what they leave of delta.
    """
    every = tuple(events)
    claims = [event for event in every if isinstance(event, Approximate) and event.epsilon]
    rest = [event for event in every if not (isinstance(event, Approximate) and event.epsilon)]
    epsilon = sum(event.epsilon * event.count for event in claims)
    left = delta - sum(event.delta * event.count for event in claims)
    if not rest:
        return epsilon if left >= -1e-9 * delta else math.inf
    return epsilon + total_cost(rest, left, accountant=accountant).epsilon if 0 < left < 1 else math.inf


def _fits_limit(events: Sequence[PrivacyEvent], delta: float, limit: float) -> bool:
    """Whether events cost no more than a limit. The quick bound often says so, and spares the exact one's second."""
    return epsilon_of(events, delta, accountant="rdp") <= limit or epsilon_of(events, delta) <= limit


class _Row(NamedTuple):
    """A release as it is written down; of one from before devices were, ``device`` is empty."""

    key: str
    coordinator: str
    experiment: str
    once: bool
    events: tuple[PrivacyEvent, ...]
    promise: tuple[float, float] | None
    device: str


def _require_limits(database: sqlite3.Connection, release: Release, policy: DevicePolicy) -> None:
    """Both limits, for the release and all rows but its own."""
    rows = [row for row in _rows(database) if row.key != release.key]
    promise = (release.promise.epsilon, release.promise.delta)
    new = _Row(
        release.key, release.coordinator, release.experiment, release.once, release.events, promise, release.device
    )
    if not release.once:
        same = [row for row in rows if (row.coordinator, row.experiment) == (new.coordinator, new.experiment)]
        own = _events([*same, new])
        # A later task may promise less; what the first ones were taken for still holds.
        for epsilon, delta in {row.promise for row in (*same, new) if row.promise is not None}:
            if not _fits_limit(own, delta, epsilon * _excess(own)):
                raise PolicyRefused(
                    f"The task's privacy guarantee is inconsistent: its experiment promised epsilon {epsilon:g} for "
                    "all rounds, and this device has sent as much as that allows.",
                    hint=HINT,
                    code="privacy_unkept",
                )
    if policy.max_epsilon is None:
        return
    every = _events([*rows, new])
    if not _fits_limit(every, policy.max_delta, policy.max_epsilon * _ROUNDING):
        total = epsilon_of(every, policy.max_delta)
        raise PolicyRefused(
            f"With this task, what this device has released would exceed what {policy.where('max_epsilon')}"
            f" allows: epsilon {policy.max_epsilon:g} for everything that it ever takes part in.",
            hint=f"It would be epsilon {total:.3g} at delta {policy.max_delta:g}, over {len(rows) + 1} tasks. Raise "
            "the limit, if these rows may reveal more.",
            code="privacy_spent",
        )


def _excess(events: Iterable[PrivacyEvent]) -> float:
    """By which factor this device's own bound may be above the price that a coordinator can compute."""
    bounded = all(isinstance(event, Gaussian | Concentrated | Approximate) for event in events)
    return _ROUNDING if bounded or loss_distribution.available() else RENYI_EXCESS


def _rows(database: sqlite3.Connection) -> list[_Row]:
    """Every release, the oldest first."""
    columns = "key, coordinator, experiment, once, events, epsilon, delta, device"
    found = database.execute(f"SELECT {columns} FROM releases ORDER BY rowid")
    try:
        return [
            _Row(
                key,
                coordinator,
                experiment,
                bool(once),
                tuple(event_from_json(each) for each in json.loads(events)),
                None if epsilon is None or delta is None else (float(epsilon), float(delta)),
                device,
            )
            for key, coordinator, experiment, once, events, epsilon, delta, device in found
        ]
    except (InputError, ValueError, TypeError) as error:
        raise sqlite3.DatabaseError(f"a row cannot be read: {error}") from error


def _events(rows: Iterable[_Row]) -> list[PrivacyEvent]:
    """All events, the claim of an experiment once for each device however many tasks it had."""
    claims: dict[tuple[str, str, tuple[PrivacyEvent, ...]], set[str]] = {}
    found: list[PrivacyEvent] = []
    for row in rows:
        if row.once:
            claims.setdefault((row.coordinator, row.experiment, row.events), set()).add(row.device)
        else:
            found += row.events
    for (_, _, events), devices in claims.items():
        found += events * max(len(devices - {""}), 1)
    return found


def _sent_before() -> PolicyRefused:
    return PolicyRefused(
        "By this device's record another update of this task was sent before, so this one is not.",
        hint="The client's folder was set back to an earlier state. The device goes on with its next task.",
        code="privacy_recorded",
    )


def _damaged(path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is not a record of what this device has released: {why}.",
        hint="Restore it from a backup. Without it the privacy spent so far is unknown; to start from zero, remove "
        "the file.",
        code="privacy_ledger",
    )
