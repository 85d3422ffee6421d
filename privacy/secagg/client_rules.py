"""What a client makes of each message: the rules that the table of `client` names, and the checks that it owes itself.

A rule takes the state and a message, and returns the next state and the answer. Whatever is wrong raises; the attempt
is over for this client then, and nothing of it was said. None of the checks can be turned off by the coordinator: they
need nothing but the signed task, the client's own floor, and what the client keeps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from coterie import errors
from coterie.privacy.entropy import Entropy
from coterie.privacy.secagg import channel, ring, shamir
from coterie.privacy.secagg.client_state import ClientSecrets, ClientState, Entrusted, SecAggClientPhase
from coterie.privacy.secagg.derivations import channel_keys, commitment, own_mask, pair_masks
from coterie.privacy.secagg.encoding import vector_spec
from coterie.privacy.secagg.endorsed import check, check_roster, subjects
from coterie.privacy.secagg.graph import neighbours
from coterie.privacy.secagg.keys import check_public
from coterie.privacy.secagg.masking import masked
from coterie.privacy.secagg.parameters import Parameters, parameters
from coterie.privacy.secagg.roster import ordered, roster_digest, verify_keys
from coterie.privacy.secagg.shares import BOXED, decode_shares, encode_share
from coterie.privacy.secagg.survivors import (
    agreement_message,
    fallen_apart,
    fewest_survivors,
    from_bits,
    quorum,
    survivors_digest,
)
from coterie.protocol.canonical import first_repeated, sha256_hex
from coterie.protocol.secagg import (
    Agreement,
    Agreements,
    Outcome,
    Reveal,
    Roster,
    RosterEntry,
    Shares,
    SharesFor,
    Survivors,
    from_base64,
    to_base64,
)
from coterie.protocol.signing import Domain, SigningKey, verify

BOX_PHASE = "shares"


@dataclass(frozen=True)
class Host:
    """What a rule needs beside state and message: the device's identity key, and fresh bytes."""

    identity: SigningKey
    entropy: Entropy


def take_roster(state: ClientState, roster: Roster, host: Host) -> tuple[ClientState, Shares]:
    """Check who takes part; then deal the shares of the own mask's seed and of the mask key to the neighbours."""
    settled = _check_size(state, roster)
    entries = _check_entries(state, roster, settled)
    own = state.advertised.model_copy(update={"position": roster.position})
    if state.terms.mode == "consistent":
        _check_everybody(state, roster, own)
    endorsed = subjects(roster.entries, state.required) if state.required.least else {}
    check_roster(endorsed, settled, state.required)
    known = replace(
        state,
        phase=SecAggClientPhase.SHARES,
        advertised=own,
        clients=roster.clients,
        roster=roster.digest,
        neighbours=entries,
        identities=tuple(entry.identity for entry in roster.entries) if state.terms.mode == "consistent" else (),
        subjects=endorsed,
    )
    channels = channel_keys(known.context, own, secrets_of(state).channel_key, entries)
    return replace(known, channels=channels), _deal(known, channels, host)


def _check_size(state: ClientState, roster: Roster) -> Parameters:
    """The parameters for this number of clients, if it is one that the client agreed to."""
    terms, least = state.terms, max(state.terms.min_clients, state.floor)
    if not least <= roster.clients <= terms.max_clients:
        raise _refused(
            f"The roster has {roster.clients} clients; this client takes part with {least} to {terms.max_clients}",
            code="secagg_cohort",
        )
    own = parameters(roster.clients, corrupt=terms.corrupt, dropout=terms.dropout, mode=terms.mode)
    if (roster.neighbours, roster.threshold) != (own.neighbours, own.threshold):
        raise _refused(
            f"{roster.clients} clients in the mode {terms.mode} need {own.neighbours} neighbours and a threshold of "
            f"{own.threshold}; the coordinator says {roster.neighbours} and {roster.threshold}",
            code="secagg_weakened",
        )
    return own


def _check_entries(state: ClientState, roster: Roster, settled: Parameters) -> dict[int, RosterEntry]:
    """The neighbours' entries by place, if they are just those that the client must be shown."""
    if roster.position >= roster.clients:
        raise _refused(f"There is no place {roster.position} among {roster.clients} clients", code="secagg_roster")
    near = neighbours(roster.position, roster.clients, settled.neighbours)
    shown = near if state.terms.mode == "semi_honest" else tuple(range(roster.clients))
    if tuple(entry.position for entry in roster.entries) != shown:
        raise _refused(
            f"The roster for place {roster.position} does not show the {len(shown)} clients that it must, in order",
            code="secagg_roster",
        )
    others = [entry for entry in roster.entries if entry.position != roster.position]
    everyone = [*others, state.advertised]
    for what, values in (
        ("device", [entry.device for entry in everyone]),
        ("identity", [entry.identity for entry in everyone]),
        ("key", [key for entry in everyone for key in (entry.mask_key, entry.channel_key)]),
    ):
        if first_repeated(values) is not None:
            raise _refused(f"The roster has the same {what} twice", code="secagg_roster")
    for entry in others:
        for key in (entry.mask_key, entry.channel_key):
            check_public(bytes.fromhex(key))
    found = {entry.position: entry for entry in others}
    return {place: found[place] for place in near}


def _check_everybody(state: ClientState, roster: Roster, own: RosterEntry) -> None:
    """Mode ``consistent``: all entries are signed for just this, in the one order, and the digest is theirs."""
    if roster.entries[roster.position] != own:
        raise _refused("The roster shows other keys of this client than it sent", code="secagg_roster")
    for entry in roster.entries:
        try:
            verify_keys(
                state.terms,
                plan=state.plan,
                model=state.model,
                device=entry.device,
                identity=entry.identity,
                keys=entry,
            )
        except errors.Unauthenticated:
            raise _refused(
                f"The client at place {entry.position} did not sign its keys for this attempt, plan, model and terms: "
                "it received something else, or the coordinator forged them",
                code="secagg_signature",
            ) from None
    if ordered(roster.entries, state.terms.attempt) != tuple(range(roster.clients)):
        raise _refused("The places in the roster are not those that the keys give", code="secagg_roster")
    if roster_digest(roster.entries) != roster.digest:
        raise _refused("The roster's digest is not that of its entries", code="secagg_roster")


def _deal(state: ClientState, channels: Mapping[int, bytes], host: Host) -> Shares:
    secrets = secrets_of(state)
    threshold, count = state.parameters.threshold, state.parameters.neighbours
    seeds = shamir.share(secrets.seed, threshold, count, host.entropy)
    keys = shamir.share(secrets.mask_key, threshold, count, host.entropy)
    boxes: dict[int, str] = {}
    for index, place in enumerate(state.neighbours):
        about = channel.associated(state.context, BOX_PHASE, state.position, place)
        both = encode_share(seeds[index]) + encode_share(keys[index])
        boxes[place] = to_base64(channel.seal(channels[place], both, about, host.entropy))
    return Shares(commitment=commitment(state.context, state.position, secrets.seed), boxes=boxes)


def take_shares(state: ClientState, message: SharesFor, host: Host) -> tuple[ClientState, None]:
    """Open the neighbours' boxes. Neighbours without one have dropped out, and no mask is made with them."""
    strangers = message.boxes.keys() - state.neighbours.keys()
    if strangers:
        raise _refused(f"Place {min(strangers)} is not a neighbour, but has a box for this client", code="secagg_box")
    if len(message.boxes) < state.parameters.threshold:
        raise _refused(
            f"{len(message.boxes)} neighbours are left; with fewer than {state.parameters.threshold} this client's "
            "own mask could not be removed from the sum",
            code="secagg_neighbours",
        )
    shares: dict[int, Entrusted] = {}
    for place, box in message.boxes.items():
        about = channel.associated(state.context, BOX_PHASE, place, state.position)
        try:
            both = channel.unseal(state.channels[place], from_base64(box) or b"", about)
        except errors.InputError as error:
            # Named, so that whose boxes never open can be found among what devices say when they give up.
            device = state.neighbours[place].device
            raise _refused(
                f"Of device {device}, place {place}: {error.message.rstrip('.')}", code="secagg_box"
            ) from None
        shares[place] = _shares_in_box(place, both)
    return replace(state, phase=SecAggClientPhase.VECTOR, channels={}, shares=shares), None


def _shares_in_box(place: int, both: bytes) -> Entrusted:
    if len(both) != BOXED:
        raise _refused(f"The box of place {place} holds {len(both)} bytes, not {BOXED}", code="secagg_box")
    shares = to_base64(both[: BOXED // 2]), to_base64(both[BOXED // 2 :])
    decode_shares(shares)
    return Entrusted(*shares)


@dataclass(frozen=True, eq=False, repr=False)
class InputVector:
    """What the client brings to the sum: one uint32 for each coordinate, below its segment's modulus."""

    numbers: ring.RingVector


def mask_vector(state: ClientState, vector: InputVector) -> tuple[ClientState, bytes]:
    """Add the own mask and those of all pairs, and pack: the only form in which the vector leaves."""
    packed = _masked(state, vector)
    return replace(state, phase=SecAggClientPhase.SURVIVORS, vector=sha256_hex(packed)), packed


def mask_again(state: ClientState, vector: InputVector) -> tuple[ClientState, bytes]:
    """The same bytes for the same vector. The difference of two masked vectors would be that of the vectors."""
    packed = _masked(state, vector)
    if sha256_hex(packed) != state.vector:
        raise _refused("A second vector would be sent under the masks of the first one", code="secagg_second_vector")
    return state, packed


def _masked(state: ClientState, vector: InputVector) -> bytes:
    secrets, spec = secrets_of(state), vector_spec(state.terms.sections)
    partners = {place: state.neighbours[place].mask_key for place in state.shares}
    own = own_mask(state.context, state.position, secrets.seed)
    pairs = pair_masks(state.context, state.position, secrets.mask_key, state.advertised.mask_key, partners)
    try:
        return masked(vector.numbers, spec, [own, *pairs])
    except errors.ArgumentValueError as error:
        raise _refused(error.message.rstrip("."), code="secagg_vector") from None


def take_survivors(state: ClientState, message: Survivors, host: Host) -> tuple[ClientState, Agreement | Reveal]:
    """Check the list of survivors; then answer it, in the mode ``consistent`` by signing it first."""
    alive, dealt = from_bits(message.alive, state.clients), from_bits(message.dealt, state.clients)
    if survivors_digest(state.context, message.alive, message.dealt) != message.digest:
        raise _refused("The digest of the list of survivors is not that of the list", code="secagg_survivors")
    if state.position not in alive:
        raise _refused("The coordinator counts this client as dropped out, though it is here", code="secagg_survivors")
    if not alive <= dealt or dealt & state.neighbours.keys() != frozenset(state.shares):
        raise _refused(
            "The list of survivors does not match the masks that were made: a survivor dealt no shares, or the "
            "boxes received and the survivors listed differ",
            code="secagg_survivors",
        )
    least = fewest_survivors(state.terms, state.parameters, state.floor)
    if len(alive) < least:
        raise _refused(
            f"{len(alive)} of {state.clients} clients survived; this client opens no sum of fewer than {least}",
            code="secagg_cohort",
        )
    check(state.subjects, alive, state.required, "list of survivors")
    near = len(alive & state.shares.keys())
    if near < state.parameters.threshold:
        raise _refused(
            f"{near} neighbours survived; the threshold is {state.parameters.threshold}", code="secagg_neighbours"
        )
    if fallen_apart(alive, state.parameters):
        raise _refused(
            "The survivors are groups without a neighbour in common: each would be summed separately",
            code="secagg_survivors",
        )
    accepted = replace(state, alive=message.alive, listed=message.digest)
    if state.terms.mode == "semi_honest":
        return reveal(accepted, alive)
    signature = host.identity.sign(Domain.SECURE_SURVIVORS, agreement_message(state.context, message.digest))
    return replace(accepted, phase=SecAggClientPhase.AGREEMENTS), Agreement(signature=signature)


def take_agreements(state: ClientState, message: Agreements, host: Host) -> tuple[ClientState, Reveal]:
    """Answer the list of survivors once a quorum of all clients has signed the very same one."""
    alive = from_bits(state.alive, state.clients)
    signed = agreement_message(state.context, state.listed)
    for place, signature in message.signatures.items():
        if place not in alive:
            raise _refused(f"Place {place} is not a survivor, but agrees", code="secagg_agreement")
        try:
            verify(state.identities[place], Domain.SECURE_SURVIVORS, signed, signature)
        except errors.Unauthenticated:
            raise _refused(
                f"The client at place {place} did not sign the list of survivors that this client was shown",
                code="secagg_agreement",
            ) from None
    if len(message.signatures) < quorum(state.parameters):
        raise _refused(
            f"{len(message.signatures)} clients agree about the survivors; {quorum(state.parameters)} must",
            code="secagg_agreement",
        )
    return reveal(state, alive)


def reveal(state: ClientState, alive: frozenset[int]) -> tuple[ClientState, Reveal]:
    """One share of each neighbour, and never both: who dropped out is whoever is not alive, which the client works out.

    The secrets end here, before the answer leaves: there is nothing left that a second question could be answered from.
    """
    answer = Reveal(
        self_shares={place: share.seed for place, share in state.shares.items() if place in alive},
        mask_shares={place: share.mask_key for place, share in state.shares.items() if place not in alive},
    )
    return replace(state, phase=SecAggClientPhase.OUTCOME, secrets=None, shares={}), answer


def take_outcome(state: ClientState, message: Outcome, host: Host) -> tuple[ClientState, None]:
    """The attempt is over, whether there is a sum or not; one that is still open changes nothing."""
    return (state if message.state == "open" else state.without_secrets()), None


def secrets_of(state: ClientState) -> ClientSecrets:
    """The client's own secrets; every phase in which a rule asks for them has them."""
    if state.secrets is None:
        raise errors.InternalError(f"A client that awaits {state.awaits} has no secrets left.")
    return state.secrets


def _refused(message: str, code: str) -> errors.SecureAggregationRefused:
    return errors.SecureAggregationRefused(
        f"{message}.",
        hint="This client sends nothing more in this attempt; the next one starts anew.",
        code=code,
    )
