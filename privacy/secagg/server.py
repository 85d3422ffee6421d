"""The coordinator's side of secure aggregation as a machine: a state, events and one literal table.

    open_attempt(terms, …)  -> state                  it collects keys
    step(state, event)      -> state                  what happened
    plan_masks(state)       -> masks                  what `unmask.remove` takes off the sum of the survivors' vectors

The host moves messages and bytes, keeps the clock and adds up the masked vectors of `ServerState.survivors`; the
machine never sees a vector. What a host has to do follows from the phase. A refused event raises and changes nothing;
the same message twice changes nothing either. Every attempt ends ``summed`` or ``failed`` with a cause. What clients
are told is made from the state by `roster_for`, `shares_for`, `survivors_for`, `agreements_for` and `outcome_for`, the
same whenever it is asked for.

An honest coordinator follows this machine. What one that does not could learn is for the client's checks to bound
(`coterie.privacy.secagg.client`); nothing here protects a client. The checks here find clients that do not keep to the
protocol: signatures of keys, one answer of each, shares that fit. The rules are in `server_rules`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from coterie import errors
from coterie.privacy.secagg import server_rules as rules
from coterie.privacy.secagg.derivations import own_mask, pair_masks
from coterie.privacy.secagg.masks import MaskSeed
from coterie.privacy.secagg.server_rules import (
    Advertised,
    Agreed,
    MaskedArrived,
    PhaseDeadline,
    Revealed,
    ServerEvent,
    Shared,
)
from coterie.privacy.secagg.server_state import AttemptFailure, Blame, Dealt, Opened, SecAggPhase, ServerState
from coterie.privacy.secagg.survivors import quorum, survivors_digest
from coterie.protocol.secagg import (
    Agreement,
    Agreements,
    Outcome,
    Roster,
    SecureTerms,
    Shares,
    SharesFor,
    Survivors,
)

__all__ = [
    "TABLE",
    "Advertised",
    "Agreed",
    "Blame",
    "AttemptFailure",
    "Dealt",
    "ServerEvent",
    "MaskedArrived",
    "Opened",
    "SecAggPhase",
    "PhaseDeadline",
    "Revealed",
    "ServerState",
    "Shared",
    "agreements_for",
    "awaited",
    "begin",
    "diagram",
    "open_attempt",
    "outcome_for",
    "plan_masks",
    "roster_for",
    "shares_for",
    "step",
    "survivors_for",
]


@dataclass(frozen=True)
class SecAggRule:
    """One entry of the table: the function, and where it may lead beside the phase it is in."""

    apply: Callable[[ServerState, Any], ServerState]
    leads_to: tuple[SecAggPhase, ...] = ()


TABLE: Mapping[SecAggPhase, Mapping[type[ServerEvent], SecAggRule]] = {
    SecAggPhase.KEYS: {
        Advertised: SecAggRule(rules.advertise),
        PhaseDeadline: SecAggRule(rules.close_keys, (SecAggPhase.SHARES, SecAggPhase.FAILED)),
    },
    SecAggPhase.SHARES: {
        Shared: SecAggRule(rules.deal, (SecAggPhase.MASKED,)),
        PhaseDeadline: SecAggRule(rules.close_shares, (SecAggPhase.MASKED, SecAggPhase.FAILED)),
    },
    SecAggPhase.MASKED: {
        MaskedArrived: SecAggRule(rules.arrive, (SecAggPhase.AGREEMENT, SecAggPhase.REVEAL, SecAggPhase.FAILED)),
        PhaseDeadline: SecAggRule(rules.close_masked, (SecAggPhase.AGREEMENT, SecAggPhase.REVEAL, SecAggPhase.FAILED)),
    },
    SecAggPhase.AGREEMENT: {
        Agreed: SecAggRule(rules.sign, (SecAggPhase.REVEAL,)),
        PhaseDeadline: SecAggRule(rules.close_agreement, (SecAggPhase.REVEAL, SecAggPhase.FAILED)),
    },
    SecAggPhase.REVEAL: {
        Revealed: SecAggRule(rules.reveal, (SecAggPhase.SUMMED, SecAggPhase.FAILED)),
        PhaseDeadline: SecAggRule(rules.close_reveal, (SecAggPhase.SUMMED, SecAggPhase.FAILED)),
    },
    SecAggPhase.SUMMED: {PhaseDeadline: SecAggRule(rules.late)},
    SecAggPhase.FAILED: {PhaseDeadline: SecAggRule(rules.late)},
}


def open_attempt(terms: SecureTerms, *, plan: str, model: str) -> ServerState:
    """An attempt that collects keys.

    plan: the plan's id.
    model: `roster.model_digest` of their tasks.
    """
    return ServerState(phase=SecAggPhase.KEYS, terms=terms, plan=plan, model=model)


def begin(terms: SecureTerms, advertised: Iterable[Advertised], *, plan: str, model: str) -> ServerState:
    """An attempt among clients whose keys are all there: `open_attempt`, each of them, and the end of that phase."""
    state = open_attempt(terms, plan=plan, model=model)
    for event in advertised:
        state = step(state, event)
    return step(state, PhaseDeadline())


def step(state: ServerState, event: ServerEvent) -> ServerState:
    """The next state. A phase ends when all have answered, or with `PhaseDeadline`.

    Raises errors.Conflict (``secagg_phase``) where the table has no rule, errors.SecureAggregationRefused with the
    check's code, errors.Unauthenticated (``signature_invalid``) or errors.ArgumentValueError (``secagg_key_invalid``)
    for a message that does not keep to the protocol; the state is unchanged then, and its sender drops out when the
    phase ends.
    """
    rule = TABLE[state.phase].get(type(event))
    if rule is None:
        raise errors.Conflict(
            f"The attempt is in the phase {state.phase.value} and cannot take {type(event).__name__}.",
            hint="It arrived too late, or too early; the client continues with what the coordinator sends next.",
            code="secagg_phase",
        )
    return rule.apply(state, event)


def awaited(state: ServerState) -> tuple[int, ...]:
    """The places whose answer is still out in this phase, ascending; nobody's where devices are not yet placed."""
    out: Mapping[SecAggPhase, Callable[[], Iterable[int]]] = {
        SecAggPhase.SHARES: lambda: set(range(state.clients)) - state.dealt.keys(),
        SecAggPhase.MASKED: lambda: state.dealt.keys() - state.arrived,
        SecAggPhase.AGREEMENT: lambda: state.arrived - state.agreed,
        SecAggPhase.REVEAL: lambda: rules.asked_to_reveal(state) - state.revealed.keys(),
    }
    return tuple(sorted(out[state.phase]())) if state.phase in out else ()


def roster_for(state: ServerState, position: int) -> Roster:
    """Who takes part, for the client at a place: its neighbours, or in the mode ``consistent`` everybody."""
    shown = state.near(position) if state.terms.mode == "semi_honest" else range(state.clients)
    return Roster(
        clients=state.clients,
        neighbours=state.parameters.neighbours,
        threshold=state.parameters.threshold,
        position=position,
        digest=state.roster,
        entries=tuple(state.entries[place] for place in shown),
    )


def shares_for(state: ServerState, position: int, bundles: Mapping[int, Shares]) -> SharesFor:
    """The boxes for the client at a place, out of the messages that its neighbours sent.

    bundles: by sender.
    """
    senders = [near for near in state.near(position) if near in state.dealt]
    return SharesFor(boxes={sender: bundles[sender].boxes[position] for sender in senders})


def survivors_for(state: ServerState) -> Survivors:
    """The list of survivors, the same for every client."""
    digest = survivors_digest(state.context, state.alive, state.in_graph)
    return Survivors(alive=state.alive, dealt=state.in_graph, digest=digest)


def agreements_for(state: ServerState, position: int, agreements: Mapping[int, Agreement]) -> Agreements:
    """The signatures of a quorum of the clients, the same for every place.

    agreements: by sender.
    """
    signers = sorted(state.agreed)[: quorum(state.parameters)]
    return Agreements(signatures={signer: agreements[signer].signature for signer in signers})


def outcome_for(state: ServerState) -> Outcome:
    """What became of the attempt."""
    if state.cause is not None:
        return Outcome(state="failed", cause=state.cause.value, detail=f"{state.cause.sentence}: {state.detail}")
    return Outcome(state="summed" if state.phase is SecAggPhase.SUMMED else "open")


def plan_masks(state: ServerState) -> tuple[MaskSeed, ...]:
    """The masks that the sum of the survivors' masked vectors still has, with the signs with which they were added.

    Each survivor's own mask; and for each client that dropped out after dealing its shares, the masks that its
    surviving neighbours made with it. All others have cancelled. Raises errors.Conflict (``secagg_phase``) unless
    ``summed``.
    """
    if state.opened is None:
        raise errors.Conflict(
            f"The attempt is in the phase {state.phase.value}: the secrets that unmask the sum are not known.",
            code="secagg_phase",
        )
    masks = [own_mask(state.context, place, seed) for place, seed in state.opened.seeds.items()]
    for place, private in state.opened.keys.items():
        partners = {near: state.entries[near].mask_key for near in state.near(place) if near in state.arrived}
        public = state.entries[place].mask_key
        masks += [mask.opposite for mask in pair_masks(state.context, place, private, public, partners)]
    return tuple(masks)


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {SecAggPhase.KEYS.value}"]
    for phase, row in TABLE.items():
        for event, rule in row.items():
            lines += [f"    {phase.value} --> {target.value}: {event.__name__}" for target in rule.leads_to]
    return "\n".join([*lines, *(f"    {phase.value} --> [*]" for phase in SecAggPhase if phase.final)]) + "\n"
