"""What each event does to an attempt: the rules that the table of `server` names, one function each.

A rule takes a state in a phase whose row names it and returns the next state. A message that no honest client sends
raises and changes nothing; an attempt that ends without a sum has a cause. A rule for a message costs at most a few
signatures, however many clients there are; the closing of a phase is for a worker where there are many.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from coterie import errors
from coterie.privacy.secagg.derivations import commitment
from coterie.privacy.secagg.keys import KeyPair, check_public
from coterie.privacy.secagg.opening import Fits, Recovered, Sealed, open_all
from coterie.privacy.secagg.parameters import parameters
from coterie.privacy.secagg.roster import ordered, roster_digest, verify_keys
from coterie.privacy.secagg.server_state import AttemptFailure, Blame, Dealt, Opened, SecAggPhase, ServerState
from coterie.privacy.secagg.shares import decode_shares
from coterie.privacy.secagg.survivors import agreement_message, fallen_apart, fewest_survivors, quorum, survivors_digest
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.secagg import AdvertiseKeys, Agreement, Reveal, RosterEntry, Shares
from coterie.protocol.signing import Domain, verify


@dataclass(frozen=True)
class Advertised:
    """A device that reported "trained" sent its keys.

    identity: its public identity key, as it enrolled with it.
    """

    device: str
    identity: str
    keys: AdvertiseKeys


@dataclass(frozen=True)
class Shared:
    """The client at a place dealt its shares."""

    position: int
    shares: Shares


@dataclass(frozen=True)
class MaskedArrived:
    """The whole masked vector of the client at a place is stored."""

    position: int


@dataclass(frozen=True)
class Agreed:
    """The client at a place signed the list of survivors."""

    position: int
    agreement: Agreement


@dataclass(frozen=True)
class Revealed:
    """The client at a place revealed its neighbours' shares."""

    position: int
    reveal: Reveal


@dataclass(frozen=True)
class PhaseDeadline:
    """The time of the phase is over: whoever has not answered has dropped out."""


ServerEvent: TypeAlias = Advertised | Shared | MaskedArrived | Agreed | Revealed | PhaseDeadline


def advertise(state: ServerState, event: Advertised) -> ServerState:
    keys = event.keys
    verify_keys(
        state.terms, plan=state.plan, model=state.model, device=event.device, identity=event.identity, keys=keys
    )
    entry = RosterEntry(position=len(state.entries), device=event.device, identity=event.identity, **keys.model_dump())
    mine = (entry.device, entry.identity, entry.mask_key, entry.channel_key)
    for known in state.entries:
        if (known.device, known.identity, known.mask_key, known.channel_key) == mine:
            return state
        if known.device == entry.device or known.identity == entry.identity:
            raise _refused("A client that has sent its keys sends other keys", code="secagg_repeated")
        if {known.mask_key, known.channel_key} & {entry.mask_key, entry.channel_key}:
            raise _refused("A client sends a key that another client has sent", code="secagg_roster")
    if keys.mask_key == keys.channel_key:
        raise _refused("A client sends one key for both uses", code="secagg_roster")
    for key in (keys.mask_key, keys.channel_key):
        check_public(bytes.fromhex(key))
    if state.clients >= state.terms.max_clients:
        raise _refused(f"The roster already has its {state.terms.max_clients} clients", code="secagg_cohort")
    return replace(state, entries=(*state.entries, entry))


def close_keys(state: ServerState, event: PhaseDeadline) -> ServerState:
    terms, count = state.terms, state.clients
    if count < terms.min_clients:
        return _fail(state, AttemptFailure.TOO_FEW_CLIENTS, f"{count} of at least {terms.min_clients}")
    try:
        parameters(count, corrupt=terms.corrupt, dropout=terms.dropout, mode=terms.mode)
    except errors.ArgumentValueError as error:
        return _fail(state, AttemptFailure.NO_PARAMETERS, error.message)
    places = ordered(state.entries, terms.attempt)
    entries = tuple(state.entries[index].model_copy(update={"position": place}) for place, index in enumerate(places))
    return replace(state, phase=SecAggPhase.SHARES, entries=entries, roster=roster_digest(entries))


def deal(state: ServerState, event: Shared) -> ServerState:
    _check_place(state, event.position)
    dealt = Dealt(event.shares.commitment, sha256_hex(event.shares.model_dump_json().encode("utf-8")))
    before = state.dealt.get(event.position)
    if before == dealt:
        return state
    if before is not None:
        raise _refused(f"Place {event.position} deals other shares a second time", code="secagg_repeated")
    if event.shares.boxes.keys() != set(state.near(event.position)):
        raise _refused(f"Place {event.position} deals shares to others than its neighbours", code="secagg_box")
    after = replace(state, dealt={**state.dealt, event.position: dealt})
    return close_shares(after, PhaseDeadline()) if len(after.dealt) == state.clients else after


def close_shares(state: ServerState, event: PhaseDeadline) -> ServerState:
    kept = _well_connected(state)
    least = fewest_survivors(state.terms, state.parameters)
    if len(kept) < least:
        return _fail(state, AttemptFailure.TOO_FEW_DEALT, f"{len(kept)} of at least {least}")
    return replace(state, phase=SecAggPhase.MASKED, dealt=kept)


def _well_connected(state: ServerState) -> dict[int, Dealt]:
    """Who goes on: all that dealt, but for those that are left with fewer neighbours than the threshold, and so on.

    Those would refuse to go on, and their mask keys could not be opened either; better if nobody makes masks with them.
    """
    kept = dict(state.dealt)
    while True:
        lonely = [
            place for place in kept if sum(near in kept for near in state.near(place)) < state.parameters.threshold
        ]
        if not lonely:
            return kept
        for place in lonely:
            del kept[place]


def arrive(state: ServerState, event: MaskedArrived) -> ServerState:
    _check_place(state, event.position)
    if event.position not in state.dealt:
        raise _refused(
            f"Place {event.position} dealt no shares, so its masks could not be removed", code="secagg_phase"
        )
    after = replace(state, arrived=state.arrived | {event.position})
    return close_masked(after, PhaseDeadline()) if len(after.arrived) == len(state.dealt) else after


def close_masked(state: ServerState, event: PhaseDeadline) -> ServerState:
    least = fewest_survivors(state.terms, state.parameters)
    if len(state.arrived) < least:
        return _fail(state, AttemptFailure.TOO_FEW_SURVIVORS, f"{len(state.arrived)} of at least {least}")
    if fallen_apart(state.arrived, state.parameters):
        return _fail(state, AttemptFailure.FALLEN_APART, f"{len(state.arrived)} of {state.clients} survived")
    lonely = _place_below_threshold(state, state.arrived)
    if lonely is not None:
        return _fail(state, AttemptFailure.TOO_FEW_SURVIVORS, f"of the neighbours of place {lonely}")
    phase = SecAggPhase.AGREEMENT if state.terms.mode == "consistent" else SecAggPhase.REVEAL
    return replace(state, phase=phase)


def sign(state: ServerState, event: Agreed) -> ServerState:
    _check_asked(event.position, state.arrived)
    message = agreement_message(state.context, survivors_digest(state.context, state.alive, state.in_graph))
    identity = state.entries[event.position].identity
    verify(identity, Domain.SECURE_SURVIVORS, message, event.agreement.signature)
    after = replace(state, agreed=state.agreed | {event.position})
    return close_agreement(after, PhaseDeadline()) if after.agreed == state.arrived else after


def close_agreement(state: ServerState, event: PhaseDeadline) -> ServerState:
    least = quorum(state.parameters)
    if len(state.agreed) < least:
        return _fail(state, AttemptFailure.TOO_FEW_AGREED, f"{len(state.agreed)} of at least {least}")
    lonely = _place_below_threshold(state, state.agreed)
    if lonely is not None:
        return _fail(state, AttemptFailure.TOO_FEW_AGREED, f"of the neighbours of place {lonely}")
    return replace(state, phase=SecAggPhase.REVEAL)


def reveal(state: ServerState, event: Revealed) -> ServerState:
    asked = asked_to_reveal(state)
    _check_asked(event.position, asked)
    before = state.revealed.get(event.position)
    if before == event.reveal:
        return state
    if before is not None:
        raise _refused(f"Place {event.position} reveals other shares a second time", code="secagg_repeated")
    near = state.dealt.keys() & set(state.near(event.position))
    if event.reveal.self_shares.keys() != near & state.arrived:
        raise _refused(
            f"Place {event.position} does not reveal the seeds' shares of its survivors", code="secagg_reveal"
        )
    if event.reveal.mask_shares.keys() != near - state.arrived:
        raise _refused(
            f"Place {event.position} does not reveal the keys' shares of those dropped", code="secagg_reveal"
        )
    decode_shares([*event.reveal.self_shares.values(), *event.reveal.mask_shares.values()])
    after = replace(state, revealed={**state.revealed, event.position: event.reveal})
    return close_reveal(after, PhaseDeadline()) if len(after.revealed) == len(asked) else after


def asked_to_reveal(state: ServerState) -> frozenset[int]:
    """Who is asked to reveal: the survivors, of whom in the mode ``consistent`` those that signed."""
    return state.agreed if state.terms.mode == "consistent" else state.arrived


def close_reveal(state: ServerState, event: PhaseDeadline) -> ServerState:
    lonely = _place_below_threshold(state, frozenset(state.revealed))
    if lonely is not None:
        return _fail(state, AttemptFailure.TOO_FEW_REVEALED, f"of the neighbours of place {lonely}")
    threshold = state.parameters.threshold
    seeds = open_all({place: _sealed_seed(state, place) for place in state.survivors}, threshold)
    keys = open_all({place: _sealed_key(state, place) for place in _bound(state)}, threshold)
    blamed = (*_blame(state, seeds), *_blame(state, keys))
    judged = replace(state, blamed=blamed)
    opened = Opened(
        {place: found.secret for place, found in seeds.items() if found.secret is not None},
        {place: found.secret for place, found in keys.items() if found.secret is not None},
    )
    shut = sorted(blame.dealer for blame in blamed if blame.revealer is None)
    if shut:
        return _fail(judged, AttemptFailure.WRONG_SHARES, "that of place " + ", ".join(map(str, shut)))
    return replace(judged, phase=SecAggPhase.SUMMED, opened=opened, revealed={})


def late(state: ServerState, event: PhaseDeadline) -> ServerState:
    """The deadline of an attempt that has ended."""
    return state


def _bound(state: ServerState) -> list[int]:
    """The dropped clients with a surviving neighbour, which made a mask with it."""
    return [place for place in state.dropped if not state.arrived.isdisjoint(state.near(place))]


def _place_below_threshold(state: ServerState, answering: frozenset[int]) -> int | None:
    """A place whose secret must be opened, but with fewer answering neighbours than the threshold."""
    for place in (*state.survivors, *_bound(state)):
        if sum(near in answering for near in state.near(place)) < state.parameters.threshold:
            return place
    return None


def _sealed_seed(state: ServerState, place: int) -> Sealed:
    promised = state.dealt[place].commitment
    shares = {giver: state.revealed[giver].self_shares[place] for giver in _revealing_neighbours(state, place)}
    return _sealed(state, place, shares, lambda seed: commitment(state.context, place, seed) == promised)


def _sealed_key(state: ServerState, place: int) -> Sealed:
    public = state.entries[place].mask_key
    shares = {giver: state.revealed[giver].mask_shares[place] for giver in _revealing_neighbours(state, place)}
    return _sealed(state, place, shares, lambda private: KeyPair.from_private(private).public.hex() == public)


def _revealing_neighbours(state: ServerState, place: int) -> list[int]:
    return [near for near in state.near(place) if near in state.revealed]


def _sealed(state: ServerState, place: int, shares: Mapping[int, str], fits: Fits) -> Sealed:
    numbers = {near: index + 1 for index, near in enumerate(state.near(place))}
    return Sealed([numbers[giver] for giver in shares], decode_shares(list(shares.values())), fits)


def _blame(state: ServerState, recovered: Mapping[int, Recovered]) -> list[Blame]:
    hopeless = [Blame(place) for place, each in recovered.items() if each.secret is None]
    single = [Blame(place, state.near(place)[number - 1]) for place, each in recovered.items() for number in each.wrong]
    return [*hopeless, *single]


def _check_place(state: ServerState, position: int) -> None:
    if not 0 <= position < state.clients:
        raise _refused(f"There is no place {position} among {state.clients} clients", code="secagg_roster")


def _check_asked(position: int, places: frozenset[int]) -> None:
    if position not in places:
        raise _refused(f"Place {position} is not asked: it dropped out before", code="secagg_phase")


def _fail(state: ServerState, cause: AttemptFailure, detail: str) -> ServerState:
    return replace(state, phase=SecAggPhase.FAILED, revealed={}, cause=cause, detail=detail)


def _refused(message: str, code: str) -> errors.SecureAggregationRefused:
    return errors.SecureAggregationRefused(
        f"{message}.", hint="The client violates the protocol; the attempt continues without it.", code=code
    )
