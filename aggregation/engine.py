"""The round machine: a value, events, effects and one literal table. No clock, no socket, no thread, no randomness.

    step(round, event) -> (round, effects)      what happened, and what the host has to do now
    resume(round)      -> effects               what the host has to repeat after a restart

The host (the coordinator, or a simulation) performs the effects and reports back with events. Everything that decides
about a round lives in this file; the host only counts leases down, keeps the clock and moves bytes.

Guarantees, each held by a test:

* every round ends ``committed`` or ``abandoned`` with a cause, and never leaves that phase again;
* ``Commit`` is asked for by one transition only, so no round commits twice;
* a refused event raises and changes nothing;
* every effect states an absolute wish ("this many slots are open"), so performing it twice is harmless.

Order inside ``evaluating``: first the coordinator's own evaluation (when it has data), then the devices'. Neither can
make a round fail: what is missing at the deadline is missing in the record.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from coterie import errors
from coterie.aggregation.events import (
    Abandon,
    Aggregate,
    AggregateFailed,
    AggregateReady,
    CloseTasks,
    Commit,
    Committed,
    DeadlinePassed,
    Effect,
    Effects,
    EvaluateCentrally,
    Evaluated,
    EvaluationAccepted,
    EvaluationFailed,
    EvaluationLeased,
    Event,
    Kind,
    OfferTasks,
    SetDeadline,
    StopRequested,
    TaskFailed,
    TaskLeased,
    UpdateAccepted,
)
from coterie.aggregation.round import Cause, Phase, Round, RoundConfig, Sums

__all__ = [
    "Abandon",
    "Aggregate",
    "AggregateFailed",
    "AggregateReady",
    "Cause",
    "CloseTasks",
    "Commit",
    "Committed",
    "DeadlinePassed",
    "Effect",
    "Effects",
    "Evaluated",
    "EvaluateCentrally",
    "EvaluationAccepted",
    "EvaluationFailed",
    "EvaluationLeased",
    "Event",
    "Kind",
    "OfferTasks",
    "Phase",
    "Round",
    "RoundConfig",
    "SetDeadline",
    "StopRequested",
    "TRANSITIONS",
    "TaskFailed",
    "TaskLeased",
    "UpdateAccepted",
    "accepts",
    "diagram",
    "open_slots",
    "resume",
    "start",
    "step",
]


def start(number: int, base: str, config: RoundConfig) -> tuple[Round, Effects]:
    """A fresh round on model version ``base``, and what to do first."""
    fresh = Round(number=number, base=base, config=config)
    return fresh, resume(fresh)


def open_slots(round: Round, kind: Kind) -> int:
    """How many more devices may take a task of this kind now."""
    if kind == "train" and round.phase is Phase.COLLECTING:
        return max(round.config.slots - round.leased - round.accepted, 0)
    if kind == "evaluate" and _surveying(round):
        return max(round.config.evaluation_cohort - round.evaluation_leased - round.evaluated, 0)
    return 0


def accepts(round: Round, kind: Kind) -> bool:
    """Whether a result of a leased task of this kind can still be counted. Hosts ask this before they accept one."""
    return round.phase is Phase.COLLECTING if kind == "train" else _surveying(round)


def step(round: Round, event: Event) -> tuple[Round, Effects]:
    """The next value of the round and what the host has to do now.

    Raises errors.Conflict, naming phase and event, where the table has no rule; the round is unchanged then.
    """
    rule = TRANSITIONS[round.phase].get(type(event))
    if rule is None:
        raise errors.Conflict(
            f"Round {round.number} is {round.phase.value} and cannot take {type(event).__name__}.",
            hint="Ask accepts(round, kind) before accepting a result.",
            code="round_phase",
        )
    return rule.apply(round, event)


def resume(round: Round) -> Effects:
    """What to do after a restart, so that the round goes on where it was. A finished round needs nothing."""
    config = round.config
    match round.phase:
        case Phase.COLLECTING:
            return (SetDeadline("train", config.deadline_s), OfferTasks("train", open_slots(round, "train")))
        case Phase.AGGREGATING:
            return (CloseTasks("train"), Aggregate())
        case Phase.EVALUATING if _surveying(round):
            return (
                SetDeadline("evaluate", config.evaluation_deadline_s),
                OfferTasks("evaluate", open_slots(round, "evaluate")),
            )
        case Phase.EVALUATING:
            return (EvaluateCentrally(_version(round)),)
        case Phase.COMMITTING:
            return (Commit(_version(round)),)
        case Phase.COMMITTED:
            return ()
        case Phase.ABANDONED:
            return ()


# Rules. Each takes a round in the phase of its row.


def _lease(round: Round, event: Event) -> tuple[Round, Effects]:
    if open_slots(round, "train") == 0:
        raise errors.Conflict(
            f"Round {round.number} has no free training slot: {round.config.slots} are taken.", code="round_full"
        )
    return replace(round, leased=round.leased + 1), ()


def _accept(round: Round, event: Event) -> tuple[Round, Effects]:
    _require_lease(round, round.leased, event)
    counted = replace(round, leased=round.leased - 1, accepted=round.accepted + 1)
    return _aggregate(counted) if counted.accepted >= counted.config.cohort else (counted, ())


def _fail(round: Round, event: Event) -> tuple[Round, Effects]:
    _require_lease(round, round.leased, event)
    counted = replace(round, leased=round.leased - 1, failed=round.failed + 1)
    return counted, (OfferTasks("train", open_slots(counted, "train")),)


def _deadline(round: Round, event: Event) -> tuple[Round, Effects]:
    if isinstance(event, DeadlinePassed) and event.kind == "evaluate":
        raise errors.Conflict(
            f"Round {round.number} is collecting; it has no evaluation deadline yet.", code="round_phase"
        )
    if round.accepted >= round.config.min_updates:
        return _aggregate(round)
    cause = Cause.TOO_FEW_UPDATES if round.accepted else Cause.DEADLINE
    return _abandon(
        round,
        cause,
        f"{round.accepted} of at least {round.config.min_updates} updates in {round.config.deadline_s:g} s",
    )


def _ready(round: Round, event: Event) -> tuple[Round, Effects]:
    if not isinstance(event, AggregateReady):
        raise errors.InternalError(f"{type(event).__name__} was routed to the rule for AggregateReady.")
    usable = round.accepted - event.rejected
    if usable < round.config.min_updates:
        detail = f"{event.rejected} of {round.accepted} accepted updates were unusable"
        return _abandon(replace(round, rejected=event.rejected), Cause.TOO_FEW_UPDATES, detail)
    made = replace(round, version=event.version, training=dict(event.metrics), rejected=event.rejected)
    return _evaluate(replace(made, central_done=not made.config.central_evaluation))


def _aggregate_failed(round: Round, event: Event) -> tuple[Round, Effects]:
    return _abandon(round, Cause.AGGREGATE_FAILED, event.detail if isinstance(event, AggregateFailed) else None)


def _evaluated(round: Round, event: Event) -> tuple[Round, Effects]:
    if round.central_done or not isinstance(event, Evaluated):
        raise errors.Conflict(
            f"Round {round.number} is not waiting for the coordinator's evaluation.", code="round_phase"
        )
    central = None if event.metrics is None else dict(event.metrics)
    return _evaluate(replace(round, central=central, central_done=True, detail=event.detail))


def _lease_evaluation(round: Round, event: Event) -> tuple[Round, Effects]:
    if open_slots(round, "evaluate") == 0:
        raise errors.Conflict(f"Round {round.number} has no free evaluation slot.", code="round_full")
    return replace(round, evaluation_leased=round.evaluation_leased + 1), ()


def _accept_evaluation(round: Round, event: Event) -> tuple[Round, Effects]:
    _require_lease(round, round.evaluation_leased, event)
    if not isinstance(event, EvaluationAccepted):
        raise errors.InternalError(f"{type(event).__name__} was routed to the rule for EvaluationAccepted.")
    counted = replace(
        round,
        evaluation_leased=round.evaluation_leased - 1,
        evaluated=round.evaluated + 1,
        federated=_add(round.federated, event.metrics),
    )
    return _commit(counted) if counted.evaluated >= counted.config.evaluation_cohort else (counted, ())


def _fail_evaluation(round: Round, event: Event) -> tuple[Round, Effects]:
    _require_lease(round, round.evaluation_leased, event)
    counted = replace(
        round, evaluation_leased=round.evaluation_leased - 1, evaluation_failed=round.evaluation_failed + 1
    )
    return counted, (OfferTasks("evaluate", open_slots(counted, "evaluate")),)


def _evaluation_deadline(round: Round, event: Event) -> tuple[Round, Effects]:
    if isinstance(event, DeadlinePassed) and event.kind == "train":
        return round, ()
    if not _surveying(round):
        raise errors.Conflict(f"Round {round.number} has not asked devices to evaluate yet.", code="round_phase")
    return _commit(round)


def _committed(round: Round, event: Event) -> tuple[Round, Effects]:
    return replace(round, phase=Phase.COMMITTED), ()


def _stop(round: Round, event: Event) -> tuple[Round, Effects]:
    return _abandon(round, Cause.STOPPED, None)


def _ignore(round: Round, event: Event) -> tuple[Round, Effects]:
    return round, ()


@dataclass(frozen=True)
class Rule:
    """One entry of the table: the function, and where it may lead (for the diagram and its test)."""

    apply: Callable[[Round, Event], tuple[Round, Effects]]
    leads_to: tuple[Phase, ...] = ()


_STOP = Rule(_stop, (Phase.ABANDONED,))
# News of a task that was already closed, or of work that a stop made pointless: true, but no longer of any consequence.
_LATE = Rule(_ignore)
_AFTER_THE_END: Mapping[type[Event], Rule] = {
    TaskFailed: _LATE,
    DeadlinePassed: _LATE,
    EvaluationFailed: _LATE,
    StopRequested: _LATE,
}

TRANSITIONS: Mapping[Phase, Mapping[type[Event], Rule]] = {
    Phase.COLLECTING: {
        TaskLeased: Rule(_lease),
        UpdateAccepted: Rule(_accept, (Phase.AGGREGATING,)),
        TaskFailed: Rule(_fail),
        DeadlinePassed: Rule(_deadline, (Phase.AGGREGATING, Phase.ABANDONED)),
        StopRequested: _STOP,
    },
    Phase.AGGREGATING: {
        TaskFailed: _LATE,
        DeadlinePassed: _LATE,
        AggregateReady: Rule(_ready, (Phase.EVALUATING, Phase.COMMITTING, Phase.ABANDONED)),
        AggregateFailed: Rule(_aggregate_failed, (Phase.ABANDONED,)),
        StopRequested: _STOP,
    },
    Phase.EVALUATING: {
        TaskFailed: _LATE,
        Evaluated: Rule(_evaluated, (Phase.COMMITTING,)),
        EvaluationLeased: Rule(_lease_evaluation),
        EvaluationAccepted: Rule(_accept_evaluation, (Phase.COMMITTING,)),
        EvaluationFailed: Rule(_fail_evaluation),
        DeadlinePassed: Rule(_evaluation_deadline, (Phase.COMMITTING,)),
        StopRequested: _STOP,
    },
    Phase.COMMITTING: {
        TaskFailed: _LATE,
        EvaluationFailed: _LATE,
        DeadlinePassed: _LATE,
        Committed: Rule(_committed, (Phase.COMMITTED,)),
        StopRequested: _STOP,
    },
    Phase.COMMITTED: _AFTER_THE_END,
    Phase.ABANDONED: {**_AFTER_THE_END, AggregateReady: _LATE, AggregateFailed: _LATE, Evaluated: _LATE},
}


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {Phase.COLLECTING.value}"]
    for phase, row in TRANSITIONS.items():
        for event, rule in row.items():
            lines += [f"    {phase.value} --> {target.value}: {event.__name__}" for target in rule.leads_to]
    lines += [f"    {phase.value} --> [*]" for phase in Phase if phase.final]
    return "\n".join(lines) + "\n"


def _surveying(round: Round) -> bool:
    """Whether devices are being asked to evaluate."""
    return round.phase is Phase.EVALUATING and round.central_done and round.config.federated_evaluation


def _aggregate(round: Round) -> tuple[Round, Effects]:
    closed = replace(round, phase=Phase.AGGREGATING, leased=0)
    return closed, resume(closed)


def _evaluate(round: Round) -> tuple[Round, Effects]:
    """Into ``evaluating`` while there is something left to measure, else on to the commit."""
    evaluating = replace(round, phase=Phase.EVALUATING)
    if not round.central_done or round.config.federated_evaluation:
        return evaluating, resume(evaluating)
    return _commit(round)


def _commit(round: Round) -> tuple[Round, Effects]:
    closing = (CloseTasks("evaluate"),) if _surveying(round) else ()
    committing = replace(round, phase=Phase.COMMITTING, evaluation_leased=0)
    return committing, (*closing, *resume(committing))


def _abandon(round: Round, cause: Cause, detail: str | None) -> tuple[Round, Effects]:
    closing: Effects = (CloseTasks("train"),) if round.phase is Phase.COLLECTING else ()
    closing += (CloseTasks("evaluate"),) if _surveying(round) else ()
    ended = replace(round, phase=Phase.ABANDONED, leased=0, evaluation_leased=0, cause=cause, detail=detail)
    return ended, (*closing, Abandon(cause))


def _require_lease(round: Round, leases: int, event: Event) -> None:
    if leases == 0:
        raise errors.Conflict(
            f"Round {round.number} got {type(event).__name__}, but no task is leased.", code="no_lease"
        )


def _version(round: Round) -> str:
    if round.version is None:
        raise errors.InternalError(f"Round {round.number} is {round.phase.value} but has no model version.")
    return round.version


def _add(left: Sums, right: Sums) -> dict[str, float]:
    return {name: left.get(name, 0.0) + right.get(name, 0.0) for name in sorted({*left, *right})}
