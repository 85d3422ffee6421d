"""Who may take part in a round, who must, and what is tried again: pure rules over small values, the same for a
coordinator and a simulation.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from coterie.aggregation.round import Round, RoundPhase
from coterie.aggregation.selection import Candidate, select
from coterie.privacy.dp.participation import may_take_part
from coterie.protocol.device import TaskKind
from coterie.protocol.privacy import ExampleLevel, LocalLevel, Privacy
from coterie.protocol.rounds import RoundPolicy

MOST_TRIES = 3
"""So many tasks of one kind may a client have in one round, when the earlier ones failed."""


class TaskOutcome(StrEnum):
    """What became of a task that a client had in a round."""

    OUT = "out"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    LOST = "lost"


@dataclass(frozen=True)
class Holdings:
    """What a client says of its data: rows, and the classes among its labels."""

    examples: int
    labels: Collection[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class ClientHistory:
    """What is known of a client that has contributed.

    last_round: the last time.
    times: how often.
    rested_s: seconds since then, None where there is no clock to tell, or it was set back.
    examples, loss, seconds: of its last update.
    """

    last_round: int
    times: int
    rested_s: float | None = None
    examples: int | None = None
    loss: float | None = None
    seconds: float | None = None


def has_the_data(policy: RoundPolicy, ask: Callable[[], Holdings | None]) -> bool:
    """Whether what a client says meets what a policy asks of its data; where it asks, silence does not.

    ask: what the client says; called only where the policy asks something.
    """
    if policy.min_examples is None and not policy.labels:
        return True
    holdings = ask()
    return (
        holdings is not None
        and holdings.examples >= (policy.min_examples or 0)
        and set(policy.labels) <= set(holdings.labels)
    )


def eligible(
    policy: RoundPolicy,
    ask: Callable[[], Holdings | None],
    past: ClientHistory | None,
    *,
    round: int,
    privacy: Privacy | None,
) -> bool:
    """Whether a client may train in this round.

    ask: as in `has_the_data`; a client that still rests is not asked.
    past: what is known of it; None where it has not contributed.
    privacy: as in `rested`.
    """
    return rested(policy, past, round=round, privacy=privacy) and has_the_data(policy, ask)


def rested(policy: RoundPolicy, past: ClientHistory | None, *, round: int, privacy: Privacy | None) -> bool:
    """Whether a client's last contribution is long enough ago.

    past: rest_rounds and rest_s count from there.
    privacy: what is accounted for is how far apart and how often a client takes part; it never does more.
    """
    if past is None:
        return True
    if not may_take_part(privacy, round=round, last_round=past.last_round, times=past.times):
        return False
    rests = past.rested_s is not None and past.rested_s < policy.rest_s
    return round - past.last_round > policy.rest_rounds and not rests


def candidate(policy: RoundPolicy, client: str, holdings: Holdings | None, past: ClientHistory | None) -> Candidate:
    """A client as selectors see it. Where it says nothing, its rows are those that its last update counted; whatever it
    says, they are no more than one update may weigh.
    """
    said = None if holdings is None else min(holdings.examples, policy.weight_cap)
    if past is None:
        return Candidate(id=client, examples=said)
    return Candidate(
        id=client,
        examples=past.examples if said is None else said,
        loss=past.loss,
        seconds=past.seconds,
        last_round=past.last_round,
        times=past.times,
    )


def choose(
    policy: RoundPolicy,
    candidates: Sequence[Candidate],
    count: int,
    *,
    round: int,
    seed: int,
    trusted: str | None = None,
) -> tuple[str, ...]:
    """Of the candidates those that train, by the policy's selection.

    trusted: the client that must, and has one of the places, also while it is no candidate.
    """
    if trusted is None:
        return select(policy.selection, candidates, count, round=round, seed=seed)
    others = [one for one in candidates if one.id != trusted]
    chosen = select(policy.selection, others, count - 1, round=round, seed=seed)
    return (*chosen, *(one.id for one in candidates if one.id == trusted))


def measures(policy: RoundPolicy, kind: TaskKind) -> bool:
    """Whether a task only measures what training made, which whoever can may do."""
    return kind == "evaluate" and policy.purpose == "train"


def may_try(
    outcomes: Sequence[TaskOutcome], kind: TaskKind, privacy: Privacy | None, *, in_buffer: bool = False
) -> bool:
    """Whether a client may have a task of this kind in a round in which its tasks ended so; it holds none. A simulation
    asks for buffered rounds alone: in others a client has one task.

    in_buffer: an update of its waits in a buffered round. A client has one say in a buffer, and trains on what it keeps
        only when that is settled.
    """
    if in_buffer and kind == "train":
        return False
    if TaskOutcome.ACCEPTED in outcomes or TaskOutcome.REFUSED in outcomes or len(outcomes) >= MOST_TRIES:
        return False
    # What a client trains anew it noises anew, and a round pays for one upload of each client: of a task that came to
    # nothing the coordinator may have seen most.
    return not (outcomes and kind == "train" and isinstance(privacy, LocalLevel | ExampleLevel))


def keeps_last_slot(trusted: str | None, client: str, slots: int, outcomes: Sequence[TaskOutcome]) -> bool:
    """Whether the last open slot is kept for the trusted client, and not for this one. A simulation never asks: nobody
    comes unasked, and `choose` gives the trusted client its place.

    outcomes: of the trusted client's tasks in this round.
    """
    if trusted is None or client == trusted or slots != 1:
        return False
    return TaskOutcome.OUT not in outcomes and TaskOutcome.ACCEPTED not in outcomes


def without_trusted(
    round: Round, outcomes: Sequence[TaskOutcome], *, enrolled: bool, privacy: Privacy | None
) -> str | None:
    """Why the trusted client can bring no update to this round any more; None while it can, or has. Waiting for the
    deadline would bring nothing by which the others could be judged. A simulation never asks: it waits for nobody, and
    a version that lacks the update is refused by the same cause (`trusted_missing`).

    outcomes: of its training tasks in this round.
    enrolled: False where it was shut out for ever.
    """
    if round.phase is not RoundPhase.COLLECTING or TaskOutcome.ACCEPTED in outcomes:
        return None
    if not enrolled:
        return "the trusted client was revoked; submit the experiment again with another trusted client"
    if TaskOutcome.OUT in outcomes or may_try(outcomes, "train", privacy):
        return None
    often = "once" if len(outcomes) == 1 else f"{len(outcomes)} times"
    return f"the trusted client has failed {often} in this round and may not try again; its own log says why"
