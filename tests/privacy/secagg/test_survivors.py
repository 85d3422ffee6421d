"""The list of survivors as bits, and when it falls apart."""

import itertools

import pytest

from coterie.errors import SecureAggregationRefused
from coterie.privacy.secagg.graph import neighbours
from coterie.privacy.secagg.parameters import Parameters
from coterie.privacy.secagg.survivors import fallen_apart, from_bits, to_bits


@pytest.mark.parametrize("clients", [1, 7, 8, 9, 100])
def test_bits_are_read_as_they_were_written(clients: int) -> None:
    for places in (frozenset[int](), frozenset({0}), frozenset({clients - 1}), frozenset(range(clients))):
        assert from_bits(to_bits(places, clients), clients) == places
    assert to_bits({0, 9}, 12) == "AQI="


@pytest.mark.parametrize(
    "text",
    ["AQ==", "AQIA", "ARI=", "AQJ=", "AQI", "!QI="],
    ids=["short", "long", "beyond", "loose", "cut", "no base64"],
)
def test_other_bits_are_refused(text: str) -> None:
    with pytest.raises(SecureAggregationRefused) as caught:
        from_bits(text, 12)
    assert caught.value.reason == "secagg_survivors"


def hangs_together(alive: set[int], clients: int, degree: int) -> bool:
    """Whether every survivor is reached from the first one, along edges between survivors."""
    reached, edge = {min(alive)}, [min(alive)]
    while edge:
        fresh = alive & set(neighbours(edge.pop(), clients, degree)) - reached
        reached |= fresh
        edge += fresh
    return reached == alive


@pytest.mark.parametrize("clients,degree", [(9, 2), (10, 4), (11, 6), (8, 7)])
def test_falling_apart_is_what_a_search_of_the_graph_finds(clients: int, degree: int) -> None:
    parameters = Parameters(clients, degree, 2, 0.1, 0.1, "semi_honest")
    seen = set[bool]()
    for bits in itertools.product((False, True), repeat=clients):
        alive = {place for place, there in enumerate(bits) if there}
        if alive:
            apart = fallen_apart(alive, parameters)
            assert apart is not hangs_together(alive, clients, degree), alive
            seen.add(apart)
    assert seen == ({False} if degree == clients - 1 else {False, True})
