"""What is due for a round: pure, read from the round's value and, where it waits for secret sums, from where their
attempts are, by two literal tables.

    due(round, attempts) -> what its host has to see to now

A coordinator and a simulation ask the same question. What is due states absolute wishes ("this many slots are open"),
so performing it twice is harmless, and whoever died in between asks again and goes on.

* `Ask`: devices are wanted for tasks; with a deadline where the round waits for them.
* `Close`: whatever is still out of tasks of a kind is taken back; none of it can be accepted any more.
* `Do`: work that takes time. The host reports its result with an event; of work on an attempt, the attempt's own state
  tells it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from coterie.aggregation.round import Cause, Round, RoundConfig, RoundPhase
from coterie.protocol.device import TaskKind


class Work(StrEnum):
    """Work that takes time. ``sentence`` says it to people."""

    AGGREGATE = "aggregate"
    BEGIN_ATTEMPT = "begin_attempt"
    END_PHASE = "end_phase"
    UNMASK = "unmask"
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
    Work.BEGIN_ATTEMPT: "Name the clients of the attempt, and ask them for shares.",
    Work.END_PHASE: "Ask the clients that answered for the next messages of the attempt.",
    Work.UNMASK: "Open the sum of the attempt: add the masked vectors up and take the masks off.",
    Work.SUM: "Make a version of the opened sums, with the noise that privacy asks for: `AggregateReady`, "
    "`AggregateFailed`.",
    Work.EVALUATE: "Measure the candidate on the coordinator's rows: `Evaluated`.",
    Work.SUM_EVALUATIONS: "Read the opened sum of what devices measured: `EvaluationSummed`.",
    Work.COMMIT: "As one step, make the version the experiment's model and settle its updates: `Committed`.",
    Work.CLEAN: "Delete the update files of the round that is over: `Cleaned`.",
}
SUMS: Mapping[Work, TaskKind] = {Work.SUM: "train", Work.SUM_EVALUATIONS: "evaluate"}
"""Work on secret sums: of which tasks."""


class AttemptStage(StrEnum):
    """What an attempt at a secret sum waits for, of those that are not over."""

    GATHERING = "gathering"
    ASKING = "asking"
    ANSWERED = "answered"
    CLOSED = "closed"
    OPENED = "opened"


ATTEMPTS: Mapping[AttemptStage, tuple[str, Work | None]] = {
    AttemptStage.GATHERING: ("its clients report that they are ready", Work.BEGIN_ATTEMPT),
    AttemptStage.ASKING: ("messages of a phase are awaited", None),
    AttemptStage.ANSWERED: ("all have answered, or their time is over", Work.END_PHASE),
    AttemptStage.CLOSED: ("all that opens the sum is here", Work.UNMASK),
    AttemptStage.OPENED: ("the sum is open", None),
}
"""What is due for an attempt whose sum its round waits for."""


@dataclass(frozen=True)
class SumAttempt:
    """An attempt at a secret sum of a round, as far as what is due depends on it.

    kind: of the tasks whose results it sums.
    """

    id: str
    kind: TaskKind
    stage: AttemptStage


@dataclass(frozen=True)
class Do:
    """Do this work.

    version: what it is about, where it is about a version.
    noised: that the coordinator's own noise goes into the result, before anybody sees it.
    attempt: what it is about, where it is about an attempt.
    """

    work: Work
    version: str | None = None
    noised: bool = False
    attempt: str | None = None


@dataclass(frozen=True)
class Ask:
    """``slots`` more devices may take a task of this kind now (an absolute number, not an increment).

    deadline_s: report ``DeadlinePassed(kind)`` so many seconds after this was due first; None where nothing waits.
    noised: of the work that these tasks are for, as `Do` will say it, for a host that sums while they run.
    """

    kind: TaskKind
    slots: int
    deadline_s: float | None = None
    noised: bool = False


@dataclass(frozen=True)
class Close:
    """Take back every task of this kind that is out."""

    kind: TaskKind


Due = Do | Ask | Close
KINDS: tuple[TaskKind, ...] = ("train", "evaluate")


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


def accepts(round: Round, kind: TaskKind) -> bool:
    """Whether a result of a leased task of this kind can still be counted. Hosts ask this before they accept one."""
    if kind == "evaluate":
        return surveying(round)
    return round.phase is RoundPhase.COLLECTING or (goes_on(round.config) and not round.phase.final)


def open_slots(round: Round, kind: TaskKind) -> int:
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


def _has_files(round: Round) -> bool:
    return not round.cleaned


@dataclass(frozen=True)
class Duty:
    """One row: in which case of a phase it holds, the work that is due then, and the kind of task it waits for."""

    work: Work | None = None
    awaits: TaskKind | None = None
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
    RoundPhase.COMMITTED: (Duty(Work.CLEAN, holds=_has_files, case="until that is done"),),
    RoundPhase.ABANDONED: (Duty(Work.CLEAN, holds=_has_files, case="until that is done"),),
}
"""The first row of a phase that holds; where none does, nothing is due any more."""


def due(round: Round, attempts: Sequence[SumAttempt] = ()) -> tuple[Due, ...]:
    """What the host has to see to now: tasks to take back first, then work, then devices to ask.

    attempts: of the round, but for those that are over; none where the host sums without them.
    """
    duty = next((row for row in DUE[round.phase] if row.holds(round)), Duty())
    closes = (Close(kind) for kind in KINDS if not accepts(round, kind) and not _leased_tasks(round, kind))
    work = () if duty.work is None else _work(duty.work, round, attempts)
    asks = (
        Ask(
            kind,
            open_slots(round, kind),
            _deadline_s(round.config, kind) if duty.awaits == kind else None,
            round.config.noised and kind == "train",
        )
        for kind in KINDS
        if accepts(round, kind)
    )
    return (*closes, *work, *asks)


def _work(work: Work, round: Round, attempts: Sequence[SumAttempt]) -> tuple[Do, ...]:
    """The work; as long as sums that it needs are not all open, what opens them."""
    needed = [attempt for attempt in attempts if attempt.kind == SUMS.get(work)]
    if all(attempt.stage is AttemptStage.OPENED for attempt in needed):
        noised = round.config.noised and work in (Work.AGGREGATE, Work.SUM)
        return (Do(work, round.version, noised),)
    steps = [(ATTEMPTS[attempt.stage][1], attempt.id) for attempt in needed]
    return tuple(Do(step, attempt=attempt) for step, attempt in steps if step is not None)


def do_due(round: Round) -> Do | None:
    """The work that the round itself waits for, if any; that of its attempts may come before."""
    return next((entry for entry in due(round) if isinstance(entry, Do)), None)


def work_due(round: Round) -> Work | None:
    """As `do_due`, the name of the work alone."""
    found = do_due(round)
    return None if found is None else found.work


def _leased_tasks(round: Round, kind: TaskKind) -> int:
    return round.leased if kind == "train" else round.evaluation_leased


def _deadline_s(config: RoundConfig, kind: TaskKind) -> float:
    return config.deadline_s if kind == "train" else config.evaluation_deadline_s


def passes_on(round: Round, cause: Cause) -> bool:
    """Whether a round that is abandoned now leaves the updates that it has accepted to the next."""
    dropped = cause in (Cause.STOPPED, Cause.WITHDRAWN)
    return goes_on(round.config) and round.phase is RoundPhase.COLLECTING and not dropped


def table() -> str:
    """The tables as Markdown."""
    lines = ["| phase | due |", "|---|---|"]
    for phase, rows in DUE.items():
        for row in rows:
            what = f"ask devices to {row.awaits}" if row.work is None else _named(row.work)
            lines.append(f"| *{phase.value}*{f', {row.case}' if row.case else ''} | {what} |")
    lines += ["", "| attempt, while the sum is awaited | due |", "|---|---|"]
    lines += [f"| {waits} | {'nothing' if work is None else _named(work)} |" for waits, work in ATTEMPTS.values()]
    return "\n".join(lines) + "\n"


def _named(work: Work) -> str:
    return f"`{work.value}`: {work.sentence}"
