"""A coordinator that lies about the parameters, the roster or the model: each lie is refused by name,
before a client has dealt a share.
"""

from collections.abc import Callable

import pytest
from attempt_kit import (
    MODES,
    Attempt,
    device,
    entropy_of,
    identity,
    start,
    terms,
)
from lying_kit import at, refusal

from coterie.errors import CoterieError
from coterie.privacy.secagg import client, server
from coterie.privacy.secagg.roster import roster_digest
from coterie.protocol.secagg import Roster, SecureMode, SharesFor


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", [{"threshold": 2}, {"neighbours": 2}, {"threshold": 1, "neighbours": 1}], ids=str)
def test_weakened_parameters_are_refused(mode: SecureMode, change: dict[str, int]) -> None:
    attempt = at("roster", mode)
    party = attempt.at(0)
    lie = server.roster_for(attempt.coordinator, 0).model_copy(update=change)
    assert refusal(party, lie).reason == "secagg_weakened"


def test_terms_with_a_lower_fraction_of_corrupt_clients_are_other_terms() -> None:
    # Told to one client alone, they make its signature one that no other client takes, and its keys others.
    weak = terms("consistent", corrupt=0.0, dropout=0.3)
    attempt = start(9, terms("consistent", dropout=0.3), told={4: {"terms": weak}})
    assert attempt.refused[4].reason == "signature_invalid"


@pytest.mark.parametrize("mode", MODES)
def test_a_cohort_below_the_floor_is_refused(mode: SecureMode) -> None:
    attempt = start(6, terms(mode, dropout=0.3, min_clients=3))
    attempt.form()
    party = attempt.at(0)
    party.state, _ = client.begin(
        attempt.terms,
        device=party.state.advertised.device,
        plan=party.state.plan,
        model=party.state.model,
        identity=identity(party.index),
        floor=7,
    )
    assert refusal(party, server.roster_for(attempt.coordinator, 0)).reason == "secagg_cohort"


def test_terms_that_allow_no_cohort_of_the_floor_are_refused_before_a_key_is_made() -> None:
    with pytest.raises(CoterieError) as caught:
        client.begin(terms(max_clients=9), device=device(0), plan="a", model="b", identity=identity(0), floor=10)
    assert caught.value.reason == "secagg_cohort"


def test_more_clients_than_the_rings_have_room_for_are_refused() -> None:
    attempt = start(9, terms(dropout=0.3))
    attempt.form()
    party = attempt.at(0)
    party.state, _ = client.begin(
        terms(dropout=0.3, max_clients=8),
        device=party.state.advertised.device,
        plan=party.state.plan,
        model=party.state.model,
        identity=identity(party.index),
    )
    assert refusal(party, server.roster_for(attempt.coordinator, 0)).reason == "secagg_cohort"


def twin(attempt: Attempt, place: int) -> Roster:
    """The roster for a place in which one client's keys are of the coordinator's own making."""
    roster = server.roster_for(attempt.coordinator, place)
    victim = next(index for index, entry in enumerate(roster.entries) if entry.position != place)
    forged, _ = client.begin(
        attempt.terms, device=device(0), plan="a", model="b", identity=identity(999), entropy=entropy_of("coordinator")
    )
    entry = roster.entries[victim].model_copy(
        update={"mask_key": forged.advertised.mask_key, "channel_key": forged.advertised.channel_key}
    )
    entries = (*roster.entries[:victim], entry, *roster.entries[victim + 1 :])
    return roster.model_copy(update={"entries": entries, "digest": roster_digest(entries)})


def test_two_rosters_of_which_one_has_made_up_keys_are_refused_at_once_in_consistent_mode() -> None:
    attempt = at("roster", "consistent")
    assert refusal(attempt.at(0), twin(attempt, 0)).reason == "secagg_signature"


def test_two_rosters_with_other_clients_do_not_open_one_anothers_boxes() -> None:
    # Every signature is good: the coordinator leaves out one client for one reader and another one for the rest.
    for mode in MODES:
        agreed = terms(mode, dropout=0.3)
        first, second = start(9, agreed), start(10, agreed)
        for attempt in (first, second):
            attempt.form()
            attempt.deal()
        one = first.parties[0]
        other = next(party for party in second.parties if party.index == 0)
        assert one.state.roster != other.state.roster
        # Boxes from the second roster reach the client of the first one.
        boxes = {
            sender: second.bundles[second.at(place).place].boxes[other.place]
            for sender, place in zip(one.state.neighbours, other.state.neighbours, strict=False)
        }
        assert refusal(one, SharesFor(boxes=boxes)).reason == "secagg_box"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", ["device", "identity", "mask_key", "channel_key"])
def test_a_client_that_stands_there_twice_is_refused(mode: SecureMode, what: str) -> None:
    attempt = at("roster", mode)
    roster = server.roster_for(attempt.coordinator, 0)
    values = {what: getattr(roster.entries[2], what)}
    entries = (*roster.entries[:3], roster.entries[3].model_copy(update=values), *roster.entries[4:])
    assert refusal(attempt.at(0), roster.model_copy(update={"entries": entries})).reason == "secagg_roster"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", ["mask_key", "channel_key"])
def test_a_client_that_stands_there_twice_by_another_spelling_of_its_key_is_refused(
    mode: SecureMode, what: str
) -> None:
    attempt = at("roster", mode)
    roster = server.roster_for(attempt.coordinator, 0)
    key = bytes.fromhex(getattr(roster.entries[2], what))
    values = {what: (key[:31] + bytes([key[31] ^ 0x80])).hex()}
    entries = (*roster.entries[:3], roster.entries[3].model_copy(update=values), *roster.entries[4:])
    lie = roster.model_copy(update={"entries": entries})
    assert refusal(attempt.at(0), lie).reason == "secagg_key_invalid"


def test_a_roster_of_anything_but_the_neighbours_in_order_is_refused() -> None:
    for mode in MODES:
        lies: list[Callable[[Roster], Roster]] = [
            lambda roster: roster.model_copy(update={"entries": roster.entries[:-1]}),
            lambda roster: roster.model_copy(update={"entries": roster.entries[::-1]}),
            lambda roster: roster.model_copy(update={"position": 1}),
            lambda roster: roster.model_copy(update={"position": 100}),
        ]
        for lie in lies:
            attempt = at("roster", mode)
            party = attempt.at(0)
            assert refusal(party, lie(server.roster_for(attempt.coordinator, 0))).reason == "secagg_roster"


def test_another_order_and_another_digest_are_refused_in_consistent_mode() -> None:
    attempt = at("roster", "consistent")
    roster = server.roster_for(attempt.coordinator, 0)
    swapped = [*roster.entries]
    swapped[3], swapped[4] = (
        swapped[4].model_copy(update={"position": 3}),
        swapped[3].model_copy(update={"position": 4}),
    )
    entries = tuple(swapped)
    lie = roster.model_copy(update={"entries": entries, "digest": roster_digest(entries)})
    assert refusal(attempt.at(0), lie).reason == "secagg_roster"
    other = roster.model_copy(update={"digest": "00" * 32})
    assert refusal(at("roster", "consistent").at(0), other).reason == "secagg_roster"


@pytest.mark.parametrize("told", [{"model": "cc" * 32}, {"plan": "dd" * 32}], ids=str)
def test_another_model_for_one_client_is_refused(told: dict[str, str]) -> None:
    # An honest coordinator refuses the keys; one that lies about the model passes them on.
    attempt = start(9, terms("consistent", dropout=0.3), told={5: told})
    assert attempt.refused[5].reason == "signature_invalid"
    honest = start(9, terms("consistent", dropout=0.3))
    keys = attempt.keys[5]
    entries = tuple(
        entry.model_copy(update=keys.model_dump()) if entry.identity == identity(5).public else entry
        for entry in honest.coordinator.entries
    )
    honest.coordinator = server.ServerState(
        phase=server.SecAggPhase.KEYS,
        terms=honest.terms,
        plan=honest.coordinator.plan,
        model=honest.coordinator.model,
        entries=entries,
    )
    honest.parties[5] = attempt.parties[5]
    honest.form()
    for party in honest.parties:
        assert refusal(party, server.roster_for(honest.coordinator, party.place)).reason == "secagg_signature"


def test_another_model_for_one_client_leaves_its_boxes_shut_in_semi_honest_mode() -> None:
    told = {5: {"model": "cc" * 32}}
    liar = start(9, terms(dropout=0.3), told=told)
    victim, keys = liar.parties[5], liar.keys[5]
    honest = start(9, terms(dropout=0.3))
    entries = tuple(
        entry.model_copy(update=keys.model_dump()) if entry.identity == identity(5).public else entry
        for entry in honest.coordinator.entries
    )
    honest.coordinator = server.ServerState(
        phase=server.SecAggPhase.KEYS,
        terms=honest.terms,
        plan=honest.coordinator.plan,
        model=honest.coordinator.model,
        entries=entries,
    )
    honest.parties[5] = victim
    honest.form()
    honest.deal()
    shares = server.shares_for(honest.coordinator, victim.place, honest.bundles)
    assert refusal(victim, shares).reason == "secagg_box"
    other = honest.parties[0]
    assert refusal(other, server.shares_for(honest.coordinator, other.place, honest.bundles)).reason == "secagg_box"
    assert honest.masked == {}


def test_a_roster_that_comes_a_second_time_with_another_client_is_refused() -> None:
    attempt = at("roster", "semi_honest")
    party = attempt.at(0)
    roster = server.roster_for(attempt.coordinator, 0)
    answer = party.step(roster)
    assert party.step(roster) == answer
    assert refusal(party, twin(attempt, 0)).reason == "secagg_repeated"
