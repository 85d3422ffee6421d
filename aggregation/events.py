"""What can happen to a round: frozen values. The host reports each exactly once."""

from dataclasses import dataclass, field

from coterie.aggregation.round import Cause, Sums
from coterie.protocol.device import TaskKind


@dataclass(frozen=True)
class TaskLeased:
    """A device took a training task."""


@dataclass(frozen=True)
class UpdateAccepted:
    """A leased training task came back with an update that passed its checks and is safely stored.

    place: of the task's base (see `Round`); None for the round's own, which is every task's in a synchronous round.
    """

    place: int | None = None


@dataclass(frozen=True)
class TaskFailed:
    """A leased training task was aborted, refused, or its lease ran out.

    place: as in `UpdateAccepted`.
    """

    place: int | None = None


@dataclass(frozen=True)
class DeadlinePassed:
    """The time for tasks of this kind is over."""

    kind: TaskKind


@dataclass(frozen=True)
class AggregateReady:
    """The new version is safely stored.

    metrics: training sums.
    rejected: how many accepted updates were found unusable while aggregating, or of a secure round, how many clients
        dropped out of the sum.
    clipped: of a secure round, how many updates were shortened; None where that is not released.
    """

    version: str
    metrics: Sums = field(default_factory=dict[str, float])
    rejected: int = 0
    clipped: int | None = None


NOTHING_USABLE = "nothing_usable"
"""The code of the error that every accepted update was found unusable."""


@dataclass(frozen=True)
class AggregateFailed:
    """No new version can be made of the accepted updates.

    reason: the code of the error that says why.
    """

    detail: str
    reason: str | None = None


@dataclass(frozen=True)
class Evaluated:
    """The coordinator's own evaluation is over; no metrics when it failed, then ``detail`` says why."""

    metrics: Sums | None
    detail: str | None = None


@dataclass(frozen=True)
class EvaluationLeased:
    """A device took an evaluation task."""


@dataclass(frozen=True)
class EvaluationAccepted:
    """A leased evaluation task came back with checked metric sums; in a secure round without any, ready for the sum."""

    metrics: Sums = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class EvaluationFailed:
    """A leased evaluation task was aborted, refused, or its lease ran out."""


@dataclass(frozen=True)
class EvaluationSummed:
    """The sum over the clients that evaluated is there; no metrics when there is none, then ``detail`` says why."""

    metrics: Sums | None
    detail: str | None = None


@dataclass(frozen=True)
class Committed:
    """The commit is durable."""


@dataclass(frozen=True)
class Cleaned:
    """The update files of the round, which is over, are deleted."""


@dataclass(frozen=True)
class StopRequested:
    """Somebody asked to stop.

    cause: ``withdrawn`` when that was the coordinator above, ``trusted_missing`` when the trusted client was shut out;
        ``detail`` says why then.
    """

    cause: Cause = Cause.STOPPED
    detail: str | None = None


RoundEvent = (
    TaskLeased | UpdateAccepted | TaskFailed | DeadlinePassed | AggregateReady | AggregateFailed
    | Evaluated | EvaluationLeased | EvaluationAccepted | EvaluationFailed | EvaluationSummed | Committed
    | Cleaned | StopRequested
)  # fmt: skip
