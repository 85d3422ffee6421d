"""A round as a value: phases, causes, what it aims for and what has happened so far."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from coterie import errors
from coterie.protocol.over_selection import selection_for

Sums = Mapping[str, float]


class RoundPhase(StrEnum):
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
        return self in (RoundPhase.COMMITTED, RoundPhase.ABANDONED)


class Cause(StrEnum):
    """Why a round was abandoned. ``sentence`` says it to people."""

    TOO_FEW_UPDATES = "too_few_updates"
    DEADLINE = "deadline"
    AGGREGATE_FAILED = "aggregate_failed"
    TRUSTED_MISSING = "trusted_missing"
    STOPPED = "stopped"
    WITHDRAWN = "withdrawn"

    @property
    def sentence(self) -> str:
        """The cause as one sentence."""
        return _SENTENCES[self]


_SENTENCES = {
    Cause.TOO_FEW_UPDATES: "Fewer usable updates arrived than the round needs.",
    Cause.DEADLINE: "The deadline passed before any update was accepted.",
    Cause.AGGREGATE_FAILED: "The accepted updates could not be turned into a new model version.",
    Cause.TRUSTED_MISSING: "The trusted client, by whose update the others are judged, did not bring a usable one.",
    Cause.STOPPED: "Somebody asked to stop.",
    Cause.WITHDRAWN: "The coordinator above an edge aggregator took its task back.",
}


@dataclass(frozen=True, kw_only=True)
class RoundConfig:
    """What a round aims for. Seconds count from the moment in which tasks of that kind are first asked for.

    offered: tasks that may be out or accepted at once, instead of the cohort's over-selection; in a buffered round,
        tasks that may be out.
    buffered: see `coterie.aggregation.engine`.
    staleness_cap: versions that an update may lag by.
    last: no round follows for which tasks would be worth handing out.
    evaluate_only: measure the base and commit that.
    secure: updates and evaluations are only ever seen as sums over clients; a task that is done is a report that the
        client is ready for the sum.
    noised: the coordinator adds noise of its own to what it makes of the updates.
    """

    cohort: int
    over_selection: float = 1.0
    offered: int | None = None
    min_updates: int = 1
    deadline_s: float = 600.0
    buffered: bool = False
    staleness_cap: int = 0
    last: bool = False
    evaluate_only: bool = False
    secure: bool = False
    noised: bool = False
    central_evaluation: bool = False
    federated_evaluation: bool = False
    evaluation_cohort: int = 0
    evaluation_deadline_s: float = 120.0

    def __post_init__(self) -> None:
        rules = (
            (self.cohort >= 1, f"cohort must be at least 1, not {self.cohort}."),
            (1.0 <= self.over_selection < math.inf, f"over_selection must be at least 1, not {self.over_selection}."),
            (self.offered is None or self.offered >= 1, f"offered must be at least 1, not {self.offered}."),
            (
                self.offered is None or self.buffered or self.offered >= self.cohort,
                f"offered must be at least the cohort ({self.cohort}), not {self.offered}.",
            ),
            (self.staleness_cap >= 0, f"staleness_cap must be at least 0, not {self.staleness_cap}."),
            (
                not self.evaluate_only or (self.federated_evaluation and not self.buffered),
                "evaluate_only needs federated_evaluation, and has no buffer.",
            ),
            (
                not (self.secure and self.buffered),
                "a secure round sums what was trained on one version; it has no buffer.",
            ),
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
        """How many training tasks may be out or accepted at once: the cohort and its over-selection; in a buffered
        round, how many may be out.
        """
        if self.offered is not None:
            return self.offered
        return selection_for(self.cohort, self.over_selection)


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round as a value. Counts are of tasks; metric mappings are named sums (``examples`` among them).

    place: versions committed before this round, so an update whose task has another place lags by the difference.
    leases: tasks that are out.
    buffer: updates accepted for this round.
    waiting: updates accepted for the next one. Each counts tasks by the place of their base; synchronous rounds know
        one place, their own.
    clipped: updates that were shortened to the public norm before they were summed; None where that is not known.
    survey_closed: in a secure round, that the devices' evaluations are in and their sum is awaited.
    passed_on: that the round was abandoned and its updates count in the next one.
    cleaned: that it is over and its update files are deleted.
    """

    number: int
    base: str
    config: RoundConfig
    place: int = 0
    phase: RoundPhase = RoundPhase.COLLECTING
    leases: Mapping[int, int] = field(default_factory=dict[int, int])
    buffer: Mapping[int, int] = field(default_factory=dict[int, int])
    waiting: Mapping[int, int] = field(default_factory=dict[int, int])
    failed: int = 0
    rejected: int = 0
    clipped: int | None = None
    version: str | None = None
    training: Sums = field(default_factory=dict[str, float])
    central: Sums | None = None
    central_done: bool = False
    evaluation_leased: int = 0
    evaluated: int = 0
    evaluation_failed: int = 0
    survey_closed: bool = False
    federated: Sums = field(default_factory=dict[str, float])
    passed_on: bool = False
    cleaned: bool = False
    cause: Cause | None = None
    detail: str | None = None

    @property
    def leased(self) -> int:
        """Training tasks that are out."""
        return sum(self.leases.values())

    @property
    def accepted(self) -> int:
        """Updates accepted for this round."""
        return sum(self.buffer.values())

    @property
    def usable(self) -> int:
        """Accepted updates, but for those that were found unusable when they were aggregated."""
        return self.accepted - self.rejected

    @property
    def lost(self) -> int:
        """Tasks that failed, and updates that were found unusable."""
        return self.failed + self.rejected

    @property
    def clipped_share(self) -> float | None:
        """Of the updates that were summed secretly, the share that was shortened; None where nothing was summed so, and
        where that share is not released.
        """
        return self.clipped / self.usable if self.clipped is not None and self.version and self.usable > 0 else None


def changed_counts(counts: Mapping[int, int], place: int, by: int) -> dict[int, int]:
    """Counts by place with one of them changed; a place without tasks is absent."""
    changed = {**counts, place: counts.get(place, 0) + by}
    return {at: count for at, count in sorted(changed.items()) if count}


def since(counts: Mapping[int, int], oldest: int) -> dict[int, int]:
    """The counts of places not older than this one."""
    return {place: count for place, count in counts.items() if place >= oldest}
