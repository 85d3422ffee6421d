"""Queries under differential privacy: no client moves their sums by more than the clip, and the errors that answers
state are those that repetition shows.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coterie import errors
from coterie.aggregation.analytics import Query, ask, count, heavy_hitters, histogram, mean, quantiles
from coterie.aggregation.analytics.asking import foreseen
from coterie.aggregation.analytics.bound import SAID, QueryNoise
from coterie.aggregation.analytics.bracket import WRONG, bracket, sureness
from coterie.aggregation.analytics.noise import FALSE
from coterie.aggregation.analytics.places import places, smallest_block
from coterie.aggregation.analytics.rule import SETTINGS, SUM, QueryRule, method, shapes_of
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal.algorithm import Finish
from coterie.aggregation.horizontal.server_part import Aggregates
from coterie.aggregation.methods import algorithm
from coterie.aggregation.plan.manifest import DELTA
from coterie.aggregation.private.central import CentralNoise, noised_mean
from coterie.compute.array import Array
from coterie.protocol.layout import Layout
from coterie.protocol.privacy import AdaptiveClip, ExampleLevel, LocalLevel, Privacy, UserLevel
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.secure_aggregation import SecureAggregation
from coterie.simulation import simulate_full

Rows = dict[str, NDArray[Any]]
Found = Callable[[Any], float]
Sums = dict[bytes, list[NDArray[np.float64]]]

SCHEMA = DataSchema(
    features=(
        Feature(name="age", low=0, high=120, offset=50.0, scale=0.1),
        Feature(name="code", dtype="int32"),
        Feature(name="pixels", dtype="uint8", shape=(12,), scale=1 / 255),
    ),
    label=Label(name="digit", low=0, high=9),
)
CLIENTS = 8
PRIVACY = UserLevel(clip=150.0, delta=1e-6, noise_multiplier=0.05)
"""Too little noise to promise anything to eight clients, so that the rows can be few."""
QUERIES: Mapping[str, tuple[Query[Any], int]] = {
    "count": (count("digit"), 1),
    "mean": (mean("pixels", low=0, high=255, elements=12), 12),
    "histogram": (histogram("age", low=20, high=80, bins=40), 1),
    "quantiles": (quantiles("age", (0.2, 0.5), low=0, high=120, bins=6, rounds=3), 1),
    "heavy_hitters": (heavy_hitters("code", bits=6, fraction=0.1, step=3), 1),
}
"""With how many numbers a row of the column has."""


def client(number: int) -> Rows:
    draw = np.random.Generator(np.random.PCG64(number))
    size = int(draw.integers(60, 140))
    return {
        "age": draw.gamma(9 + number, 4, size).clip(0, 120).astype(np.float32),
        "code": (draw.zipf(1.5, size) % 64).astype(np.int32),
        "pixels": draw.integers(0, 256, (size, 12)).astype(np.uint8),
        "digit": draw.integers(0, 10, size).astype(np.int32),
    }


PARTS = [client(number) for number in range(CLIENTS)]


def everything(column: str, parts: Sequence[Rows] = PARTS) -> NDArray[Any]:
    return np.concatenate([part[column] for part in parts])


def noised_rule(query: Query[Any], asked: Experiment) -> QueryRule:
    """The rule of the experiment, with its noise."""
    numbers = asked.algorithm.parameters
    return query.noised(QueryNoise(clip=numbers["clip"], noise=numbers["noise"], elements=int(numbers["elements"])))


def sent(rule: QueryRule, told: Mapping[str, NDArray[np.float32]], values: NDArray[Any]) -> NDArray[np.float64]:
    """What a client with these values uploads, through the method's own finish."""
    given = {name: Array(value) for name, value in told.items()}
    rows = Array(values.reshape(len(values), -1).astype(np.float32))
    nothing: Any = {}
    context = Finish(
        base=nothing,
        end=nothing,
        trained=(),
        optimizer={SUM: Array(np.asarray(rule.contribute(rows, given)).sum(axis=0))},
        constants=nothing,
        client_state=nothing,
        probe=nothing,
        hyper=nothing,
        steps=Array(np.ones(1, np.float32)),
        weight=Array(np.ones(1, np.float32)),
    )
    tensors: Any = method(rule).client.finish(context).sections[DELTA]
    return np.concatenate([np.asarray(tensors[name]).ravel() for name in shapes_of(rule)]).astype(np.float64)


def answered(
    query: Query[Any], asked: Experiment, values: Sequence[NDArray[Any]], seed: int, known: Sums | None = None
) -> Any:
    """The answer of an experiment under the coordinator's noise: devices' sums, its noise and the method's server part,
    without plans, so that it can be repeated often.

    known: what clients with these values send to this query, by what they were told; grows.
    """
    known = {} if known is None else known
    rule, policy = noised_rule(query, asked), asked.rounds
    server, layout = method(rule).server, Layout.of(shapes_of(rule))
    state = server.init(layout)
    for number in range(1, rule.rounds + 1):
        version = layout.unflatten(state["version"].astype(np.float32))
        told = {name: version[SETTINGS + name] for name in rule.settings}
        terms = CentralNoise(
            privacy=asked.privacy,  # pyright: ignore[reportArgumentType]
            round=number,
            rounds=rule.rounds,
            expected=policy.cohort,
            seed=seed.to_bytes(16, "big") + number.to_bytes(16, "big"),
        )
        heard = b"".join(told[name].tobytes() for name in rule.settings)
        if heard not in known:
            known[heard] = [sent(rule, told, part) for part in values]
        made = noised_mean(known[heard], layout.size, terms, {})
        together = Aggregates(sections={DELTA: made.mean}, clients=policy.cohort, weight=float(policy.cohort))
        _, state = server.apply(together, state, lambda delta: delta)
    return query.answer(layout.unflatten(state["version"].astype(np.float32)))


def repeated(
    query: Query[Any], column: str, times: int, parts: Sequence[Rows] = PARTS, privacy: UserLevel = PRIVACY
) -> list[Any]:
    asked = ask(query, SCHEMA, clients=len(parts), privacy=privacy)
    known: Sums = {}
    return [answered(query, asked, [part[column] for part in parts], seed, known) for seed in range(times)]


def within(scores: Sequence[float] | NDArray[Any]) -> None:
    """Errors over their standard errors are those of a normal distribution: of deviation 1, and 95 % below 1.96."""
    held = np.asarray(scores)
    assert abs(held.std() - 1) < 3.5 / math.sqrt(2 * held.size)
    assert abs(held.mean()) < 3.5 / math.sqrt(held.size)
    assert abs((np.abs(held) < 1.96).mean() - 0.95) < 3.5 * math.sqrt(0.95 * 0.05 / held.size)


# What leaves a client.


@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(QUERIES)),
    rows=st.integers(1, 400),
    extreme=st.sampled_from([None, 0.0, 255.0]),
    seed=st.integers(0, 1000),
)
def test_no_client_sends_more_than_the_clip(name: str, rows: int, extreme: float | None, seed: int) -> None:
    """Whatever its rows are; and one of at most `clip` rows sends all of them."""
    query, elements = QUERIES[name]
    rule = query.noised(QueryNoise(clip=100.0, noise=1.0, elements=elements))
    draw = np.random.Generator(np.random.PCG64(seed))
    values = draw.uniform(-50, 300, (rows, elements)) if extreme is None else np.full((rows, elements), extreme)
    vector = sent(rule, rule.settings, values.astype(np.float32))
    norm = float(np.linalg.norm(vector))
    assert norm <= 100 * (1 + 1e-6)
    if rows <= 100:
        assert norm <= rows / math.sqrt(1 + SAID**2) * (1 + 1e-6)


@pytest.mark.parametrize("name", QUERIES)
def test_without_noise_what_is_received_is_what_was_counted(name: str) -> None:
    """A noised rule over rows that fit the clip, with no noise on it, answers as the exact one does."""
    query, _ = QUERIES[name]
    exact = simulate_full(ask(query, SCHEMA, clients=CLIENTS), PARTS)
    faint = UserLevel(clip=200.0, delta=1e-6, noise_multiplier=1e-6)
    run = simulate_full(ask(query, SCHEMA, clients=CLIENTS, privacy=faint), PARTS)
    wanted, found = query.answer(exact.weights), query.answer(run.weights)
    assert wanted.shortened is None and abs(found.shortened.clients) < 0.01
    match name:
        case "count":
            assert found.rows == pytest.approx(wanted.rows, abs=0.1)
        case "mean":
            np.testing.assert_allclose(found.mean, wanted.mean, rtol=1e-4)
            np.testing.assert_allclose(found.variance, wanted.variance, rtol=1e-3)
            assert wanted.error.all() and found.error.all()
        case "histogram":
            np.testing.assert_allclose(found.counts, wanted.counts, atol=0.1)
            assert (found.below, found.above) == pytest.approx((wanted.below, wanted.above), abs=0.1)
        case "quantiles":
            for noised, sure in zip(found.quantiles, wanted.quantiles, strict=True):
                assert (noised.lower, noised.upper) == pytest.approx((sure.lower, sure.upper), abs=1e-3)
        case _:
            assert {value: round(times) for value, times in found.counts.items()} == wanted.counts


def test_a_client_of_many_rows_is_shortened_and_counted_as_such() -> None:
    """Its shares stay, its rows count for the clip, and the answer says that there are about three such clients."""
    values = [np.full(50, 1.0), *(np.full(1000, 8.0) for _ in range(3))]
    asked = ask(histogram("digit", low=0, high=10, bins=10), SCHEMA, clients=4, privacy=PRIVACY)
    found = answered(histogram("digit", low=0, high=10, bins=10), asked, values, 1)
    assert abs(found.counts[1] - 50) < 5 * found.error and abs(found.counts[8] - 3 * 150) < 5 * found.error
    assert abs(found.shortened.clients - 3) < 4 * found.shortened.error
    assert (found.shortened.clip, found.shortened.error) == (150.0, pytest.approx(0.05 * math.sqrt(1 + SAID**2) / SAID))
    rows = answered(count("digit"), ask(count("digit"), SCHEMA, clients=4, privacy=PRIVACY), values, 1)
    assert abs(rows.rows - 500) < 5 * rows.error


# What answers say of their errors.

MECHANISMS: Mapping[str, tuple[Privacy, bool]] = {
    "the coordinator": (PRIVACY, False),
    "the coordinator, of secret sums": (PRIVACY, True),
    "devices together": (PRIVACY.but(mechanism="discrete_gaussian"), True),
    "devices together, skellam": (PRIVACY.but(mechanism="skellam"), True),
    "each device": (LocalLevel(mechanism="gaussian", clip=150.0, epsilon=500.0, delta=1e-6), False),
    "each device, of secret sums": (LocalLevel(mechanism="gaussian", clip=150.0, epsilon=500.0, delta=1e-6), True),
}


@pytest.mark.parametrize("who", MECHANISMS)
def test_the_stated_error_of_every_count_is_that_of_whole_runs(who: str) -> None:
    """Plans, updates, rings, noise and all: 42 counts a run."""
    query, _ = QUERIES["histogram"]
    privacy, secure = MECHANISMS[who]
    asked = ask(query, SCHEMA, clients=CLIENTS, privacy=privacy, secure_aggregation=secure)  # pyright: ignore[reportArgumentType]
    ages = everything("age")
    scores: list[float] = []
    for seed in range(8):
        found = query.answer(simulate_full(replace(asked, seed=seed), PARTS).weights)
        counted = np.histogram(ages, found.edges)[0]
        off = [*(found.counts - counted), found.below - (ages < 20).sum(), found.above - (ages > 80).sum()]
        scores += [value / found.error for value in off]
        assert 5 < found.error < 80
    within(scores)


def test_the_stated_errors_of_counts_means_and_variances_are_those_of_repetition() -> None:
    rows = len(everything("digit"))
    within([(found.rows - rows) / found.error for found in repeated(count("digit"), "digit", 300)])
    pixels = everything("pixels").astype(float)
    query = mean("pixels", low=0, high=255, elements=12)
    answers = repeated(query, "pixels", 100)
    within([(found.rows - rows) / found.rows_error for found in answers])
    # One number of rows moves all means of an answer together: elements by themselves are independent enough.
    for of, truth, error in (
        ("mean", pixels.mean(axis=0), "error"),
        ("variance", pixels.var(axis=0), "variance_error"),
    ):
        scores = np.array([(getattr(found, of) - truth) / getattr(found, error) for found in answers])
        assert abs(scores.std() - 1) < 0.1
        assert (np.abs(scores) < 1.96).mean() == pytest.approx(0.95, abs=0.02)


def test_quantiles_lie_in_their_intervals_and_ranks_are_as_near_as_stated() -> None:
    query = quantiles("age", (0.2, 0.5), low=0, high=120, bins=6, rounds=3)
    ages = np.sort(everything("age"))
    missed, wide = 0, 0
    answers = repeated(query, "age", 80)
    for found in answers:
        for quantile in found.quantiles:
            exact = float(np.quantile(ages, quantile.level, method="inverted_cdf"))
            value = min(max(quantile.value, 0.0), 120.0)
            least, most = (float((ages < value).mean()), float((ages <= value).mean()))
            away = max(least - quantile.level, quantile.level - most, 0.0)
            missed += not (quantile.lower <= exact < quantile.upper and away <= quantile.rank_error)
            wide += not quantile.rank_error < 0.3
    # Of answers, of which each has two: the union over edges makes the chance of one less still.
    assert missed <= WRONG * len(answers)
    assert wide < 0.1 * 2 * len(answers)
    within([(found.values - ages.size) / found.values_error for found in answers])


def test_a_quantile_of_which_noise_leaves_the_end_open_is_unbounded_there() -> None:
    """The least value of all: no noised count tells that nothing lies below it."""
    (found,) = repeated(quantiles("age", (0.0,), low=0, high=120, bins=6, rounds=2), "age", 1)[0].quantiles
    assert found.lower == -math.inf and found.upper < 60 and math.isinf(found.error)
    query = quantiles("age", (0.5,), low=100, high=120, bins=4, rounds=2)
    (below,) = repeated(query, "age", 1)[0].quantiles
    assert (below.value, below.lower, below.upper) == (-math.inf, -math.inf, 100.0)
    (above,) = repeated(quantiles("age", (0.5,), low=0, high=5, bins=4, rounds=2), "age", 1)[0].quantiles
    assert (above.value, above.upper) == (math.inf, math.inf) and above.lower >= 5


@settings(max_examples=60)
@given(
    parts=st.lists(st.integers(0, 50), min_size=4, max_size=12),
    level=st.floats(0.01, 0.99),
    deviation=st.floats(0.1, 20),
    seed=st.integers(0, 10_000),
)
def test_a_bracket_holds_the_quantile_where_the_noise_is_as_small_as_assumed(
    parts: list[int], level: float, deviation: float, seed: int
) -> None:
    exact = np.array(parts, float)
    noise = np.random.Generator(np.random.PCG64(seed)).normal(0, deviation, exact.size)
    bins = exact.size - 2
    sure = sureness(1, bins)
    below, cumulated, whole = np.arange(1, exact.size), np.cumsum(exact)[:-1], exact.sum()
    off = np.cumsum(noise)[:-1] - level * noise.sum()
    room = sure * deviation * np.sqrt((1 - level) ** 2 * below + level**2 * (exact.size - below))
    if (np.abs(off) > room).any() or abs(noise.sum()) > sure * deviation * exact.size**0.5:
        return
    found = bracket(exact + noise, level, deviation, sure)
    if found.lower is not None:
        assert cumulated[found.lower] < level * whole
        assert level - cumulated[found.lower] / whole <= found.under + 1e-9
    if found.upper is not None:
        assert cumulated[found.upper] >= level * whole
        assert cumulated[found.upper] / whole - level <= found.over + 1e-9


def test_heavy_hitters_are_missed_and_made_up_as_seldom_as_stated() -> None:
    """Four values: far above the threshold, just above, just below it, and rare; and sixty that nobody has."""
    draw = np.random.Generator(np.random.PCG64(5))
    times = {3: 400, 17: 190, 40: 130, 41: 60}
    values = draw.permutation(np.repeat(list(times), list(times.values())))
    parts = [{"code": part.astype(np.int32)} for part in np.array_split(values, CLIENTS)]
    query = heavy_hitters("code", bits=6, fraction=0.2, step=3)
    answers = repeated(query, "code", 150, parts)
    for value, count_of in times.items():
        seen = np.mean([value in found.counts for found in answers])
        likely_missed = float(np.mean([found.missed(count_of) for found in answers]))
        likely_found = float(np.mean([found.reported(count_of) for found in answers]))
        # 3.5 deviations of a share.
        slack = 3.5 * math.sqrt(0.25 / len(answers))
        assert 1 - seen <= likely_missed + slack and seen <= likely_found + slack
    for found in answers:
        stated = found.missed(found.threshold), found.reported(found.threshold), found.missed(found.sure_from)
        assert stated == (pytest.approx(0.75), pytest.approx(0.5), pytest.approx(WRONG))
    made_up = np.mean([bool(set(found.counts) - set(times)) for found in answers])
    assert made_up <= FALSE + 3.5 * math.sqrt(FALSE / len(answers))
    first = [found.counts[3] - 400 for found in answers if 3 in found.counts]
    within([off / answers[0].error for off in first])


def test_what_is_stated_of_a_value_counts_the_highest_threshold_of_all_rounds() -> None:
    """Noise alone reaches farther in a round that follows many prefixes than in the last, which has few bins left."""
    draw = np.random.Generator(np.random.PCG64(6))
    times = {3: 130, 19: 110, 35: 95, 51: 85}
    values = draw.permutation(np.repeat(list(times), list(times.values())))
    parts = [{"code": part.astype(np.int32)} for part in np.array_split(values, CLIENTS)]
    privacy = PRIVACY.but(noise_multiplier=0.1)
    query = heavy_hitters("code", bits=6, fraction=0.01, step=5)
    answers = repeated(query, "code", 120, parts, privacy)
    margin = answers[0].margin
    for value, count_of in times.items():
        seen = np.mean([value in found.counts for found in answers])
        slack = 3.5 * math.sqrt(0.25 / len(answers))
        assert 1 - seen <= np.mean([found.missed(count_of) for found in answers]) + slack
        assert seen <= np.mean([found.reported(count_of) for found in answers]) + slack
    # 32 bins in the first round; of the few prefixes that are left, two bins each in the last.
    assert min(found.threshold for found in answers) >= margin * math.sqrt(2 * math.log(32 / FALSE)) * 0.99


def test_an_exact_answer_states_no_error() -> None:
    answers: dict[str, Any] = {}
    for name, (query, _) in QUERIES.items():
        answers[name] = query.answer(simulate_full(ask(query, SCHEMA, clients=CLIENTS), PARTS).weights)
        assert answers[name].shortened is None
        # Sums of a mean are no whole numbers, and round.
        fields = ("rows_error",) if name == "mean" else ("error", "rows_error", "values_error", "margin")
        assert not any(np.any(getattr(answers[name], field, 0.0)) for field in fields)
    heavy = answers["heavy_hitters"]
    assert (heavy.missed(heavy.threshold), heavy.missed(heavy.threshold - 1), heavy.reported(0)) == (0, 1, 0)
    assert heavy.sure_from == heavy.threshold


# How much noise there is.


def test_devices_make_more_noise_together_the_fewer_of_them_are_counted_on() -> None:
    """Shares are made for the fewest honest survivors that a round may have."""
    shared = UserLevel(clip=100.0, delta=1e-6, noise_multiplier=0.5, mechanism="discrete_gaussian")

    def noise(fewest: int) -> float:
        secure = SecureAggregation(corrupt=0.1, dropout=0.1)
        asked = ask(count("digit"), SCHEMA, clients=20, privacy=shared, secure_aggregation=secure, min_updates=fewest)
        return asked.algorithm.parameters["noise"]

    assert noise(18) == pytest.approx(0.5 * 100 * math.sqrt(20 / 16), rel=0.03)
    assert noise(10) == pytest.approx(0.5 * 100 * math.sqrt(20 / 8), rel=0.03)


def test_a_coarse_ring_is_part_of_the_error() -> None:
    def noise(bits: int) -> float:
        secure = SecureAggregation(bits=bits)
        return ask(count("digit"), SCHEMA, clients=20, privacy=PRIVACY, secure_aggregation=secure).algorithm.parameters[
            "noise"
        ]

    assert noise(16) == pytest.approx(7.5, rel=1e-3) and noise(4) > 3 * noise(16)


def test_the_room_that_rounding_needs_shortens_no_client() -> None:
    """Eight clients of as many rows as the clip count with all of them on a coarse grid too, for more noise."""
    query = count("digit")
    parts = [{name: np.resize(value, (150, *value.shape[1:])) for name, value in part.items()} for part in PARTS]
    asked = ask(query, SCHEMA, clients=CLIENTS, privacy=PRIVACY, secure_aggregation=SecureAggregation(bits=6))
    found = query.answer(simulate_full(asked, parts).weights)
    assert found.shortened is not None and found.shortened.clip == 150
    assert abs(found.rows - CLIENTS * 150) < 4 * found.error and 9 < found.error < 20
    assert abs(found.shortened.clients) < 4 * found.shortened.error < CLIENTS
    assert isinstance(asked.privacy, UserLevel) and 1.2 < asked.privacy.clip / 150 < 1.4


@pytest.mark.parametrize("mechanism", ["gaussian", "discrete_gaussian"])
@pytest.mark.parametrize("value", [0, 7542, 8018])
def test_clients_whose_rows_are_all_in_one_bin_count_in_full_in_a_ring(mechanism: Any, value: int) -> None:
    """Wherever the bin lies: what a ring has no room for, no answer would tell. 24 069 numbers end in a block of 64."""
    schema = DataSchema(features=(Feature(name="number", low=0, high=1e6),), label=Label(name="digit", low=0, high=9))
    parts = [{"number": np.full(80, value + 0.5, np.float32), "digit": np.zeros(80, np.int32)} for _ in range(CLIENTS)]
    query = histogram("number", low=0, high=8019, bins=8019)
    asked = ask(query, schema, clients=CLIENTS, privacy=PRIVACY.but(mechanism=mechanism), secure_aggregation=True)
    found = query.answer(simulate_full(asked, parts).weights)
    assert abs(found.counts[value] - 80 * CLIENTS) < 5 * found.error < 60


@pytest.mark.parametrize(("mechanism", "fraction"), [("gaussian", 0.005), ("skellam", 0.001)])
def test_sums_that_a_ring_has_no_room_for_are_refused(mechanism: Any, fraction: float) -> None:
    query = heavy_hitters("code", bits=16, fraction=fraction, step=8)
    privacy = PRIVACY.but(mechanism=mechanism)
    with pytest.raises(errors.ExperimentError, match="too many for secure aggregation with this noise") as caught:
        ask(query, SCHEMA, clients=20, privacy=privacy)
    assert caught.value.reason == "query_invalid"
    ask(query, SCHEMA, clients=20, privacy=PRIVACY, secure_aggregation=False)


@given(sums=st.integers(1, 3000), more=st.integers(3, 5000))
def test_sums_lie_in_places_of_their_own_in_large_blocks(sums: int, more: int) -> None:
    length = 2 * sums + more
    found = places(sums, length)
    assert len(set(found.tolist())) == sums and 0 <= found.min() and found.max() < length
    # A number alone in the smallest of these blocks is less than the 5.83 deviations that a grid of 16 bits holds.
    assert math.sqrt(2 * length / smallest_block(sums, length)) < 5.83


# What cannot be.

REFUSED: Mapping[str, tuple[Any, str]] = {
    "rows": (ExampleLevel(clip=1.0, delta=1e-6, epsilon=1.0), "not by ExampleLevel: it hides a row"),
    "correlated": (PRIVACY.but(mechanism="blt", min_separation=2), "mechanism='blt': its noise is correlated"),
    "adaptive": (PRIVACY.but(adaptive=AdaptiveClip()), "adaptive: the clip says how many rows"),
    "signs": (LocalLevel(mechanism="sign_ds", epsilon=8.0), "mechanism='sign_ds': it sends signs"),
    "one sign": (LocalLevel(mechanism="randomised_response", epsilon=8.0), "mechanism='randomised_response'"),
    "no level": ("user", "'user', which is not a level of privacy"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_privacy_that_sums_cannot_have_is_refused_by_name(case: str) -> None:
    privacy, words = REFUSED[case]
    for query, _ in QUERIES.values():
        with pytest.raises(
            errors.ExperimentError, match=f"The query {query.rule.name} is noised by .*{words}"
        ) as caught:
            ask(query, SCHEMA, clients=CLIENTS, privacy=privacy)
        assert caught.value.reason == "query_invalid"


def test_shares_of_noise_in_the_open_are_refused() -> None:
    with pytest.raises(errors.ExperimentError, match="devices add only a share of the noise"):
        ask(count("digit"), SCHEMA, clients=5, privacy=PRIVACY.but(mechanism="skellam"))


def test_what_noise_hides_is_not_divided_by() -> None:
    loud = PRIVACY.but(noise_multiplier=1.5)
    query = mean("age", low=0, high=120)
    asked = ask(query, SCHEMA, clients=CLIENTS, privacy=loud)
    rows = sum(len(part["age"]) for part in PARTS)
    assert foreseen(asked).needed > rows and f"{foreseen(asked).needed:,.0f} rows" in foreseen(asked).sentence
    run = simulate_full(asked, PARTS)
    with pytest.raises(errors.ExperimentError, match="noise has a standard deviation of") as caught:
        query.answer(run.weights)
    assert caught.value.reason == "query_unanswered"


@pytest.mark.parametrize("query", [count("age"), mean("age", low=0, high=120), histogram("age", low=0, high=120)])
def test_a_question_that_noise_leaves_no_answer_to_is_refused_before_it_is_paid_for(query: Query[Any]) -> None:
    hopeless = PRIVACY.but(noise_multiplier=2.0)
    with pytest.raises(errors.ExperimentError, match="at most 1,164 rows") as caught:
        ask(query, SCHEMA, clients=CLIENTS, privacy=hopeless)
    assert caught.value.reason == "query_hopeless"
    assert ask(query, SCHEMA, clients=2 * CLIENTS, privacy=hopeless)


def test_what_is_foreseen_is_what_an_answer_states() -> None:
    query = count("age")
    asked = ask(query, SCHEMA, clients=CLIENTS, privacy=PRIVACY)
    found = query.answer(simulate_full(asked, PARTS).weights)
    assert foreseen(asked).error == pytest.approx(found.error)
    with pytest.raises(errors.InternalError):
        foreseen(ask(query, SCHEMA, clients=CLIENTS))


def test_a_version_that_says_nonsense_of_its_noise_is_no_answer() -> None:
    query = count("digit")
    version = {name: value.copy() for name, value in _version(query).items()}
    three = ((0, 0, 0), (1, -1, 1), (1, 1, 0.3), (1, 1, 2.5), (1, 1, 1e30), (1e35, 1, 1), (1, 1e30, 1))
    odd = (np.ones(2), np.ones((3, 1)), np.full(3, np.nan), np.full(3, np.inf))
    for nonsense in (*map(np.array, three), *odd):
        with pytest.raises(errors.InputError) as caught:
            query.answer({**version, SETTINGS + "noise": nonsense.astype(np.float32)})
        assert caught.value.reason == "query_mismatch"
    with pytest.raises(errors.InputError, match="the query mean has"):
        mean("age", low=0, high=120).answer(version)


def _version(query: Query[Any]) -> Mapping[str, NDArray[np.float32]]:
    return simulate_full(ask(query, SCHEMA, clients=CLIENTS, privacy=PRIVACY), PARTS).weights


@pytest.mark.parametrize("name", QUERIES)
def test_a_server_rebuilds_a_noised_query_from_its_name_and_numbers(name: str) -> None:
    query, elements = QUERIES[name]
    rule = query.noised(QueryNoise(clip=50.0, noise=3.0, elements=elements))
    rebuilt = algorithm(name, rule.parameters)
    assert rebuilt == method(rule) and rebuilt.server.reads == (DELTA,)
    with pytest.raises(errors.ExperimentError, match="clip must be"):
        algorithm(name, {**rule.parameters, "clip": -1.0})


def test_tails_are_those_of_the_normal_distribution() -> None:
    """What the intervals rest on."""
    assert sureness(1, 8) == pytest.approx(-NormalDist().inv_cdf(0.05 / 20))
