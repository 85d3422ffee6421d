"""A round as a value: phases, causes, what it aims for and what has happened so far."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from coterie import errors

Sums = Mapping[str, float]


class Phase(StrEnum):
    """Where a round is."""

    COLLECTING = "collecting"
    AGGREGATING = "aggregating"
    EVALUATING = "evaluating"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABANDONED = "abandoned"

    @property
    def final(self) -> bool:
        """Whether a round in this phase is over."""
        return self in (Phase.COMMITTED, Phase.ABANDONED)


class Cause(StrEnum):
    """Why a round was abandoned. ``sentence`` says it to people."""

    TOO_FEW_UPDATES = "too_few_updates"
    DEADLINE = "deadline"
    AGGREGATE_FAILED = "aggregate_failed"
    STOPPED = "stopped"

    @property
    def sentence(self) -> str:
        """The cause as one sentence."""
        return _SENTENCES[self]


_SENTENCES = {
    Cause.TOO_FEW_UPDATES: "Fewer usable updates arrived than the round needs.",
    Cause.DEADLINE: "The deadline passed before any update was accepted.",
    Cause.AGGREGATE_FAILED: "The accepted updates could not be turned into a new model version.",
    Cause.STOPPED: "Somebody asked to stop.",
}


@dataclass(frozen=True, kw_only=True)
class RoundConfig:
    """What a round aims for. Seconds are relative to the moment the host performs the matching ``SetDeadline``."""

    cohort: int
    over_selection: float = 1.0
    min_updates: int = 1
    deadline_s: float = 600.0
    central_evaluation: bool = False
    federated_evaluation: bool = False
    evaluation_cohort: int = 0
    evaluation_deadline_s: float = 120.0

    def __post_init__(self) -> None:
        rules = (
            (self.cohort >= 1, f"cohort must be at least 1, not {self.cohort}."),
            (1.0 <= self.over_selection < math.inf, f"over_selection must be at least 1, not {self.over_selection}."),
            (
                1 <= self.min_updates <= self.cohort,
                f"min_updates must be in 1..cohort ({self.cohort}), not {self.min_updates}.",
            ),
            (0 < self.deadline_s < math.inf, f"deadline_s must be positive and finite, not {self.deadline_s}."),
            (
                0 < self.evaluation_deadline_s < math.inf,
                f"evaluation_deadline_s must be positive and finite, not {self.evaluation_deadline_s}.",
            ),
            (
                not self.federated_evaluation or self.evaluation_cohort >= 1,
                "evaluation_cohort must be at least 1 when devices evaluate.",
            ),
        )
        for holds, message in rules:
            if not holds:
                raise errors.ExperimentError(message, code="round_policy")

    @property
    def slots(self) -> int:
        """How many training tasks may be out or accepted at once: the cohort and its over-selection."""
        return math.ceil(self.cohort * self.over_selection)


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round as a value. Counts are of tasks; metric mappings are named sums (``examples`` among them)."""

    number: int
    base: str
    config: RoundConfig
    phase: Phase = Phase.COLLECTING
    leased: int = 0
    accepted: int = 0
    failed: int = 0
    rejected: int = 0
    version: str | None = None
    training: Sums = field(default_factory=dict[str, float])
    central: Sums | None = None
    central_done: bool = False
    evaluation_leased: int = 0
    evaluated: int = 0
    evaluation_failed: int = 0
    federated: Sums = field(default_factory=dict[str, float])
    cause: Cause | None = None
    detail: str | None = None

    def to_json(self) -> str:
        """This value as JSON text; ``from_json`` gives an equal value back."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> "Round":
        """Read what ``to_json`` wrote."""
        value: dict[str, Any] = json.loads(text)
        value["config"] = RoundConfig(**value["config"])
        value["phase"] = Phase(value["phase"])
        value["cause"] = None if value["cause"] is None else Cause(value["cause"])
        return Round(**value)
