"""A coordinator that adds devices of its own to endorsed ones: enough of them hold the shares that open one vector."""

import numpy as np
import pytest
from attempt_kit import SPEC, Attempt, Party, identity, start, terms, vector

from coterie.privacy.secagg import shamir, unmask
from coterie.privacy.secagg.derivations import own_mask, pair_masks
from coterie.privacy.secagg.endorsed import NO_ENDORSEMENT, EndorsementRule
from coterie.privacy.secagg.ring import RingVector, reduced, unpack
from coterie.privacy.secagg.shares import decode_shares
from coterie.protocol.endorsements import Endorsement
from coterie.protocol.signing import SigningKey

ISSUER = SigningKey.from_seed(b"i" * 32)
REAL = 5
RULE = EndorsementRule(frozenset({ISSUER.public}), REAL)
CORRUPT = 0.1


def until_masked(clients: int, subjects: list[str], rule: EndorsementRule) -> Attempt:
    """An attempt whose first devices have an owner that asks for endorsed ones, one subject each; the coordinator made
    all others, so it knows what they were dealt.
    """
    told = {
        index: {
            "required": rule,
            "endorsement": Endorsement.issue(ISSUER, identity=identity(index).public, subject=name),
        }
        for index, name in enumerate(subjects)
    }
    attempt = start(clients, terms("consistent", corrupt=CORRUPT), told=told)
    for phase in (attempt.form, attempt.deal, attempt.mask):
        if not attempt.coordinator.phase.final:
            phase()
    return attempt


def read_alone(attempt: Attempt, victim: Party, helpers: list[Party]) -> RingVector:
    """The vector of one device, from its masked one and the shares that it dealt to the coordinator's devices."""
    state, threshold = victim.state, victim.state.parameters.threshold
    numbers = [list(state.neighbours).index(helper.place) + 1 for helper in helpers[:threshold]]
    held = [helper.state.shares[victim.place] for helper in helpers[:threshold]]
    seed = shamir.rebuild(numbers, decode_shares([each.seed for each in held]), threshold)
    key = shamir.rebuild(numbers, decode_shares([each.mask_key for each in held]), threshold)
    partners = {place: entry.mask_key for place, entry in state.neighbours.items()}
    masks = [
        own_mask(state.context, victim.place, seed),
        *pair_masks(state.context, victim.place, key, state.advertised.mask_key, partners),
    ]
    total = unpack(attempt.masked[victim.place], SPEC)
    unmask.remove(total, masks)
    return reduced(total, SPEC)


def test_enough_devices_of_a_coordinators_own_read_who_asks_for_nobody_endorsed() -> None:
    attempt = until_masked(4 * REAL, [f"site-{index}" for index in range(REAL)], NO_ENDORSEMENT)
    for victim in attempt.parties[:REAL]:
        assert np.array_equal(read_alone(attempt, victim, attempt.parties[REAL:]), vector(victim.index))


@pytest.mark.parametrize("clients", [4 * REAL, REAL + 1, 80], ids=["many", "one too many", "on a ring"])
def test_endorsed_devices_deal_no_shares_among_too_many_of_a_coordinators_own(clients: int) -> None:
    """As many endorsed devices as they ask for are there each time."""
    attempt = until_masked(clients, [f"site-{index}" for index in range(REAL)], RULE)
    assert [party.refusal and party.refusal.reason for party in attempt.parties[:REAL]] == ["secagg_identities"] * REAL
    assert not attempt.masked.keys() & {party.place for party in attempt.parties[:REAL]}


def test_keys_of_one_subject_beside_its_first_are_a_coordinators_own() -> None:
    subjects = [f"site-{index % REAL}" for index in range(4 * REAL)]
    attempt = until_masked(len(subjects), subjects, RULE)
    assert {party.refusal and party.refusal.reason for party in attempt.parties} == {"secagg_identities"}


def test_as_many_strangers_as_the_parameters_withstand_are_taken() -> None:
    subjects = [f"site-{index}" for index in range(18)]
    attempt = until_masked(20, subjects, RULE)
    assert not any(party.refusal for party in attempt.parties)
    assert len(attempt.masked) == 20
