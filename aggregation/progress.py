"""The experiment over its rounds: how many are committed, which version is best, when to finish. Pure."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Literal

from coterie import errors
from coterie.aggregation.round import Cause, Phase, Round

STALLED_AFTER = 3
"""So many abandoned rounds in a row end an experiment."""


class Reason(StrEnum):
    """Why an experiment is finished. ``sentence`` says it to people."""

    COMPLETED = "completed"
    TARGET_REACHED = "target_reached"
    NO_IMPROVEMENT = "no_improvement"
    STALLED = "stalled"
    STOPPED = "stopped"

    @property
    def sentence(self) -> str:
        """The reason as one sentence."""
        return _SENTENCES[self]


_SENTENCES = {
    Reason.COMPLETED: "All rounds are committed.",
    Reason.TARGET_REACHED: "The target value of the metric is reached.",
    Reason.NO_IMPROVEMENT: "The metric has not improved for as many rounds as patience allows.",
    Reason.STALLED: f"{STALLED_AFTER} rounds in a row were abandoned.",
    Reason.STOPPED: "Somebody asked to stop.",
}


@dataclass(frozen=True, kw_only=True)
class Goal:
    """When an experiment is over, and which version is its best.

    rounds: how many to commit. metric, mode: what "best" means; a mean over examples, as ``means`` gives it.
    patience: finish after so many measured rounds without a better value.
    target: finish once ``target_metric`` is at least as good as this.
    """

    rounds: int
    metric: str = "loss"
    mode: Literal["min", "max"] = "min"
    patience: int | None = None
    target_metric: str | None = None
    target: float | None = None

    def __post_init__(self) -> None:
        rules = (
            (self.rounds >= 1, f"rounds must be at least 1, not {self.rounds}."),
            (self.mode in ("min", "max"), f"The mode of the best metric must be min or max, not {self.mode!r}."),
            (self.patience is None or self.patience >= 1, f"patience must be at least 1, not {self.patience}."),
            ((self.target is None) == (self.target_metric is None), "A target needs a metric and a value."),
            (self.target is None or math.isfinite(self.target), f"The target value must be finite, not {self.target}."),
        )
        for holds, message in rules:
            if not holds:
                raise errors.ExperimentError(message, code="round_policy")

    def better(self, value: float, than: float) -> bool:
        """Whether a value of the kept metric beats another one."""
        return value < than if self.mode == "min" else value > than

    def reached(self, means: Mapping[str, float]) -> bool:
        """Whether the target is met: from above for a metric named ``loss`` or one kept as ``min``, else from below."""
        if self.target is None or self.target_metric is None:
            return False
        value = means.get(self.target_metric, math.nan)
        falling = self.target_metric == "loss" or (self.target_metric == self.metric and self.mode == "min")
        return value <= self.target if falling else value >= self.target


@dataclass(frozen=True, kw_only=True)
class Progress:
    """An experiment between two rounds.

    started: the number of the last round begun. current: the newest committed version.
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

    def to_json(self) -> str:
        """This value as JSON text; ``from_json`` gives an equal value back."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> "Progress":
        """Read what ``to_json`` wrote."""
        value: dict[str, Any] = json.loads(text)
        finished = value.pop("finished")
        return Progress(**value, finished=None if finished is None else Reason(finished))

    @property
    def kept(self) -> str:
        """The version to hand out as the result: the best measured one, else the newest."""
        return self.best or self.current


@dataclass(frozen=True)
class StartRound:
    """Start round ``number`` on model version ``base``."""

    number: int
    base: str


@dataclass(frozen=True)
class Finish:
    """The experiment is over; ``version`` is its result."""

    reason: Reason
    version: str


Action = StartRound | Finish


def means(sums: Mapping[str, float]) -> dict[str, float]:
    """Metric means over examples; empty when there were no examples."""
    examples = sums.get("examples", 0.0)
    return {name: total / examples for name, total in sums.items() if name != "examples"} if examples > 0 else {}


def measured(round: Round) -> dict[str, float]:
    """The evaluation means of a round: the coordinator's own if it has them, else the devices'; never training's."""
    return means(round.central) if round.central else means(round.federated)


def first_round(progress: Progress) -> tuple[Progress, StartRound]:
    """Begin an experiment whose initial version is ``progress.current``."""
    started = replace(progress, started=progress.started + 1)
    return started, StartRound(started.started, started.current)


def after_round(progress: Progress, outcome: Round, goal: Goal) -> tuple[Progress, Action]:
    """What follows a finished round. Raises errors.Conflict when it is not over, or not the one last started."""
    if not outcome.phase.final:
        raise errors.Conflict(f"Round {outcome.number} is {outcome.phase.value}, not over.", code="round_phase")
    if outcome.number != progress.started or progress.finished is not None:
        raise errors.Conflict(f"Round {outcome.number} is not the round this experiment waits for.", code="round_phase")
    after = _count(progress, outcome, goal)
    reason = _finished(after, outcome, goal)
    if reason is None:
        return first_round(after)
    ended = replace(after, finished=reason)
    return ended, Finish(reason, ended.kept)


def _count(progress: Progress, outcome: Round, goal: Goal) -> Progress:
    if outcome.phase is Phase.ABANDONED or outcome.version is None:
        return replace(progress, abandoned_in_a_row=progress.abandoned_in_a_row + 1)
    after = replace(progress, committed=progress.committed + 1, abandoned_in_a_row=0, current=outcome.version)
    value = measured(outcome).get(goal.metric)
    if value is None:
        return after
    if math.isfinite(value) and (after.best_value is None or goal.better(value, after.best_value)):
        return replace(after, best=outcome.version, best_round=outcome.number, best_value=value, since_best=0)
    return replace(after, since_best=after.since_best + 1)


def _finished(after: Progress, outcome: Round, goal: Goal) -> Reason | None:
    """The first rule that holds, in this order."""
    rules = (
        (outcome.cause is Cause.STOPPED, Reason.STOPPED),
        (after.abandoned_in_a_row >= STALLED_AFTER, Reason.STALLED),
        (outcome.phase is Phase.COMMITTED and goal.reached(measured(outcome)), Reason.TARGET_REACHED),
        (after.committed >= goal.rounds, Reason.COMPLETED),
        (goal.patience is not None and after.since_best >= goal.patience, Reason.NO_IMPROVEMENT),
    )
    return next((reason for holds, reason in rules if holds), None)


def hyper_at(schedule: Mapping[str, tuple[float, ...]] | None, committed: int) -> dict[str, float]:
    """The scheduled hyper-parameters of the round after ``committed`` commits; a short list repeats its last value."""
    return {name: float(values[min(committed, len(values) - 1)]) for name, values in (schedule or {}).items() if values}
