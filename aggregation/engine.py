"""The round machine: a value, events and one literal table. No clock, no socket, no thread, no randomness.

    step(round, event) -> round                 what happened
    due(round, ...)    -> what is due           what the host has to see to now (`coterie.aggregation.due`)

The host (the coordinator, or a simulation) sees to what is due and reports back with events. Everything that decides
about a round lives in this file and in the rules that its tables name (`coterie.aggregation.round_rules`); the host
only counts leases down, keeps the clock and moves bytes. Nothing is asked for beside the value, so a host that was
killed asks `due` again, and goes on.

Guarantees, each held by a test:

* every round ends ``committed`` or ``abandoned`` with a cause, and never leaves that phase again;
* the commit is due in one phase only, into which one transition leads, so no round commits twice;
* a refused event raises and changes nothing;
* in every value that can be reached work is due, or devices are waited for with a deadline, until the round is over
  and cleaned.

Two modes, a table each. A **synchronous** round trains one cohort on one version and closes what is still out when it
has enough. A **buffered** round (FedBuff: Nguyen et al., 2022) counts the next updates to arrive, whatever recent
version each was made from: its tasks stay out when it ends, updates that arrive while it aggregates wait for the next
round (`Round.waiting`), and what lags by more than the staleness cap is closed by name when a round begins. If its
buffer is not full enough at the deadline, the round is abandoned and its buffer passed on to the next.

A **secure** round (`RoundConfig.secure`) is a synchronous one in which an accepted update is a report: the client has
trained and is ready to be summed. The sums are made while it aggregates and, of evaluations, when its survey is closed.

Order inside ``evaluating``: first the coordinator's own evaluation (when it has data), then the devices'. Neither can
make a round fail: what is missing at the deadline is missing in the record.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from coterie import errors
from coterie.aggregation import round_rules as rules
from coterie.aggregation.due import (
    Ask,
    AttemptStage,
    Close,
    Do,
    Due,
    SumAttempt,
    Work,
    accepts,
    counted_in,
    do_due,
    due,
    oldest,
    open_slots,
    work_due,
)
from coterie.aggregation.events import (
    AggregateFailed,
    AggregateReady,
    Cleaned,
    Committed,
    DeadlinePassed,
    Evaluated,
    EvaluationAccepted,
    EvaluationFailed,
    EvaluationLeased,
    EvaluationSummed,
    RoundEvent,
    StopRequested,
    TaskFailed,
    TaskLeased,
    UpdateAccepted,
)
from coterie.aggregation.round import Cause, Round, RoundConfig, RoundPhase, since

__all__ = [
    "BUFFERED",
    "AggregateFailed",
    "AggregateReady",
    "Ask",
    "AttemptStage",
    "Cause",
    "Cleaned",
    "Close",
    "Committed",
    "DeadlinePassed",
    "Do",
    "Due",
    "Evaluated",
    "EvaluationAccepted",
    "EvaluationFailed",
    "EvaluationLeased",
    "EvaluationSummed",
    "RoundEvent",
    "RoundPhase",
    "Round",
    "RoundConfig",
    "StopRequested",
    "SumAttempt",
    "TRANSITIONS",
    "TaskFailed",
    "TaskLeased",
    "UpdateAccepted",
    "Work",
    "accepts",
    "counted_in",
    "diagram",
    "do_due",
    "due",
    "oldest",
    "open_slots",
    "start",
    "step",
    "work_due",
]


def start(number: int, base: str, config: RoundConfig, *, place: int = 0, before: Round | None = None) -> Round:
    """A fresh round on model version ``base``.

    place: how many versions were committed before.
    before: the round that has just ended, whose tasks that are out and whose waiting updates a buffered round takes
        over, but for those older than `oldest` allows.
    """
    fresh = Round(number=number, base=base, config=config, place=place)
    if config.evaluate_only:
        return rules.evaluate(replace(fresh, version=base, central_done=not config.central_evaluation))
    last = oldest(fresh)
    if before is None or last is None:
        return fresh
    taken = replace(fresh, leases=since(before.leases, last), buffer=since(before.waiting, last))
    return rules.aggregate(taken) if taken.accepted >= config.cohort else taken


def step(round: Round, event: RoundEvent) -> Round:
    """The next value of the round.

    Raises errors.Conflict, naming phase and event, where the table has no rule; the round is unchanged then.
    """
    table = BUFFERED if round.config.buffered else TRANSITIONS
    rule = table[round.phase].get(type(event))
    if rule is None:
        raise errors.Conflict(
            f"Round {round.number} is {round.phase.value} and cannot take {type(event).__name__}.",
            hint="Ask accepts(round, kind) before accepting a result.",
            code="round_phase",
        )
    return rule.apply(round, event)


@dataclass(frozen=True)
class Transition:
    """One entry of the table: the function, and where it may lead (for the diagram and its test)."""

    apply: Callable[[Round, RoundEvent], Round]
    leads_to: tuple[RoundPhase, ...] = ()


_STOP = Transition(rules.stop, (RoundPhase.ABANDONED,))
# News of a task that was already closed, or of work that a stop made pointless: true, but no longer of any consequence.
_LATE = Transition(rules.ignore)
_AFTER_THE_END: Mapping[type[RoundEvent], Transition] = {
    Cleaned: Transition(rules.cleaned),
    TaskFailed: _LATE,
    DeadlinePassed: _LATE,
    EvaluationFailed: _LATE,
    StopRequested: _LATE,
}

TRANSITIONS: Mapping[RoundPhase, Mapping[type[RoundEvent], Transition]] = {
    RoundPhase.COLLECTING: {
        TaskLeased: Transition(rules.lease),
        UpdateAccepted: Transition(rules.accept, (RoundPhase.AGGREGATING,)),
        TaskFailed: Transition(rules.fail),
        DeadlinePassed: Transition(rules.deadline, (RoundPhase.AGGREGATING, RoundPhase.ABANDONED)),
        StopRequested: _STOP,
    },
    RoundPhase.AGGREGATING: {
        TaskFailed: _LATE,
        DeadlinePassed: _LATE,
        AggregateReady: Transition(rules.ready, (RoundPhase.EVALUATING, RoundPhase.COMMITTING, RoundPhase.ABANDONED)),
        AggregateFailed: Transition(rules.aggregate_failed, (RoundPhase.ABANDONED,)),
        StopRequested: _STOP,
    },
    RoundPhase.EVALUATING: {
        TaskFailed: _LATE,
        Evaluated: Transition(rules.evaluated, (RoundPhase.COMMITTING,)),
        EvaluationLeased: Transition(rules.lease_evaluation),
        EvaluationAccepted: Transition(rules.accept_evaluation, (RoundPhase.COMMITTING,)),
        EvaluationFailed: Transition(rules.fail_evaluation),
        EvaluationSummed: Transition(rules.evaluations_summed, (RoundPhase.COMMITTING, RoundPhase.ABANDONED)),
        DeadlinePassed: Transition(rules.evaluation_deadline, (RoundPhase.COMMITTING, RoundPhase.ABANDONED)),
        StopRequested: _STOP,
    },
    RoundPhase.COMMITTING: {
        TaskFailed: _LATE,
        EvaluationFailed: _LATE,
        DeadlinePassed: _LATE,
        Committed: Transition(rules.committed, (RoundPhase.COMMITTED,)),
        StopRequested: _STOP,
    },
    RoundPhase.COMMITTED: _AFTER_THE_END,
    RoundPhase.ABANDONED: {
        **_AFTER_THE_END,
        AggregateReady: _LATE,
        AggregateFailed: _LATE,
        Evaluated: _LATE,
        EvaluationSummed: _LATE,
    },
}

# While a buffered round is made into a version, its tasks are still out.
_GOES_ON: Mapping[type[RoundEvent], Transition] = {
    TaskLeased: Transition(rules.lease),
    UpdateAccepted: Transition(rules.accept),
    TaskFailed: Transition(rules.fail),
}

BUFFERED: Mapping[RoundPhase, Mapping[type[RoundEvent], Transition]] = {
    **TRANSITIONS,
    RoundPhase.AGGREGATING: {**TRANSITIONS[RoundPhase.AGGREGATING], **_GOES_ON},
    RoundPhase.EVALUATING: {**TRANSITIONS[RoundPhase.EVALUATING], **_GOES_ON},
    RoundPhase.COMMITTING: {**TRANSITIONS[RoundPhase.COMMITTING], **_GOES_ON},
}


def diagram() -> str:
    """The tables as a Mermaid state diagram; both have the same arrows."""
    lines = [
        "stateDiagram-v2",
        f"    [*] --> {RoundPhase.COLLECTING.value}",
        f"    [*] --> {RoundPhase.AGGREGATING.value}: enough updates waited",
        f"    [*] --> {RoundPhase.EVALUATING.value}: evaluation only",
    ]
    for phase, row in TRANSITIONS.items():
        for event, rule in row.items():
            lines += [f"    {phase.value} --> {target.value}: {event.__name__}" for target in rule.leads_to]
    lines += [f"    {phase.value} --> [*]" for phase in RoundPhase if phase.final]
    return "\n".join(lines) + "\n"
