"""Faults for tests: the table of every point where something becomes durable, and a hook that kills the process there.

Nothing in the coordinator becomes durable except by passing a point named here: every write transaction names its row
of ``TRANSACTIONS`` (`coterie.server.store.engine.Database.write` refuses another name) and every blob its row of
``BLOB_WRITES``. So a test that enumerates ``COMMIT_POINTS`` has enumerated every place where a crash can separate what
was promised from what was kept.

``COTERIE_FAULT="<point>:<nth>"`` sends SIGKILL to the process when it reaches the point for the nth time (counted from
1). It is read once, at start.
"""

from collections.abc import Mapping
from typing import Final, final

from coterie.faults import FaultHook

VARIABLE: Final = "COTERIE_FAULT"

TRANSACTIONS: Final[Mapping[str, str]] = {
    "first_start": "the coordinator's keys and the first admin token",
    "population": "a population, or one of its signers",
    "policy": "the floor under a population's experiments, with the limits in its ledger",
    "token": "a token made or revoked",
    "blob": "the row of a blob that an administrator uploaded",
    "experiment": "an experiment as it was asked for, with its initial model version and its first round",
    "stop": "the wish to stop an experiment",
    "enrol": "a device and the use of its enrolment token",
    "revoke": "a device revoked or withdrawn, its lease closed",
    "lease": "a task leased to a device",
    "progress": "a lease extended",
    "part": "a part of an upload that is not the last",
    "accept": "an update accepted: from here on it must be counted exactly once",
    "refuse": "an update refused for good",
    "abort": "a task given up by its device",
    "trained": "a device's keys, with which it reports that it has trained: its update is awaited masked",
    "message": "a message of secure aggregation, for its recipients",
    "masked": "a masked vector accepted: from here on it is in the sum, or its attempt fails",
    "attempt": "an attempt at secure aggregation begun, in its next phase, or failed",
    "survivors": "the list of survivors told, with the round's privacy cost paid: from here on its sum may be opened",
    "expire": "leases that ran out",
    "deadline": "a phase whose time ran out",
    "spent": "the cost of an open round paid, with the seed of its noise: from here on its noised value may exist",
    "job": "a numeric job taken by a runner, its lease extended, put back, or done where its round is told later",
    "aggregated": "the aggregate of a round recorded",
    "aggregate_failed": "a numeric job given up",
    "evaluated": "a central evaluation recorded",
    "commit": "a model version committed, its round ended and the next one begun",
    "cleanup": "the rows of update blobs that are gone",
    "edge_key": "an edge aggregator's own key",
    "joined": "an edge aggregator's membership of the coordinator above",
    "fetched": "the row of a blob that an edge aggregator fetched",
    "mirrored": "a task of the coordinator above, with the round that answers it",
    "answered": "the answer of an edge aggregator sent, or refused",
    "settled": "what became above of an edge aggregator's answers",
    "withdrawn": "a round of an edge aggregator ended by the coordinator above",
    "told": "a task given up, and the coordinator above told so",
    "session": "a session of parties made, or ended",
    "party": "a party in its role, and the use of its token",
    "reserved": "room for a message between two parties, whose parts come in",
    "posted": "a message between two parties accepted: from here on it is delivered, once",
    "acknowledged": "a message acknowledged by its recipient: from here on it is never delivered again",
    "sweep": "housekeeping at start and now and then: expired nonces and idempotency keys",
}

BLOB_WRITES: Final[Mapping[str, str]] = {
    "upload": "a blob that an administrator uploaded",
    "update": "an update file that a device sent",
    "masked": "a masked vector that a device sent",
    "opened": "the sum of an attempt at secure aggregation, opened",
    "result": "a model version or server state that an aggregation made",
    "accumulator": "an accumulator that an edge aggregator made",
    "posted": "the parts of a message between two parties",
    "mirror": "a blob that an edge aggregator fetched from the coordinator above",
}

COMMIT_POINTS: Final[Mapping[str, str]] = {
    **{
        f"{name}.{side}_commit": f"{side} the commit of: {what}"
        for name, what in TRANSACTIONS.items()
        for side in ("before", "after")
    },
    **{
        f"{name}_blob.{side}_sync": f"{side} the file and its folder are synced: {what}"
        for name, what in BLOB_WRITES.items()
        for side in ("before", "after")
    },
    "blobs.before_delete": "before blobs that nothing needs any more are deleted",
    "blobs.after_delete": "after blobs that nothing needs any more are deleted",
}


_OF_EDGES: Final = ("edge_", "joined", "fetched", "mirror", "accumulator", "answered", "settled", "withdrawn", "told")
EDGE_POINTS: Final = tuple(point for point in COMMIT_POINTS if point.startswith(_OF_EDGES))
"""The points that only an edge aggregator reaches."""
_OF_SECRETS: Final = ("trained", "message", "masked", "attempt", "survivors", "opened")
SECURE_POINTS: Final = tuple(point for point in COMMIT_POINTS if point.startswith(_OF_SECRETS))
"""The points that only secure aggregation reaches."""
_OF_BUDGETS: Final = ("policy", "spent")
BUDGET_POINTS: Final = tuple(point for point in COMMIT_POINTS if point.startswith(_OF_BUDGETS))
"""The points that only a privacy budget reaches."""
_OF_SESSIONS: Final = ("session", "party", "reserved", "posted", "acknowledged")
QUIET: Final = frozenset(("reserved", "posted", "acknowledged"))
"""Transactions after which no round, event or job is due: they ring no bell."""
SESSION_POINTS: Final = tuple(point for point in COMMIT_POINTS if point.startswith(_OF_SESSIONS))
"""The points that only sessions of parties reach."""


@final
class CoordinatorFaults(FaultHook):
    """The points of the coordinator."""

    points = COMMIT_POINTS
    variable = VARIABLE
