"""What a device's database says of its membership and of the tasks that it did."""

import json
import sqlite3
from dataclasses import dataclass
from typing import Any, Protocol, cast


@dataclass(frozen=True, kw_only=True)
class StoredMembership:
    """What the device pinned when it joined.

    schema: the population's schema as JSON text.
    signers: public keys (hex) of those who may sign plans.
    withdrawn: whether the owner has left the population, which is for good.
    """

    url: str
    population: str
    device_id: str
    coordinator_key: str
    signers: tuple[str, ...]
    schema: str
    withdrawn: bool = False


@dataclass(frozen=True, kw_only=True)
class HistoryEntry:
    """One task as the device remembers it.

    at: Unix seconds of the last change, by this device's clock.
    bytes_up: size of the update.
    sent: the messages of the task's attempt of secure aggregation that left (the last of a task that failed: that may
        have left), or empty without one.
    mode, clients, survivors, outcome: of that attempt, empty or 0 where they are not known.
    name: of the experiment, and asks: which question it is, empty for training; both empty for a task that was refused
        before its plan was read.
    signer: the key that signed the plan.
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
    sent: tuple[str, ...] = ()
    mode: str = ""
    clients: int = 0
    survivors: int = 0
    outcome: str = ""
    name: str = ""
    asks: str = ""
    signer: str = ""


class Reading(Protocol):
    """A database that is read from."""

    def execute(self, statement: str, /) -> sqlite3.Cursor:
        """One statement without values."""
        ...


def membership_in(database: Reading) -> StoredMembership | None:
    """What the device pinned at enrolment, or None before it."""
    row = database.execute("SELECT document FROM membership").fetchone()
    if row is None:
        return None
    document = cast(dict[str, Any], json.loads(row[0]))
    document["signers"] = tuple(document["signers"])
    return StoredMembership(**document)


def history_in(database: Reading) -> list[HistoryEntry]:
    """All remembered tasks, oldest first."""
    rows = database.execute(
        "SELECT id, experiment, round, kind, tasks.state, weight, steps, size, detail, tasks.at,"
        " coalesce(sent, ''), coalesce(mode, ''), coalesce(clients, 0), coalesce(survivors, 0),"
        " coalesce(outcome, ''), name, asks, tasks.message"
        " FROM tasks LEFT JOIN attempts ON attempts.task = tasks.id ORDER BY tasks.rowid"
    )
    names = ("task", "experiment", "round", "kind", "state", "weight", "steps", "bytes_up", "detail", "at", "sent")
    attempt = ("mode", "clients", "survivors", "outcome")
    return [_entry(dict(zip((*names, *attempt, "name", "asks", "message"), row, strict=True))) for row in rows]


def _entry(columns: dict[str, Any]) -> HistoryEntry:
    columns["sent"] = tuple(columns["sent"].split())
    plan = json.loads(columns.pop("message")).get("plan", {})
    return HistoryEntry(**columns, signer=plan.get("signer", ""))
