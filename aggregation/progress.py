"""The experiment over its rounds: how many are committed, which version is best, when to finish. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

from coterie import errors
from coterie.aggregation.round import Cause, Round, RoundConfig, RoundPhase
from coterie.protocol.metrics import MetricSums
from coterie.protocol.rounds import RoundPolicy

STALLED_AFTER = 3
"""So many abandoned rounds in a row end an experiment."""


class Reason(StrEnum):
    """Why an experiment is finished. ``sentence`` says it to people."""

    COMPLETED = "completed"
    TARGET_REACHED = "target_reached"
    NO_IMPROVEMENT = "no_improvement"
    STALLED = "stalled"
    BUDGET_EXHAUSTED = "budget_exhausted"
    STOPPED = "stopped"

    @property
    def sentence(self) -> str:
        """The reason as one sentence."""
        return _SENTENCES[self]


_SENTENCES = {
    Reason.COMPLETED: "All rounds have been run.",
    Reason.TARGET_REACHED: "The target value of the metric is reached.",
    Reason.NO_IMPROVEMENT: "The metric has not improved for as many rounds as patience allows.",
    Reason.STALLED: f"{STALLED_AFTER} rounds in a row were abandoned.",
    Reason.BUDGET_EXHAUSTED: "The privacy budget does not allow another round.",
    Reason.STOPPED: "Somebody asked to stop.",
}


@dataclass(frozen=True, kw_only=True)
class ExperimentProgress:
    """An experiment between two rounds.

    started: the number of the last round begun.
    current: the newest committed version.
    """

    current: str
    started: int = 0
    committed: int = 0
    best: str | None = None
    best_round: int | None = None
    best_value: float | None = None
    since_best: int = 0
    abandoned_in_a_row: int = 0
    finished: Reason | None = None

    @property
    def result_version(self) -> str:
        """The version to hand out as the result: the best measured one, else the newest."""
        return self.best or self.current


@dataclass(frozen=True)
class StartRound:
    """Start round ``number`` on model version ``base``, before which ``place`` versions were committed; ``hyper`` holds
    the scheduled hyper-parameters of its tasks.
    """

    number: int
    base: str
    hyper: Mapping[str, float] = field(default_factory=dict[str, float])
    place: int = 0


@dataclass(frozen=True)
class ExperimentEnd:
    """The experiment is over; ``version`` is its result."""

    reason: Reason
    version: str


Action = StartRound | ExperimentEnd


def measured(round: Round) -> dict[str, float]:
    """The evaluation means of a round: the coordinator's own if it has them, else the devices'; never training's."""
    return MetricSums(round.central or round.federated).means()


def evaluates(policy: RoundPolicy, number: int) -> bool:
    """Whether devices evaluate after this round: every ``evaluate_every`` rounds and after the last one."""
    return policy.evaluate_every > 0 and (number % policy.evaluate_every == 0 or number == policy.rounds)


def configure(
    policy: RoundPolicy, number: int, *, central: bool, secure: bool = False, noised: bool = False
) -> RoundConfig:
    """What round ``number`` aims for under this policy.

    central: whether the coordinator has data to evaluate on.
    secure: whether updates are only ever seen as sums.
    noised: whether the coordinator adds noise of its own (`coordinator_noises`).
    """
    only = policy.purpose == "evaluate"
    return RoundConfig(
        cohort=policy.cohort,
        offered=policy.tasks(),
        min_updates=policy.min_updates,
        deadline_s=policy.deadline_s,
        buffered=policy.buffered,
        staleness_cap=policy.staleness_cap if policy.buffered else 0,
        last=number >= policy.rounds,
        evaluate_only=only,
        secure=secure,
        noised=noised and not only,
        central_evaluation=central,
        federated_evaluation=only or evaluates(policy, number),
        evaluation_cohort=policy.cohort if only else policy.evaluators(),
        evaluation_deadline_s=policy.evaluation_seconds(),
    )


def first_round(progress: ExperimentProgress, policy: RoundPolicy) -> tuple[ExperimentProgress, StartRound]:
    """Begin an experiment whose initial version is ``progress.current``; also the way from one round to the next."""
    number = progress.started + 1
    return replace(progress, started=number), StartRound(
        number, progress.current, policy.hyper(number), progress.committed
    )


def after_round(progress: ExperimentProgress, outcome: Round, policy: RoundPolicy) -> tuple[ExperimentProgress, Action]:
    """What follows a finished round. Raises errors.Conflict when it is not over, or not the one last started."""
    if not outcome.phase.final:
        raise errors.Conflict(f"Round {outcome.number} is {outcome.phase.value}, not over.", code="round_phase")
    if outcome.number != progress.started or progress.finished is not None:
        raise errors.Conflict(f"Round {outcome.number} is not the one this experiment waits for.", code="round_phase")
    after = _count(progress, outcome, policy)
    reason = _reason_to_finish(after, outcome, policy)
    if reason is None:
        return first_round(after, policy)
    ended = replace(after, finished=reason)
    return ended, ExperimentEnd(reason, ended.result_version)


def out_of_budget(progress: ExperimentProgress) -> tuple[ExperimentProgress, ExperimentEnd]:
    """The end of an experiment whose next round the privacy budget does not allow, instead of that round."""
    ended = replace(progress, started=progress.started - 1, finished=Reason.BUDGET_EXHAUSTED)
    return ended, ExperimentEnd(Reason.BUDGET_EXHAUSTED, ended.result_version)


def _count(progress: ExperimentProgress, outcome: Round, policy: RoundPolicy) -> ExperimentProgress:
    if outcome.phase is RoundPhase.ABANDONED or outcome.version is None:
        return replace(progress, abandoned_in_a_row=progress.abandoned_in_a_row + 1)
    after = replace(progress, committed=progress.committed + 1, abandoned_in_a_row=0, current=outcome.version)
    value = measured(outcome).get(policy.best.metric)
    if value is None:
        return after
    if after.best_value is None or _better(policy.best.mode, value, after.best_value):
        return replace(after, best=outcome.version, best_round=outcome.number, best_value=value, since_best=0)
    return replace(after, since_best=after.since_best + 1)


def _reason_to_finish(after: ExperimentProgress, outcome: Round, policy: RoundPolicy) -> Reason | None:
    """The first rule that holds, in this order."""
    rules = (
        (outcome.cause is Cause.STOPPED, Reason.STOPPED),
        (after.abandoned_in_a_row >= STALLED_AFTER, Reason.STALLED),
        (outcome.phase is RoundPhase.COMMITTED and _target_reached(policy, measured(outcome)), Reason.TARGET_REACHED),
        (after.started >= policy.rounds, Reason.COMPLETED),
        (policy.patience is not None and after.since_best >= policy.patience, Reason.NO_IMPROVEMENT),
    )
    return next((reason for holds, reason in rules if holds), None)


def _target_reached(policy: RoundPolicy, means: dict[str, float]) -> bool:
    target = policy.target
    if target is None or target.metric not in means:
        return False
    value = means[target.metric]
    return value == target.value or _better(target.mode, value, target.value)


def _better(mode: Literal["min", "max"], value: float, than: float) -> bool:
    return value < than if mode == "min" else value > than
