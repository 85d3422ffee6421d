"""What is due for a round: pure, read from the round's value alone, by one literal table.

    due(round) -> what its host has to see to now

A coordinator and a simulation ask the same question. What is due states absolute wishes ("this many slots are open"),
so performing it twice is harmless, and whoever died in between asks again and goes on.

* `Ask`: devices are wanted for tasks; with a deadline where the round waits for them.
* `Close`: whatever is still out of tasks of a kind is taken back; none of it can be accepted any more.
* `Do`: work that takes time. The host reports its result with an event, but for `Work.CLEAN`, after which nothing is
  due any more.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from coterie.aggregation.events import Kind
from coterie.aggregation.round import Cause, Round, RoundConfig, RoundPhase


class Work(StrEnum):
    """Work that takes time. ``sentence`` says it to people."""

    AGGREGATE = "aggregate"
    SUM = "sum"
    EVALUATE = "evaluate"
    SUM_EVALUATIONS = "sum_evaluations"
    COMMIT = "commit"
    CLEAN = "clean"

    @property
    def sentence(self) -> str:
        """What is done, and which event says so."""
        return _SENTENCES[self]


_SENTENCES: Mapping[Work, str] = {
    Work.AGGREGATE: "Make a version of the accepted updates, with the noise that privacy asks for: "
    "`AggregateReady`, `AggregateFailed`.",
    Work.SUM: "Add the updates up secretly, open the sum and make a version of it: `AggregateReady`, "
    "`AggregateFailed`.",
    Work.EVALUATE: "Measure the candidate on the coordinator's rows: `Evaluated`.",
    Work.SUM_EVALUATIONS: "Add up secretly what devices measured: `EvaluationSummed`.",
    Work.COMMIT: "As one step, make the version the experiment's model and settle its updates: `Committed`.",
    Work.CLEAN: "Delete the update files of the round that is over.",
}


@dataclass(frozen=True)
class Do:
    """Do this work.

    version: what it is about, where it is about a version.
    """

    work: Work
    version: str | None = None


@dataclass(frozen=True)
class Ask:
    """``slots`` more devices may take a task of this kind now (an absolute number, not an increment).

    deadline_s: report ``DeadlinePassed(kind)`` so many seconds after this was due first; None where nothing waits.
    """

    kind: Kind
    slots: int
    deadline_s: float | None = None


@dataclass(frozen=True)
class Close:
    """Take back every task of this kind that is out."""

    kind: Kind


Due = Do | Ask | Close
KINDS: tuple[Kind, ...] = ("train", "evaluate")


def goes_on(config: RoundConfig) -> bool:
    """Whether training tasks stay out when a round has what it wants."""
    return config.buffered and not config.last


def measuring(round: Round) -> bool:
    """Whether the coordinator's own evaluation is awaited."""
    return round.phase is RoundPhase.EVALUATING and not round.central_done


def surveying(round: Round) -> bool:
    """Whether devices are being asked to evaluate."""
    asks = round.config.federated_evaluation and not round.survey_closed
    return round.phase is RoundPhase.EVALUATING and round.central_done and asks


def accepts(round: Round, kind: Kind) -> bool:
    """Whether a result of a leased task of this kind can still be counted. Hosts ask this before they accept one."""
    if kind == "evaluate":
        return surveying(round)
    return round.phase is RoundPhase.COLLECTING or (goes_on(round.config) and not round.phase.final)


def open_slots(round: Round, kind: Kind) -> int:
    """How many more devices may take a task of this kind now."""
    config = round.config
    if not accepts(round, kind):
        return 0
    if kind == "train":
        return max(config.slots - round.leased - (0 if config.buffered else round.accepted), 0)
    return max(config.evaluation_cohort - round.evaluation_leased - round.evaluated, 0)


def counted_in(round: Round) -> int:
    """The number of the round that counts an update accepted now: this one, or the next."""
    return round.number if round.phase is RoundPhase.COLLECTING else round.number + 1


def oldest(round: Round) -> int | None:
    """The oldest place that a buffered round counts: as it begins, every training task that is out and every update
    that waits with an older one is closed by the name ``stale_update``. None for other rounds.
    """
    return round.place - round.config.staleness_cap if round.config.buffered else None


def _always(round: Round) -> bool:
    return True


def _secure(round: Round) -> bool:
    return round.config.secure


def _evaluations_await_sum(round: Round) -> bool:
    return round.survey_closed


@dataclass(frozen=True)
class Duty:
    """One row: in which case of a phase it holds, the work that is due then, and the kind of task it waits for."""

    work: Work | None = None
    awaits: Kind | None = None
    holds: Callable[[Round], bool] = _always
    case: str = ""


DUE: Mapping[RoundPhase, tuple[Duty, ...]] = {
    RoundPhase.COLLECTING: (Duty(awaits="train"),),
    RoundPhase.AGGREGATING: (
        Duty(Work.SUM, holds=_secure, case="under secure aggregation"),
        Duty(Work.AGGREGATE, case="in clear"),
    ),
    RoundPhase.EVALUATING: (
        Duty(Work.EVALUATE, holds=measuring, case="while the coordinator's rows are awaited"),
        Duty(Work.SUM_EVALUATIONS, holds=_evaluations_await_sum, case="when a secure survey is closed"),
        Duty(awaits="evaluate", case="while devices are asked"),
    ),
    RoundPhase.COMMITTING: (Duty(Work.COMMIT),),
    RoundPhase.COMMITTED: (Duty(Work.CLEAN),),
    RoundPhase.ABANDONED: (Duty(Work.CLEAN),),
}
"""The first row of a phase that holds."""


def due(round: Round) -> tuple[Due, ...]:
    """What the host has to see to now: tasks to take back first, then work, then devices to ask."""
    duty = next(row for row in DUE[round.phase] if row.holds(round))
    closes = (Close(kind) for kind in KINDS if not accepts(round, kind) and not _leased_tasks(round, kind))
    work = () if duty.work is None else (Do(duty.work, round.version),)
    asks = (
        Ask(kind, open_slots(round, kind), _deadline_s(round.config, kind) if duty.awaits == kind else None)
        for kind in KINDS
        if accepts(round, kind)
    )
    return (*closes, *work, *asks)


def work_due(round: Round) -> Work | None:
    """The work that is due, if any."""
    return next((entry.work for entry in due(round) if isinstance(entry, Do)), None)


def _leased_tasks(round: Round, kind: Kind) -> int:
    return round.leased if kind == "train" else round.evaluation_leased


def _deadline_s(config: RoundConfig, kind: Kind) -> float:
    return config.deadline_s if kind == "train" else config.evaluation_deadline_s


def passes_on(round: Round, cause: Cause) -> bool:
    """Whether a round that is abandoned now leaves the updates that it has accepted to the next."""
    dropped = cause in (Cause.STOPPED, Cause.WITHDRAWN)
    return goes_on(round.config) and round.phase is RoundPhase.COLLECTING and not dropped


def table() -> str:
    """The table as Markdown."""
    lines = ["| phase | due |", "|---|---|"]
    for phase, rows in DUE.items():
        for row in rows:
            what = f"ask devices to {row.awaits}" if row.work is None else f"`{row.work.value}`"
            where = f"*{phase.value}*, {row.case}" if row.case else f"*{phase.value}*"
            said = "" if row.work is None else f": {row.work.sentence}"
            lines.append(f"| {where} | {what}{said} |")
    return "\n".join(lines) + "\n"
