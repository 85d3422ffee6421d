"""What each event does to a round: the rules that the tables of `coterie.aggregation.engine` name, one function each.

A rule takes a round in a phase whose row names it and returns the next round, or raises errors.Conflict and changes
nothing.
"""

from dataclasses import replace

from coterie import errors
from coterie.aggregation.due import accepts, goes_on, open_slots, passes_on, surveying
from coterie.aggregation.events import (
    NOTHING_USABLE,
    AggregateFailed,
    AggregateReady,
    DeadlinePassed,
    Evaluated,
    EvaluationAccepted,
    EvaluationSummed,
    RoundEvent,
    StopRequested,
    TaskFailed,
    UpdateAccepted,
)
from coterie.aggregation.round import Cause, Round, RoundPhase, Sums, changed_counts


def lease(round: Round, event: RoundEvent) -> Round:
    if open_slots(round, "train") == 0:
        raise errors.Conflict(
            f"Round {round.number} has no free training slot: {round.config.slots} are taken.", code="round_full"
        )
    return replace(round, leases=changed_counts(round.leases, round.place, +1))


def accept(round: Round, event: RoundEvent) -> Round:
    place = _leased_place(round, event)
    returned = replace(round, leases=changed_counts(round.leases, place, -1))
    if round.phase is not RoundPhase.COLLECTING:
        return replace(returned, waiting=changed_counts(round.waiting, place, +1))
    counted = replace(returned, buffer=changed_counts(round.buffer, place, +1))
    return aggregate(counted) if counted.accepted >= counted.config.cohort else counted


def fail(round: Round, event: RoundEvent) -> Round:
    if not accepts(round, "train"):
        return round
    place = _leased_place(round, event)
    return replace(round, leases=changed_counts(round.leases, place, -1), failed=round.failed + 1)


def deadline(round: Round, event: RoundEvent) -> Round:
    if isinstance(event, DeadlinePassed) and event.kind == "evaluate":
        raise errors.Conflict(
            f"Round {round.number} is collecting; it has no evaluation deadline yet.", code="round_phase"
        )
    if round.accepted >= round.config.min_updates:
        return aggregate(round)
    cause = Cause.TOO_FEW_UPDATES if round.accepted else Cause.DEADLINE
    detail = f"{round.accepted} of at least {round.config.min_updates} updates in {round.config.deadline_s:g} s"
    untaken = open_slots(round, "train")
    if untaken and not round.failed:
        kinds = "trainer, secure aggregation" if round.config.secure else "trainer"
        some = round.accepted or round.leased
        took = f"no device took {untaken} of the {round.config.slots} tasks" if some else "no device took a task"
        detail += f"; {took}: none checked in, or none is eligible ({kinds}, min_examples, labels, rest)"
    return _abandon(round, cause, detail)


def ready(round: Round, event: RoundEvent) -> Round:
    if not isinstance(event, AggregateReady):
        raise errors.InternalError(f"{type(event).__name__} was routed to the rule for AggregateReady.")
    usable = round.accepted - event.rejected
    if usable < round.config.min_updates:
        detail = f"{event.rejected} of {round.accepted} accepted updates were unusable"
        return _abandon(replace(round, rejected=event.rejected), Cause.TOO_FEW_UPDATES, detail)
    made = replace(
        round,
        version=event.version,
        training=dict(event.metrics),
        rejected=event.rejected,
        clipped=event.clipped,
    )
    return evaluate(replace(made, central_done=not made.config.central_evaluation))


def aggregate_failed(round: Round, event: RoundEvent) -> Round:
    if not isinstance(event, AggregateFailed):
        raise errors.InternalError(f"{type(event).__name__} was routed to the rule for AggregateFailed.")
    missing = event.reason == Cause.TRUSTED_MISSING.value
    if event.reason == NOTHING_USABLE:
        round = replace(round, rejected=round.accepted)
    return _abandon(round, Cause.TRUSTED_MISSING if missing else Cause.AGGREGATE_FAILED, event.detail)


def evaluated(round: Round, event: RoundEvent) -> Round:
    if round.central_done or not isinstance(event, Evaluated):
        raise errors.Conflict(
            f"Round {round.number} is not waiting for the coordinator's evaluation.", code="round_phase"
        )
    central = None if event.metrics is None else dict(event.metrics)
    return evaluate(replace(round, central=central, central_done=True, detail=event.detail))


def lease_evaluation(round: Round, event: RoundEvent) -> Round:
    if open_slots(round, "evaluate") == 0:
        raise errors.Conflict(f"Round {round.number} has no free evaluation slot.", code="round_full")
    return replace(round, evaluation_leased=round.evaluation_leased + 1)


def accept_evaluation(round: Round, event: RoundEvent) -> Round:
    _require_lease(round, round.evaluation_leased, event)
    if not isinstance(event, EvaluationAccepted):
        raise errors.InternalError(f"{type(event).__name__} was routed to the rule for EvaluationAccepted.")
    counted = replace(
        round,
        evaluation_leased=round.evaluation_leased - 1,
        evaluated=round.evaluated + 1,
        federated=_add(round.federated, event.metrics),
    )
    return _after_evaluation(counted) if counted.evaluated >= counted.config.evaluation_cohort else counted


def fail_evaluation(round: Round, event: RoundEvent) -> Round:
    if round.survey_closed:
        return round
    _require_lease(round, round.evaluation_leased, event)
    return replace(round, evaluation_leased=round.evaluation_leased - 1, evaluation_failed=round.evaluation_failed + 1)


def evaluation_deadline(round: Round, event: RoundEvent) -> Round:
    if round.survey_closed or (isinstance(event, DeadlinePassed) and event.kind == "train"):
        return round
    if not surveying(round):
        raise errors.Conflict(f"Round {round.number} has not asked devices to evaluate yet.", code="round_phase")
    config = round.config
    if config.evaluate_only and round.evaluated < config.min_updates:
        cause = Cause.TOO_FEW_UPDATES if round.evaluated else Cause.DEADLINE
        detail = f"{round.evaluated} of at least {config.min_updates} evaluations in {config.evaluation_deadline_s:g} s"
        return _abandon(round, cause, detail)
    return _after_evaluation(round)


def evaluations_summed(round: Round, event: RoundEvent) -> Round:
    if not round.survey_closed or not isinstance(event, EvaluationSummed):
        raise errors.Conflict(f"Round {round.number} is not waiting for a sum of evaluations.", code="round_phase")
    if event.metrics is None and round.config.evaluate_only:
        return _abandon(round, Cause.AGGREGATE_FAILED, event.detail)
    detail = round.detail if event.metrics is not None else event.detail
    return _commit(replace(round, federated=dict(event.metrics or {}), detail=detail))


def committed(round: Round, event: RoundEvent) -> Round:
    return replace(round, phase=RoundPhase.COMMITTED)


def cleaned(round: Round, event: RoundEvent) -> Round:
    return replace(round, cleaned=True)


def stop(round: Round, event: RoundEvent) -> Round:
    asked = event if isinstance(event, StopRequested) else StopRequested()
    return _abandon(round, asked.cause, asked.detail)


def ignore(round: Round, event: RoundEvent) -> Round:
    return round


def aggregate(round: Round) -> Round:
    return replace(round, phase=RoundPhase.AGGREGATING, leases=round.leases if goes_on(round.config) else {})


def evaluate(round: Round) -> Round:
    """Into ``evaluating`` while there is something left to measure, else on to the commit."""
    if not round.central_done or round.config.federated_evaluation:
        return replace(round, phase=RoundPhase.EVALUATING)
    return _commit(round)


def _after_evaluation(round: Round) -> Round:
    """Devices have evaluated: on to the commit, in a secure round by way of their sum."""
    if not round.config.secure or not round.evaluated:
        return _commit(round)
    return replace(round, survey_closed=True, evaluation_leased=0)


def _commit(round: Round) -> Round:
    if round.version is None:
        raise errors.InternalError(f"Round {round.number} would commit, but has no model version.")
    return replace(round, phase=RoundPhase.COMMITTING, evaluation_leased=0)


def _abandon(round: Round, cause: Cause, detail: str | None) -> Round:
    ended = replace(round, phase=RoundPhase.ABANDONED, evaluation_leased=0, cause=cause, detail=detail)
    if passes_on(round, cause):
        waiting = {
            place: round.buffer.get(place, 0) + round.waiting.get(place, 0) for place in {*round.buffer, *round.waiting}
        }
        return replace(ended, waiting=dict(sorted(waiting.items())), passed_on=True)
    if not goes_on(round.config) or cause in (Cause.STOPPED, Cause.WITHDRAWN):
        return replace(ended, leases={}, waiting={})
    return ended


def _leased_place(round: Round, event: RoundEvent) -> int:
    """The place of the leased training task that an event is about."""
    if not isinstance(event, UpdateAccepted | TaskFailed):
        raise errors.InternalError(f"{type(event).__name__} is not about a leased training task.")
    place = round.place if event.place is None else event.place
    _require_lease(round, round.leases.get(place, 0), event)
    return place


def _require_lease(round: Round, leases: int, event: RoundEvent) -> None:
    if leases == 0:
        raise errors.Conflict(
            f"Round {round.number} got {type(event).__name__}, but no task is leased.", code="no_lease"
        )


def _add(left: Sums, right: Sums) -> dict[str, float]:
    return {name: left.get(name, 0.0) + right.get(name, 0.0) for name in sorted({*left, *right})}
