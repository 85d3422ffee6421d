"""Selection: laws over every rule, what each one is for, and the texts that mean nothing."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import errors
from coterie.aggregation.selection import SELECTORS, Candidate, select, selector_of
from coterie.protocol.over_selection import smallest_selection

TEXTS = ("uniform", "weighted", "power_of_choice(7)", "oort", "oort(0.3, seconds=2)", "cyclic", "least_recent")


def one(number: int, **known: object) -> Candidate:
    return Candidate(id=f"client_{number:03d}", **known)  # pyright: ignore[reportArgumentType]


some = st.builds(
    Candidate,
    id=st.uuids().map(str),
    examples=st.none() | st.integers(0, 10_000),
    loss=st.none() | st.floats(-100, 100) | st.floats(),
    seconds=st.none() | st.floats(0, 1000),
    last_round=st.none() | st.integers(1, 50),
    times=st.integers(0, 50),
)


def test_every_rule_is_under_these_laws() -> None:
    assert {text.split("(")[0] for text in TEXTS} == set(SELECTORS)


@pytest.mark.parametrize("text", TEXTS)
@settings(max_examples=60)
@given(
    candidates=st.lists(some, min_size=1, max_size=12, unique_by=lambda candidate: candidate.id),
    count=st.integers(1, 15),
    round=st.integers(1, 60),
    seed=st.integers(0, 5),
)
def test_the_choice_is_distinct_whole_repeatable_and_blind_to_order(
    text: str, candidates: list[Candidate], count: int, round: int, seed: int
) -> None:
    chosen = select(text, candidates, count, round=round, seed=seed)
    assert len(chosen) == len(set(chosen)) == min(count, len(candidates))
    assert set(chosen) <= {candidate.id for candidate in candidates}
    assert chosen == select(selector_of(text), candidates[::-1], count, round=round, seed=seed)


def shares(text: str, candidates: list[Candidate], count: int, rounds: int = 2000) -> dict[str, float]:
    found = Counter(id for n in range(1, rounds + 1) for id in select(text, candidates, count, round=n, seed=9))
    return {candidate.id: found[candidate.id] / rounds for candidate in candidates}


def test_uniform_chooses_everybody_alike() -> None:
    found = shares("uniform", [one(n) for n in range(10)], 3)
    assert all(abs(share - 0.3) < 0.05 for share in found.values())


def test_weighted_follows_the_rows_and_takes_the_silent_for_average() -> None:
    found = shares("weighted", [one(0, examples=10), one(1, examples=30), one(2)], 1)
    expected = dict(zip(found, (10 / 60, 30 / 60, 20 / 60), strict=True))
    assert all(abs(found[name] - expected[name]) < 0.04 for name in found)


def test_power_of_choice_takes_the_highest_losses_and_asks_the_unknown_first() -> None:
    everybody = [one(n, loss=float(n)) for n in range(5)]
    assert select("power_of_choice(5)", everybody, 2, round=1, seed=0) == ("client_004", "client_003")
    assert select("power_of_choice(6)", [*everybody, one(9)], 1, round=1, seed=0) == ("client_009",)
    # A draw of one leaves no choice: it is the weighted selection.
    assert select("power_of_choice(1)", everybody, 1, round=3, seed=0) == select(
        "weighted", everybody, 1, round=3, seed=0
    )


def test_oort_explores_less_from_round_to_round_and_prefers_what_is_worth_it() -> None:
    tried = [one(n, examples=10, loss=1.0 + n, last_round=1, times=1) for n in range(10)]
    fresh = [one(100 + n) for n in range(10)]

    def new(round: int) -> int:
        return sum(id >= "client_100" for id in select("oort", tried + fresh, 10, round=round, seed=1))

    assert (new(1), new(20), new(200)) == (9, 7, 2)
    # The best two are alike, since utility is cut at the 95th percentile.
    assert set(select("oort(0, floor=0)", tried, 2, round=1, seed=0)) == {"client_008", "client_009"}
    slow = [one(n, examples=10, loss=2.0, seconds=100.0, last_round=1) for n in (0, 1)]
    quick = one(2, examples=10, loss=1.5, last_round=1)
    assert set(select("oort(0, floor=0)", [*slow, quick], 2, round=1, seed=0)) == {"client_000", "client_001"}
    assert select("oort(0, floor=0, seconds=10)", [*slow, quick], 1, round=1, seed=0) == ("client_002",)


def test_oort_goes_by_utility_where_losses_are_negative_and_where_one_client_lies() -> None:
    negative = [one(n, examples=10, loss=float(n - 20), last_round=1) for n in range(10)]
    assert set(select("oort(0, floor=0)", negative, 2, round=1, seed=0)) == {"client_008", "client_009"}
    # A loss beyond all bounds hides nothing of what the honest ones are worth.
    honest = [one(n, examples=10, loss=1.0 + n, last_round=1) for n in range(10)]
    for lie in (1e308, float("inf")):
        with_liar = [*honest, one(99, examples=10, loss=lie, last_round=1)]
        chosen = select("oort(0, floor=0)", with_liar, 3, round=1, seed=0)
        assert {"client_009", "client_008"} & set(chosen) and len(chosen) == 3


def test_cyclic_gives_each_its_turn() -> None:
    everybody = [one(n) for n in range(5)]
    taken = [select("cyclic", everybody, 2, round=n, seed=3) for n in range(1, 6)]
    assert Counter(id for pair in taken for id in pair) == {candidate.id: 2 for candidate in everybody}


def test_least_recent_takes_newcomers_then_the_longest_absent() -> None:
    everybody = [one(0, last_round=4), one(1), one(2, last_round=1)]
    assert select("least_recent", everybody, 3, round=5, seed=0) == ("client_001", "client_002", "client_000")


@pytest.mark.parametrize(
    "text",
    ["", "best", "uniform(3)", "power_of_choice", "power_of_choice(0)", "power_of_choice(1.5)", "power_of_choice(x)",
     "oort(2)", "oort(speed=1)", "oort(0.1, exploration=0.2)", "weighted)", "oort(seconds=inf)", "uniform; drop"],
)  # fmt: skip
def test_a_text_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(errors.ExperimentError) as caught:
        selector_of(text)
    assert caught.value.reason == "selection_invalid"


def test_the_selectors_that_read_losses_say_so() -> None:
    assert {text for text in TEXTS if selector_of(text).needs_loss} == {
        "power_of_choice(7)", "oort", "oort(0.3, seconds=2)"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("goal", "dropout", "offered"),
    # By exact fractions; a Monte Carlo table rounds the two large ones to 1140 and 1490.
    [(100, 0.1, 120), (100, 0.3, 162), (1000, 0.1, 1138), (1000, 0.3, 1487), (1, 0.5, 7), (10, 0.0, 10)],
)
def test_the_smallest_selection_that_suffices(goal: int, dropout: float, offered: int) -> None:
    assert smallest_selection(goal, dropout) == offered


@pytest.mark.parametrize("bad", [(0, 0.1, 0.9), (1, 1.0, 0.9), (1, -0.1, 0.9), (1, 0.1, 1.0)])
def test_an_impossible_selection_is_refused(bad: tuple[int, float, float]) -> None:
    with pytest.raises(errors.InputError, match="No number of tasks reaches"):
        smallest_selection(*bad)
