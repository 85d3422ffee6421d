"""A client that lies: refused by name, or blamed, and never the end of anything but the attempt."""

import base64
from collections.abc import Callable

import numpy as np
import pytest
from attempt_kit import MODEL, MODES, PLAN, SPEC, Attempt, Party, device, entropy_of, identity, run, start, terms

from coterie.errors import CoterieError
from coterie.privacy.secagg import client, server
from coterie.privacy.secagg.opening import Sealed, open_all
from coterie.privacy.secagg.ring import pack, reduced, unpack
from coterie.privacy.secagg.roster import keys_message
from coterie.privacy.secagg.server import AttemptFailure, Blame, SecAggPhase
from coterie.privacy.secagg.shamir import PRIME, share
from coterie.protocol.secagg import AdvertiseKeys, Agreement, Reveal, SecureMode, Shares, to_base64
from coterie.protocol.signing import Domain


def refusal(state: server.ServerState, event: server.ServerEvent) -> str:
    """The code with which the coordinator refuses an event."""
    with pytest.raises(CoterieError) as caught:
        server.step(state, event)
    return caught.value.reason


def other_share(text: str, by: int = 1) -> str:
    """Another share: one of its numbers is another one. (X25519 takes no heed of the three lowest bits of a key.)"""
    raw = bytearray(base64.b64decode(text))
    raw[4 * by] ^= 1
    return to_base64(bytes(raw))


def lying(places: set[int], kind: str) -> Callable[[Party, Reveal], Reveal]:
    """Reveals in which these places change every share of a kind."""

    def change(party: Party, reveal: Reveal) -> Reveal:
        if party.place not in places:
            return reveal
        wrong = {place: other_share(text, 1 + party.place) for place, text in getattr(reveal, kind).items()}
        return reveal.model_copy(update={kind: wrong})

    return change


def up_to_reveal(mode: SecureMode, clients: int, gone: set[int]) -> Attempt:
    attempt = start(clients, terms(mode, dropout=0.3))
    attempt.form()
    attempt.deal()
    attempt.gone |= gone
    attempt.mask()
    attempt.agree()
    return attempt


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["self_shares", "mask_shares"])
def test_wrong_shares_are_found_and_the_rest_opens_the_sum(mode: SecureMode, kind: str) -> None:
    attempt = up_to_reveal(mode, 14, {13})
    attempt.reveal(lying({2, 5}, kind))
    assert attempt.coordinator.phase is SecAggPhase.SUMMED
    np.testing.assert_array_equal(attempt.total(), attempt.expected())
    blamed = {blame.revealer for blame in attempt.coordinator.blamed}
    assert blamed == {2, 5}
    opened = range(13) if kind == "self_shares" else [13]
    # Nobody is asked for a share of its own secret.
    assert set(attempt.coordinator.blamed) == {
        Blame(place, liar) for place in opened for liar in (2, 5) if place != liar
    }


@pytest.mark.parametrize("mode", MODES)
def test_too_many_wrong_shares_fail_and_name_whose_secret_stays_shut(mode: SecureMode) -> None:
    attempt = up_to_reveal(mode, 9, {8})
    attempt.reveal(lying({0, 1, 2, 3, 4, 5}, "mask_shares"))
    assert (attempt.coordinator.phase, attempt.coordinator.cause) == (SecAggPhase.FAILED, AttemptFailure.WRONG_SHARES)
    assert attempt.coordinator.blamed == (Blame(8),)
    assert attempt.coordinator.revealed == {}
    # The client at place 8 is honest: nothing may say that it dealt wrong shares.
    assert "dealt" not in attempt.coordinator.detail and attempt.coordinator.detail.endswith("place 8")


@pytest.mark.parametrize("mode", MODES)
def test_a_commitment_to_another_seed_is_blamed_on_its_dealer(mode: SecureMode) -> None:
    attempt = start(9, terms(mode, dropout=0.3))
    attempt.form()
    attempt.deal(
        lambda party, shares: shares.model_copy(update={"commitment": "ab" * 32}) if party.place == 3 else shares
    )
    attempt.mask()
    attempt.agree()
    attempt.reveal()
    assert attempt.coordinator.cause is AttemptFailure.WRONG_SHARES
    assert attempt.coordinator.blamed == (Blame(3),)


def test_a_rebuilt_key_must_be_that_of_the_public_key() -> None:
    """A client that shares another key than it brought, and drops out: the sum stays shut, and it is blamed."""
    attempt = start(9, terms(dropout=0.3))
    attempt.form()
    liar = attempt.at(4)
    secrets = liar.state.secrets
    assert secrets is not None
    honest = liar.state
    liar.state = client.ClientState(
        phase=honest.phase,
        terms=honest.terms,
        plan=honest.plan,
        model=honest.model,
        floor=honest.floor,
        advertised=honest.advertised,
        secrets=type(secrets)(bytes(32), secrets.channel_key, secrets.seed),
    )
    attempt.deal()
    attempt.gone |= {4}
    attempt.mask()
    attempt.reveal()
    assert attempt.coordinator.cause is AttemptFailure.WRONG_SHARES
    assert attempt.coordinator.blamed == (Blame(4),)


def test_a_secret_that_stays_shut_ends_the_search_for_all_others() -> None:
    tried: list[int] = []

    def shut(place: int) -> Sealed:
        return Sealed(range(1, 9), share(bytes(32), 4, 8), lambda found: tried.append(place) is not None)

    found = open_all({place: shut(place) for place in range(50)}, 4)
    assert list(found) == [0] and found[0].secret is None
    assert set(tried) == {0}


@pytest.mark.parametrize("wrong", range(6))
def test_wrong_shares_among_many_are_found_whichever_they_are(wrong: int) -> None:
    random = np.random.default_rng(wrong)
    secret = random.bytes(32)
    shares = share(secret, 27, 43, entropy_of("dealer"))
    bad = sorted(random.choice(43, wrong, replace=False).tolist()) if wrong else []
    shares[bad] = (shares[bad] + 1) % PRIME
    sealed = Sealed(range(1, 44), shares, lambda found: found == secret)
    found = open_all({7: sealed}, 27)[7]
    assert found.secret == secret
    if any(index < 27 for index in bad):
        assert [number - 1 for number in found.wrong] == bad
    else:
        assert found.wrong == ()


def test_keys_that_are_not_signed_for_just_this_are_refused() -> None:
    state = server.open_attempt(terms(), plan=PLAN, model=MODEL)

    def brought(**other: object) -> AdvertiseKeys:
        usual: dict[str, object] = {"device": device(0), "plan": PLAN, "model": MODEL, "identity": identity(0)}
        return client.begin(terms(), **{**usual, **other})[1]  # type: ignore[arg-type]

    def event(keys: AdvertiseKeys) -> server.Advertised:
        return server.Advertised(device(0), identity(0).public, keys)

    for other in ({"device": device(1)}, {"plan": MODEL}, {"model": PLAN}, {"identity": identity(1)}):
        assert refusal(state, event(brought(**other))) == "signature_invalid"
    good = brought()
    for swapped in (
        {"mask_key": good.channel_key, "channel_key": good.mask_key},
        {"mask_key": "00" * 32},
    ):
        assert refusal(state, event(good.model_copy(update=swapped))) == "signature_invalid"


def signed(mask_key: str, channel_key: str, index: int) -> server.Advertised:
    """Keys that a device has signed, whatever they are."""
    message = keys_message(
        terms(), plan=PLAN, model=MODEL, device=device(index), mask_key=mask_key, channel_key=channel_key
    )
    signature = identity(index).sign(Domain.SECURE_KEYS, message)
    keys = AdvertiseKeys(mask_key=mask_key, channel_key=channel_key, signature=signature)
    return server.Advertised(device(index), identity(index).public, keys)


# RFC 7748 section 6.1 and the list of points of small order of Curve25519.
SMALL = ("00" * 32, "01" + "00" * 31, "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800")


def respelled(key: str) -> str:
    """The same key for X25519, with bit 255 flipped."""
    raw = bytes.fromhex(key)
    return (raw[:31] + bytes([raw[31] ^ 0x80])).hex()


def test_another_spelling_of_a_key_is_refused_whoever_signed_it() -> None:
    state = server.open_attempt(terms(), plan=PLAN, model=MODEL)
    good = client.begin(terms(), device=device(0), plan=PLAN, model=MODEL, identity=identity(0))[1]
    state = server.step(state, server.Advertised(device(0), identity(0).public, good))
    # Another device brings the first one's keys, which are others only for who compares bytes.
    assert refusal(state, signed(respelled(good.mask_key), good.channel_key, 1)) == "secagg_roster"
    assert refusal(state, signed(respelled(good.mask_key), respelled(good.channel_key), 1)) == "secagg_key_invalid"


@pytest.mark.parametrize("weak", SMALL)
def test_keys_of_small_order_are_refused(weak: str) -> None:
    state = server.open_attempt(terms(), plan=PLAN, model=MODEL)
    good = client.begin(terms(), device=device(0), plan=PLAN, model=MODEL, identity=identity(0))[1]
    assert refusal(state, signed(weak, good.channel_key, 0)) == "secagg_key_invalid"
    assert refusal(state, signed(good.mask_key, weak, 0)) == "secagg_key_invalid"


def test_keys_of_another_client_and_keys_brought_twice_are_refused() -> None:
    state = server.open_attempt(terms(), plan=PLAN, model=MODEL)
    first = client.begin(terms(), device=device(0), plan=PLAN, model=MODEL, identity=identity(0))[1]
    second = client.begin(terms(), device=device(0), plan=PLAN, model=MODEL, identity=identity(0))[1]
    one = server.Advertised(device(0), identity(0).public, first)
    state = server.step(state, one)
    assert server.step(state, one) == state
    assert refusal(state, server.Advertised(device(0), identity(0).public, second)) == "secagg_repeated"
    assert refusal(state, signed(first.mask_key, second.channel_key, 1)) == "secagg_roster"
    assert refusal(state, signed(second.mask_key, first.mask_key, 1)) == "secagg_roster"
    assert refusal(state, signed(second.mask_key, second.mask_key, 1)) == "secagg_roster"


def test_a_full_roster_takes_nobody_more() -> None:
    agreed = terms(max_clients=6)
    attempt = start(7, agreed)
    assert attempt.refused[6].reason == "secagg_cohort"
    attempt.parties.pop()
    assert run(attempt).coordinator.clients == 6


def test_shares_for_others_than_the_neighbours_and_second_ones_are_refused() -> None:
    attempt = start(9, terms(dropout=0.3))
    attempt.form()
    before = attempt.coordinator
    attempt.deal()
    good = attempt.bundles[0]
    for boxes in (
        {**good.boxes, 0: good.boxes[1]},
        {place: box for place, box in good.boxes.items() if place != 1},
        {**good.boxes, 99: good.boxes[1]},
    ):
        assert refusal(before, server.Shared(0, Shares(commitment=good.commitment, boxes=boxes))) == "secagg_box"
    assert refusal(before, server.Shared(9, good)) == "secagg_roster"
    dealt = server.step(before, server.Shared(0, good))
    assert server.step(dealt, server.Shared(0, good)) == dealt
    other = good.model_copy(update={"commitment": "ab" * 32})
    assert refusal(dealt, server.Shared(0, other)) == "secagg_repeated"


def test_vectors_of_clients_without_shares_or_place_are_refused() -> None:
    attempt = start(9, terms(dropout=0.3))
    attempt.form()
    attempt.gone |= {8}
    attempt.deal()
    assert refusal(attempt.coordinator, server.MaskedArrived(8)) == "secagg_phase"
    assert refusal(attempt.coordinator, server.MaskedArrived(9)) == "secagg_roster"
    once = server.step(attempt.coordinator, server.MaskedArrived(0))
    assert server.step(once, server.MaskedArrived(0)) == once


@pytest.mark.parametrize("mode", MODES)
def test_a_reveal_that_answers_another_question_is_refused(mode: SecureMode) -> None:
    attempt = up_to_reveal(mode, 9, {8})
    before = attempt.coordinator
    attempt.reveal()
    good = attempt.reveals[0]
    both = good.model_copy(update={"mask_shares": {**good.mask_shares, 1: good.self_shares[1]}})
    none = Reveal(self_shares={}, mask_shares={})
    outside = good.model_copy(update={"self_shares": {**good.self_shares, 1: to_base64(b"\xff" * 36)}})
    for wrong, code in ((both, "secagg_reveal"), (none, "secagg_reveal"), (outside, "secagg_shares")):
        assert refusal(before, server.Revealed(0, wrong)) == code
    assert refusal(before, server.Revealed(8, good)) == "secagg_phase"
    once = server.step(before, server.Revealed(0, good))
    assert server.step(once, server.Revealed(0, good)) == once
    other = good.model_copy(
        update={"self_shares": {place: other_share(text) for place, text in good.self_shares.items()}}
    )
    assert refusal(once, server.Revealed(0, other)) == "secagg_repeated"


def test_an_agreement_of_somebody_else_is_refused() -> None:
    attempt = start(9, terms("consistent", dropout=0.3))
    attempt.form()
    attempt.deal()
    attempt.mask()
    before = attempt.coordinator
    attempt.agree()
    for other in (attempt.agreements[1], Agreement(signature="A" * 86 + "==")):
        assert refusal(before, server.Agreed(0, other)) == "signature_invalid"
    assert server.step(before, server.Agreed(0, attempt.agreements[0])).agreed == {0}


@pytest.mark.parametrize("mode", MODES)
def test_messages_for_other_phases_are_late_or_early(mode: SecureMode) -> None:
    attempt = run(start(9, terms(mode, dropout=0.3)))
    events = [
        server.Shared(0, attempt.bundles[0]),
        server.MaskedArrived(0),
        server.Revealed(0, attempt.reveals[0]),
        server.Advertised(device(0), identity(0).public, attempt.keys[0]),
    ]
    for event in events:
        assert refusal(attempt.coordinator, event) == "secagg_phase"
    assert server.step(attempt.coordinator, server.PhaseDeadline()) == attempt.coordinator


def test_a_vector_outside_its_range_is_part_of_the_sum_as_any_other() -> None:
    """What secure aggregation cannot do: see into a vector. The ring keeps it from spreading to other coordinates."""
    attempt = start(9, terms(dropout=0.3))
    attempt.form()
    attempt.deal()
    attempt.mask()
    shifted = unpack(attempt.masked[0], SPEC)
    shifted[2] += np.uint32(5000)
    attempt.masked[0] = pack(reduced(shifted, SPEC), SPEC)
    attempt.reveal()
    difference = reduced(attempt.total() - attempt.expected(), SPEC)
    assert difference[2] == 5000
    assert not np.delete(difference, 2).any()
