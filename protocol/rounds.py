"""How an experiment's rounds run: cohort, deadlines, evaluation, and when to stop."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from coterie.protocol.by_hand import ByHand
from coterie.protocol.over_selection import selection_for, smallest_selection
from coterie.protocol.wire import ClassId, FiniteNumber, Identifier, Seconds

PositiveCount = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
ClientName = Annotated[str, Field(pattern=r"^[0-9A-Za-z_]{1,64}$")]


class Target(ByHand):
    """Finish when the metric's mean reaches `value` (from below with mode ``max``, from above with ``min``)."""

    metric: Identifier
    value: FiniteNumber
    mode: Literal["min", "max"] = "max"


class Best(ByHand):
    """Which version counts as the best: the one whose metric is lowest (``min``) or highest (``max``)."""

    metric: Identifier = "loss"
    mode: Literal["min", "max"] = "min"


class RoundPolicy(ByHand):
    """How rounds run. Frozen, checked whole when made; ``min_updates`` is the cohort when not given.

    rounds: how many to run at most.
    cohort: updates wanted per round; in buffered rounds the goal K that fills the buffer.
    purpose: ``evaluate`` measures the initial version on devices and trains nothing.

    mode: ``synchronous`` rounds train one cohort on one version. ``buffered`` rounds take whatever arrives: up to
    `concurrency` tasks are out at any time (twice the cohort when None), an update may be made from a version up to
    `staleness_cap` versions old, and one that lags by s weighs ``(1 + s) ** -staleness_exponent`` of its weight.

    over_selection: ceil(cohort * over_selection) tasks are offered.
    dropout: instead of it, the share of tasks that bring nothing, from which the smallest offer follows that suffices
        in 99 of 100 rounds.
    min_updates: fewer at the deadline abandon the round.
    deadline_s: of a round's training, in seconds.
    lease_s: of one task.

    selection: who gets a round's tasks, e.g. ``uniform`` or ``power_of_choice(20)`` (see aggregation.selection).
    min_examples, labels: only devices that say they hold so many rows, and rows of each of these classes.
    rest_rounds, rest_s: so many rounds and seconds pass between two contributions of one device.
    trusted: the client by whose update the reducer fltrust judges the others: its device's id, in a simulation its
        number. One task of every round is its own, and a round without its update is abandoned.

    evaluate_every: rounds between federated evaluations, 0 for never.
    evaluation_cohort: devices that evaluate, the cohort when None.
    evaluation_deadline_s: of one evaluation, deadline_s when None.
    weight_cap: the most examples that one update may claim.
    target: stop when reached.
    patience: stop after so many evaluations without a new best.
    hyper_schedule: name → one value per round.
    """

    rounds: PositiveCount
    cohort: PositiveCount
    purpose: Literal["train", "evaluate"] = "train"
    mode: Literal["synchronous", "buffered"] = "synchronous"
    concurrency: PositiveCount | None = None
    staleness_cap: Annotated[int, Field(strict=True, ge=0, le=1000)] = 10
    staleness_exponent: Annotated[float, Field(strict=True, ge=0, le=10, allow_inf_nan=False)] = 0.5
    over_selection: Annotated[float, Field(strict=True, ge=1, le=10, allow_inf_nan=False)] = 1.0
    dropout: Annotated[float, Field(strict=True, ge=0, le=0.9, allow_inf_nan=False)] | None = None
    min_updates: PositiveCount = Field(default_factory=lambda made: made.get("cohort", 1))
    deadline_s: Seconds = 600.0
    lease_s: Seconds = 300.0
    selection: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z_]+(\([0-9a-z_=., ]*\))?$")] = "uniform"
    min_examples: PositiveCount | None = None
    labels: Annotated[tuple[ClassId, ...], Field(max_length=1000)] = ()
    rest_rounds: Annotated[int, Field(strict=True, ge=0, le=1_000_000)] = 0
    rest_s: Annotated[float, Field(strict=True, ge=0, le=366 * 86400.0, allow_inf_nan=False)] = 0.0
    trusted: ClientName | None = None
    evaluate_every: Annotated[int, Field(strict=True, ge=0, le=1_000_000)] = 1
    evaluation_cohort: PositiveCount | None = None
    evaluation_deadline_s: Seconds | None = None
    weight_cap: Annotated[int, Field(strict=True, ge=1, le=1 << 31)] = 10_000
    target: Target | None = None
    patience: PositiveCount | None = None
    best: Best = Best()
    hyper_schedule: Annotated[dict[Identifier, tuple[FiniteNumber, ...]], Field(max_length=64)] | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.min_updates > self.cohort:
            raise ValueError(
                f"min_updates {self.min_updates} exceeds cohort {self.cohort}, so no round could succeed; "
                "lower min_updates or raise cohort"
            )
        for name, values in (self.hyper_schedule or {}).items():
            if len(values) != self.rounds:
                raise ValueError(
                    f"hyper_schedule[{name!r}] has {len(values)} values for {self.rounds} rounds; give one per round"
                )
        for wrong, message in self._conflicts():
            if wrong:
                raise ValueError(message)
        return self

    def _conflicts(self) -> tuple[tuple[bool, str], ...]:
        """Fields that do not go together."""
        training = not self.buffered and self.purpose == "train"
        selects_more = self.over_selection != 1.0 or self.dropout is not None
        return (
            (
                self.dropout is not None and self.over_selection != 1.0,
                "over_selection and dropout both say how many tasks to offer; give one of them",
            ),
            (
                self.buffered and selects_more,
                "buffered rounds keep concurrency tasks out; they need no over_selection and no dropout",
            ),
            (
                not self.buffered and self.concurrency is not None,
                'concurrency is for buffered rounds; set mode="buffered" or leave it out',
            ),
            (
                self.buffered and self.selection != "uniform",
                "buffered rounds take the next device that asks; leave selection out",
            ),
            (
                self.trusted is not None and not training,
                "the trusted client takes part in every synchronous round of training; leave trusted out elsewhere",
            ),
            (
                self.trusted is not None and selects_more,
                "with more tasks than the cohort a round may end before the trusted client is done; leave "
                "over_selection and dropout out",
            ),
            (
                self.trusted is not None and (self.rest_rounds > 0 or self.rest_s > 0),
                "the trusted client takes part in every round; leave rest_rounds and rest_s out",
            ),
            (
                self.purpose == "evaluate" and self.buffered,
                "an experiment that only evaluates has no buffer; leave mode out",
            ),
            (
                self.purpose == "evaluate" and self.evaluate_every == 0,
                'evaluate_every=0 never evaluates; leave it out where the purpose is "evaluate"',
            ),
        )

    @property
    def buffered(self) -> bool:
        """Whether rounds are buffered and asynchronous."""
        return self.mode == "buffered"

    def tasks(self) -> int:
        """How many training tasks may be out or accepted at once in a round.

        Synchronous: the cohort and its over-selection, rounded up. Buffered: how many are out, beside the buffer.
        """
        if self.buffered:
            return self.concurrency or 2 * self.cohort
        if self.dropout is not None:
            return smallest_selection(self.cohort, self.dropout)
        return selection_for(self.cohort, self.over_selection)

    def evaluators(self) -> int:
        """How many devices one federated evaluation asks."""
        return self.evaluation_cohort or self.cohort

    def evaluation_seconds(self) -> float:
        """The deadline of one federated evaluation."""
        return self.evaluation_deadline_s or self.deadline_s

    def hyper(self, round: int) -> dict[str, float]:
        """The scheduled hyper-parameters of a round (the first is 1)."""
        return {name: values[round - 1] for name, values in (self.hyper_schedule or {}).items()}
