"""A coordinator that lies: each lie is refused by name by a client, and no vector and no seed of one is ever opened."""

import numpy as np
import pytest
from attempt_kit import (
    MODES,
    SPEC,
    Party,
    identity,
    run,
    sent,
    start,
    terms,
    vector,
)
from lying_kit import at, listed, refusal

from coterie.errors import CoterieError
from coterie.privacy.secagg import client, server, shamir, unmask
from coterie.privacy.secagg.derivations import own_mask, pair_masks
from coterie.privacy.secagg.ring import reduced, unpack
from coterie.privacy.secagg.shares import decode_shares
from coterie.privacy.secagg.survivors import agreement_message, quorum
from coterie.protocol.secagg import Agreement, Agreements, Reveal, SecureMode, SharesFor, Survivors
from coterie.protocol.signing import Domain


@pytest.mark.parametrize("mode", MODES)
def test_boxes_of_too_few_neighbours_or_of_strangers_are_refused(mode: SecureMode) -> None:
    attempt = at("shares", mode)
    shares = server.shares_for(attempt.coordinator, 0, attempt.bundles)
    few = dict(list(shares.boxes.items())[: attempt.coordinator.parameters.threshold - 1])
    assert refusal(attempt.at(0), SharesFor(boxes=few)).reason == "secagg_neighbours"
    own = {**shares.boxes, 1: attempt.bundles[1].boxes[2]}
    assert refusal(attempt.at(1), SharesFor(boxes=own)).reason == "secagg_box"


@pytest.mark.parametrize("mode", MODES)
def test_a_box_for_another_client_or_from_another_one_stays_shut(mode: SecureMode) -> None:
    attempt = at("shares", mode)
    shares = server.shares_for(attempt.coordinator, 0, attempt.bundles)
    crossed = {**shares.boxes, 1: shares.boxes[2], 2: shares.boxes[1]}
    refused = refusal(attempt.at(0), SharesFor(boxes=crossed))
    # By name, so that somebody whose boxes never open is found in what the others say when they give up.
    assert refused.reason == "secagg_box"
    assert any(
        f"device {each.device}, place {each.position}" in refused.message for each in attempt.coordinator.entries
    )
    mine = {**shares.boxes, 1: attempt.bundles[0].boxes[1]}
    fresh = at("shares", mode)
    assert refusal(fresh.at(0), SharesFor(boxes=mine)).reason == "secagg_box"


@pytest.mark.parametrize("mode", MODES)
def test_a_list_of_survivors_without_the_reader_is_refused(mode: SecureMode) -> None:
    attempt = at("survivors", mode)
    party = attempt.at(3)
    assert refusal(party, listed(party, {0, 1, 2, 4, 5, 6, 7, 8})).reason == "secagg_survivors"


@pytest.mark.parametrize("mode", MODES)
def test_too_few_survivors_are_refused(mode: SecureMode) -> None:
    attempt = at("survivors", mode)
    party = attempt.at(0)
    assert refusal(party, listed(party, {0, 1, 2, 3})).reason == "secagg_cohort"


def before_the_list(clients: int, corrupt: float, place: int) -> Party:
    """A client on a ring of which all have dealt their shares, and which has sent its vector."""
    attempt = start(clients, terms(corrupt=corrupt, dropout=0.2))
    attempt.form()
    attempt.deal()
    party = attempt.at(place)
    party.step(server.shares_for(attempt.coordinator, place, attempt.bundles))
    party.state, _ = client.mask(party.state, vector(party.index))
    assert not party.state.parameters.complete
    return party


def test_on_a_ring_as_many_must_survive_as_the_parameters_count_on() -> None:
    party = before_the_list(64, 0.1, place=0)
    too_many = 64 - party.state.parameters.fewest_survivors + 1
    gone = set(range(20, 20 + too_many))
    assert refusal(party, listed(party, set(range(64)) - gone)).reason == "secagg_cohort"


def test_on_a_ring_as_many_neighbours_must_survive_as_open_a_secret() -> None:
    party = before_the_list(64, 0.1, place=0)
    gone = set(list(party.state.neighbours)[: len(party.state.neighbours) - party.state.parameters.threshold + 1])
    assert refusal(party, listed(party, set(range(64)) - gone)).reason == "secagg_neighbours"


def test_on_a_ring_survivors_that_are_two_groups_are_refused() -> None:
    party = before_the_list(128, 0.02, place=64)
    reach = party.state.parameters.neighbours // 2
    gone = {*range(10, 10 + reach), *range(100, 100 + reach)}
    question = listed(party, set(range(128)) - gone)
    assert refusal(party, question).reason == "secagg_survivors"
    again = before_the_list(128, 0.02, place=64)
    assert isinstance(again.step(listed(again, set(range(128)) - gone | {10})), Reveal)


def test_a_client_that_never_dealt_its_shares_cannot_survive() -> None:
    for mode in MODES:
        attempt = start(9, terms(mode, dropout=0.3))
        attempt.form()
        attempt.gone |= {8}
        attempt.deal()
        attempt.mask()
        for alive, dealt in (
            (set(range(9)), set(range(9))),
            (set(range(9)), set(range(8))),
            (set(range(7)), set(range(7))),
        ):
            party = attempt.at(0)
            before = party.state
            assert refusal(party, listed(party, alive, dealt)).reason == "secagg_survivors"
            party.state, party.refusal = before, None


@pytest.mark.parametrize("mode", MODES)
def test_a_survivor_is_never_opened_as_dropped_too(mode: SecureMode) -> None:
    # The coordinator has no way to name the dropped: a client works them out. Whatever list it is sent, it reveals one
    # share of each neighbour, and for the second list none at all.
    attempt = at("survivors", mode, dropped=(7,))
    party = attempt.at(0)
    first = party.step(server.survivors_for(attempt.coordinator))
    if mode == "consistent":
        for other in attempt.active():
            if other is not party:
                attempt.agreements[other.place] = other.step(server.survivors_for(attempt.coordinator))
                attempt.feed(server.Agreed(other.place, attempt.agreements[other.place]))
        first = party.step(server.agreements_for(attempt.coordinator, 0, attempt.agreements))
    assert isinstance(first, Reveal)
    assert not first.self_shares.keys() & first.mask_shares.keys()
    assert first.mask_shares.keys() == {7}
    assert refusal(party, listed(attempt.at(1), set(range(9)) - {6, 7})).reason == "secagg_repeated"


@pytest.mark.parametrize("mode", MODES)
def test_the_same_question_again_is_answered_alike_and_another_one_not_at_all(mode: SecureMode) -> None:
    attempt = at("survivors", mode)
    party = attempt.at(0)
    question = server.survivors_for(attempt.coordinator)
    answer = party.step(question)
    assert party.step(question) == answer
    assert refusal(party, listed(attempt.at(1), set(range(8)))).reason == "secagg_repeated"
    assert refusal(party, question).reason == "secagg_repeated"


def test_in_semi_honest_two_lists_open_one_clients_vector() -> None:
    """Why noise that devices share trusts the coordinator there, whatever it adds up to in a sum."""
    attempt = at("survivors", "semi_honest", clients=100)
    coordinator, victim, everyone = attempt.coordinator, 42, set(range(100))
    near, threshold = coordinator.near(victim), coordinator.parameters.threshold
    seeds: dict[int, str] = {}
    keys: dict[int, str] = {}
    for number, place in enumerate(near, 1):
        party = attempt.at(place)
        told = everyone if number <= threshold else everyone - {victim}
        answer = party.step(listed(party, told))
        assert isinstance(answer, Reveal)
        if number <= threshold:
            seeds[number] = answer.self_shares[victim]
        else:
            keys[number] = answer.mask_shares[victim]
    seed, private = (
        shamir.rebuild(list(found), decode_shares(list(found.values())), threshold) for found in (seeds, keys)
    )
    publics = {place: coordinator.entries[place].mask_key for place in near}
    public = coordinator.entries[victim].mask_key
    read = unpack(attempt.masked[victim], SPEC)
    masks = [own_mask(coordinator.context, victim, seed)]
    masks += pair_masks(coordinator.context, victim, private, public, publics)
    unmask.remove(read, masks)
    assert np.array_equal(reduced(read, SPEC), vector(attempt.at(victim).index))


def test_two_lists_of_survivors_find_too_few_that_agree() -> None:
    # One client is counted out for half of its neighbours and in for the others, so that its seed's shares come from
    # some and its key's shares from the rest.
    attempt = at("survivors", "consistent", clients=11)
    victim, everyone = 10, set(range(11))
    honest, lie = listed(attempt.at(0), everyone), listed(attempt.at(0), everyone - {victim})
    needed = quorum(attempt.coordinator.parameters)
    signatures: dict[int, str] = {}
    for party in attempt.active():
        if party.place != victim:
            answer = party.step(honest if party.place < 5 else lie)
            assert isinstance(answer, Agreement)
            signatures[party.place] = answer.signature
    for party in attempt.active():
        if party.place == victim:
            continue
        agreeing = range(5) if party.place < 5 else range(5, 10)
        mine = {place: signatures[place] for place in agreeing if place != party.place}
        assert len(mine) < needed
        assert refusal(party, Agreements(signatures=mine)).reason == "secagg_agreement"


def test_on_a_ring_the_agreement_of_ones_neighbourhood_is_not_enough() -> None:
    # Half of the ring is told one list and the other half another: all neighbours of a client agree with it.
    attempt = start(64, terms("consistent", corrupt=0.03, dropout=0.1))
    attempt.form()
    attempt.deal()
    party = attempt.at(16)
    party.step(server.shares_for(attempt.coordinator, 16, attempt.bundles))
    party.state, _ = client.mask(party.state, vector(party.index))
    question = listed(party, set(range(64)) - {40})
    assert isinstance(party.step(question), Agreement)
    message = agreement_message(party.state.context, question.digest)
    half = {
        place: identity(attempt.at(place).index).sign(Domain.SECURE_SURVIVORS, message)
        for place in range(32)
        if place != 16
    }
    assert party.state.neighbours.keys() <= half.keys()
    assert len(half) > party.state.parameters.threshold
    assert refusal(party, Agreements(signatures=half)).reason == "secagg_agreement"


def test_a_signature_for_another_list_or_of_another_client_is_no_agreement() -> None:
    attempt = at("agreements", "consistent", clients=11)
    good = server.agreements_for(attempt.coordinator, 0, attempt.agreements).signatures
    for changed in (
        {**good, 1: good[2]},
        {**good, 10: good[2]},
        dict(list(good.items())[:-1]),
    ):
        party = attempt.at(0)
        before = party.state
        assert refusal(party, Agreements(signatures=changed)).reason == "secagg_agreement"
        party.state, party.refusal = before, None
    assert isinstance(attempt.at(0).step(Agreements(signatures=good)), Reveal)


def test_a_second_vector_is_not_masked() -> None:
    attempt = at("survivors", "semi_honest")
    party = attempt.at(0)
    state, again = client.mask(party.state, vector(party.index))
    assert (state, again) == (party.state, attempt.masked[0])
    with pytest.raises(CoterieError) as caught:
        client.mask(party.state, vector(party.index + 1))
    assert caught.value.reason == "secagg_second_vector"


def test_a_vector_outside_its_ring_is_not_masked() -> None:
    attempt = at("shares", "semi_honest")
    party = attempt.at(0)
    party.step(server.shares_for(attempt.coordinator, 0, attempt.bundles))
    words = vector(party.index)
    words[SPEC.places()["counts"]] = 1 << 13
    with pytest.raises(CoterieError) as caught:
        client.mask(party.state, words)
    assert caught.value.reason == "secagg_vector"


def test_what_a_coordinator_says_out_of_turn_is_refused() -> None:
    attempt = at("roster", "semi_honest")
    party = attempt.at(0)
    assert refusal(party, Survivors(alive="AQI=", dealt="AQI=", digest="00" * 32)).reason == "secagg_phase"
    with pytest.raises(CoterieError) as caught:
        client.mask(attempt.at(1).state, vector(1))
    assert caught.value.reason == "secagg_phase"


def test_all_of_it_goes_well_with_an_honest_coordinator() -> None:
    for mode in MODES:
        attempt = run(start(9, terms(mode, dropout=0.3)))
        assert sent(server.outcome_for(attempt.coordinator)).state == "summed"
