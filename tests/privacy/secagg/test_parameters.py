"""Neighbours and thresholds keep their promise: by the events written out, by sampling, and by laws over all sizes."""

from fractions import Fraction
from math import comb, floor, log2

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from coterie import errors
from coterie.privacy.secagg import graph
from coterie.privacy.secagg.parameters import COMPLETE_BELOW, FEWEST_CLIENTS, Mode, Parameters, parameters, share_of

FRACTIONS = st.sampled_from([0.0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.3, 1 / 3])
MODES: tuple[Mode, ...] = ("semi_honest", "consistent")


def made(clients: int, corrupt: float, dropout: float, mode: Mode) -> Parameters | None:
    try:
        return parameters(clients, corrupt=corrupt, dropout=dropout, mode=mode)
    except errors.ArgumentValueError as error:
        assert error.reason == "secagg_parameters"
        return None


def exceeding(clients: int, marked: int, degree: int, threshold: int) -> Fraction:
    """P[of `degree` of the clients at least `threshold` are among the marked]."""
    ways = sum(comb(marked, x) * comb(clients - marked, degree - x) for x in range(threshold, degree + 1))
    return Fraction(ways, comb(clients, degree))


@given(st.integers(COMPLETE_BELOW, 700), FRACTIONS, FRACTIONS, st.sampled_from(MODES))
@settings(max_examples=60)
def test_a_ring_keeps_the_promise(clients: int, corrupt: float, dropout: float, mode: Mode) -> None:
    found = made(clients, corrupt, dropout, mode)
    assume(found is not None and not found.complete)
    assert found is not None
    k, t = found.neighbours, found.threshold
    bad, dropped = floor((corrupt + 1e-14) * clients), floor((dropout + 1e-14) * clients)
    union = Fraction(2) ** -41
    apart = Fraction(clients * (clients - k - 1) * comb(bad + dropped, k), 2 * comb(clients, k))
    assert apart < union
    assert clients * exceeding(clients, bad, k, t) < union, "enough corrupt neighbours to open a secret"
    # Fewer than t remain exactly if more than k - t drop out.
    assert clients * exceeding(clients, dropped, k, k - t + 1) < Fraction(2) ** -20, "too few remain"
    if mode == "consistent":
        most = next(c for c in range(k + 1) if clients * exceeding(clients, bad, k, c + 1) < union)
        assert 2 * t > k + most, "two lists of survivors could both be answered"


@given(st.integers(FEWEST_CLIENTS, COMPLETE_BELOW - 1), FRACTIONS, FRACTIONS, st.sampled_from(MODES))
@settings(max_examples=300)
def test_a_complete_graph_keeps_the_promise_for_certain(
    clients: int, corrupt: float, dropout: float, mode: Mode
) -> None:
    bad, dropped = floor((corrupt + 1e-14) * clients), floor((dropout + 1e-14) * clients)
    found = made(clients, corrupt, dropout, mode)
    others = clients - 1
    if found is None:
        least = max(2, bad + 1) if mode == "semi_honest" else (others + bad) // 2 + 1
        assert others - dropped < max(2, least), "refused although a threshold exists"
        return
    assert found.complete and found.neighbours == others
    assert 2 <= found.threshold <= others - dropped, "the remaining neighbours of a survivor must reach it"
    assert found.threshold > bad, "corrupt neighbours must not"
    if mode == "consistent":
        assert 2 * found.threshold > others + bad


@pytest.mark.parametrize("clients", [60, 100, 300, 1000])
@pytest.mark.parametrize("mode", MODES)
def test_fewer_neighbours_do_not_keep_it(clients: int, mode: Mode) -> None:
    """The degree is the least: for the next smaller one no threshold satisfies all three events."""
    found = parameters(clients, corrupt=0.1, dropout=0.1, mode=mode)
    k, bad, dropped = found.neighbours - 2, clients // 10, clients // 10
    union = Fraction(2) ** -41
    most = next(c for c in range(k + 1) if clients * exceeding(clients, bad, k, c + 1) < union)
    t = max(2, most + 1, (k + most) // 2 + 1 if mode == "consistent" else 0)
    apart = Fraction(clients * (clients - k - 1) * comb(bad + dropped, k), 2 * comb(clients, k))
    too_few = t > k or clients * exceeding(clients, dropped, k, k - t + 1) >= Fraction(2) ** -20
    assert apart >= union or too_few


def test_of_three_hundred_a_third_corrupt_and_the_tables_033_differ_by_one_share() -> None:
    """99 corrupt of 300 are kept from a secret by 55 shares (2**-41.3); the hundredth makes it 56. A ring joins each
    place with as many on either side, so 77 neighbours, of whom 55 would do as well, are none.
    """
    for corrupt, bad, shares in ((0.33, 99, 55), (1 / 3, 100, 56)):
        found = parameters(300, corrupt=corrupt, dropout=0.1, mode="semi_honest")
        assert (found.neighbours, found.threshold, share_of(corrupt, 300)) == (78, shares, bad)
        assert 300 * exceeding(300, bad, 78, shares) < Fraction(2) ** -41
        assert 300 * exceeding(300, bad, 78, shares - 1) >= Fraction(2) ** -41
    assert 300 * exceeding(300, 99, 77, 55) < Fraction(2) ** -41
    assert -41.3 < log2(300 * exceeding(300, 99, 78, 55)) < -41.2


def test_sampled_rosters_never_break_it() -> None:
    """20 000 rings of 300, a tenth corrupt, a tenth dropped: nobody is open (odds 2**-40), nobody lost (2**-20)."""
    found = parameters(300, corrupt=0.1, dropout=0.1, mode="semi_honest")
    generator = np.random.default_rng(0)
    index = np.array([graph.neighbours(place, 300, found.neighbours) for place in range(300)])
    most_corrupt = most_dropped = 0
    for _ in range(20_000 // 20):
        roles = np.argsort(generator.random((20, 300)), axis=1)
        most_corrupt = max(most_corrupt, int((roles < 30)[:, index].sum(axis=2).max()))
        most_dropped = max(most_dropped, int((roles >= 270)[:, index].sum(axis=2).max()))
    assert most_corrupt < found.threshold
    assert found.neighbours - most_dropped >= found.threshold


@pytest.mark.parametrize(
    ("clients", "corrupt", "dropout", "mode", "word"),
    [
        (2, 0.0, 0.0, "semi_honest", "not 2"),
        ((1 << 20) + 1, 0.1, 0.1, "semi_honest", "not 1048577"),
        (100, 1.0, 0.1, "semi_honest", "corrupt and dropout"),
        (100, 0.1, float("nan"), "semi_honest", "corrupt and dropout"),
        (10, 0.5, 0.5, "semi_honest", "5 corrupt and 5 dropped"),
        (1100, 0.45, 0.45, "consistent", "495 corrupt and 495 dropped"),
    ],
)
def test_impossible_ones_are_refused_by_name(
    clients: int, corrupt: float, dropout: float, mode: Mode, word: str
) -> None:
    with pytest.raises(errors.ArgumentValueError, match=word) as caught:
        parameters(clients, corrupt=corrupt, dropout=dropout, mode=mode)
    assert caught.value.reason == "secagg_parameters"


@given(st.integers(3, 200), st.data())
@settings(max_examples=60)
def test_neighbourhood_is_mutual_regular_and_without_oneself(clients: int, data: st.DataObject) -> None:
    even = range(2, clients - 1, 2)
    degree = data.draw(st.sampled_from([*even, clients - 1]))
    lists = [graph.neighbours(place, clients, degree) for place in range(clients)]
    for place, found in enumerate(lists):
        assert len(found) == degree and place not in found and list(found) == sorted(set(found))
        assert all(place in lists[other] for other in found)


@pytest.mark.parametrize(("position", "clients", "degree"), [(-1, 5, 2), (5, 5, 2), (0, 9, 3), (0, 9, 0), (0, 9, 10)])
def test_impossible_neighbourhoods_are_refused(position: int, clients: int, degree: int) -> None:
    with pytest.raises(errors.ArgumentValueError):
        graph.neighbours(position, clients, degree)


def test_places_do_not_depend_on_arrival_and_change_with_every_key_and_attempt() -> None:
    keys = [bytes([index]) * 64 for index in range(50)]
    seated = [keys[index] for index in graph.order(keys, "attempt-1")]
    assert [keys[::-1][index] for index in graph.order(keys[::-1], "attempt-1")] == seated
    assert [keys[index] for index in graph.order(keys, "attempt-2")] != seated
    other = [*keys[:-1], b"\xff" * 64]
    assert [other[index] for index in graph.order(other, "attempt-1")][:-1] != [k for k in seated if k != keys[-1]]
    with pytest.raises(errors.ArgumentValueError, match="same keys"):
        graph.order([*keys, keys[3]], "attempt-1")


@pytest.mark.parametrize("clients", [100, 300, 1000, 10_000])
def test_drop_outs_that_a_coordinator_chooses_hardly_split_a_ring(clients: int) -> None:
    """What docs/security.md says of the mode ``consistent``, by the union over all pairs of runs of k/2 places.

    Two such runs without an honest survivor split the ring. The honest client next to a run has at most k/2 remaining
    neighbours on its other side, so its seed is opened only if t - k/2 in the run remain, all of them corrupt.
    """
    found = parameters(clients, corrupt=0.1, dropout=0.1, mode="consistent")
    run, bad = found.neighbours // 2, share_of(0.1, clients)
    fewest = found.threshold - run
    assert fewest > 0
    ways = sum(
        comb(run, one) * comb(run, other) * comb(clients - 2 * run, bad - one - other)
        for one in range(fewest, run + 1)
        for other in range(fewest, run + 1)
        if one + other <= bad
    )
    assert clients * (clients - 2 * run - 1) // 2 * ways << 33 <= comb(clients, bad)
