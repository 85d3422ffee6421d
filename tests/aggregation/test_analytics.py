"""Queries: their stated errors hold, whatever the rows; what goes through simulation is what a plain count gives."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from coterie import errors
from coterie.aggregation.analytics import (
    Query,
    ask,
    count,
    heavy_hitters,
    histogram,
    mean,
    quantiles,
)
from coterie.aggregation.analytics.rule import SETTINGS, TALLY, method
from coterie.aggregation.methods import METHODS, algorithm
from coterie.compute.array import Array
from coterie.compute.optim import adam
from coterie.protocol.layout import Layout
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import simulate_full

SCHEMA = DataSchema(
    features=(
        Feature(name="age", low=0, high=120, offset=50.0, scale=0.1),
        Feature(name="code", dtype="int32"),
        Feature(name="pixels", dtype="uint8", shape=(3,), scale=1 / 255),
    ),
    label=Label(name="digit", low=0, high=9),
)
ERASED = DataSchema(features=(Feature(name="x", scale=0.0),), label=Label(name="y", low=0, high=1))
QUERIES: Mapping[str, Query[Any]] = {
    "count": count("age"),
    "mean": mean("pixels", low=0, high=255, elements=3),
    "histogram": histogram("age", low=0, high=120),
    "quantiles": quantiles("age", (0.1, 0.5), low=0, high=120),
    "heavy_hitters": heavy_hitters("code", bits=12, fraction=0.05),
}


def clients(number: int = 6, seed: int = 1) -> list[dict[str, NDArray[Any]]]:
    """Clients with 1 to 200 rows."""
    generator = np.random.Generator(np.random.PCG64(seed))
    made: list[dict[str, NDArray[Any]]] = []
    sizes: list[int] = generator.integers(1, 200, number).tolist()
    for size in sizes:
        made.append(
            {
                "age": generator.gamma(9, 5, size).clip(0, 120).astype(np.float32),
                "code": (generator.zipf(1.5, size) % 4096).astype(np.int32),
                "pixels": generator.integers(0, 256, (size, 3)).astype(np.uint8),
                "digit": generator.integers(0, 10, size).astype(np.int32),
            }
        )
    return made


def everything(parts: Sequence[Mapping[str, NDArray[Any]]], column: str) -> NDArray[Any]:
    """All clients' values of a column."""
    return np.concatenate([part[column] for part in parts])


def simulated(query: Query[Any], parts: Sequence[Mapping[str, NDArray[Any]]]) -> Any:
    """The answer, through plans, updates and the aggregation of a simulation."""
    run = simulate_full(ask(query, SCHEMA, clients=len(parts)), list(parts))
    assert [record.state for record in run.history.rounds] == ["committed"] * query.rule.rounds
    return query.answer(run.weights)


def direct(query: Query[Any], *answers: NDArray[np.float32]) -> Any:
    """The answer over some values, which answer every round or one after another, through the rule's own functions and
    the server's part, without a plan.
    """
    part, rule = method(query.rule), query.rule
    layout = Layout.of(
        {"total/high": (rule.size,), "total/low": (rule.size,)}
        | {SETTINGS + name: value.shape for name, value in rule.settings.items()}
    )
    state = part.server.init(layout)
    from coterie.aggregation.horizontal.server_part import Aggregates

    for number in range(rule.rounds):
        values = answers[min(number, len(answers) - 1)]
        version = layout.unflatten(state["version"].astype(np.float32))
        settings = {name: Array(version[SETTINGS + name]) for name in rule.settings}
        added = np.asarray(rule.contribute(Array(values[:, np.newaxis]), settings)).astype(np.float64).sum(axis=0)
        placed = np.concatenate([added, np.zeros(layout.size - rule.size)])
        step, state = part.server.apply(Aggregates(sections={TALLY: placed}, clients=1, weight=1.0), state, _never)
        assert (layout.flatten(version) + step).astype(np.float32).tolist() == state["version"].tolist()
    return query.answer(layout.unflatten(state["version"].astype(np.float32)))


def _never(delta: NDArray[np.float64]) -> NDArray[np.float64]:
    raise AssertionError("a query has nothing to optimise")


def test_a_count_is_the_number_of_rows() -> None:
    parts = clients()
    assert simulated(count("digit"), parts).rows == len(everything(parts, "digit"))


@pytest.mark.parametrize("number", [255, 256, 300])
def test_hundreds_of_clients_are_asked_in_secret_by_default_and_counts_stay_exact(number: int) -> None:
    rows = np.random.default_rng(2).integers(0, 100, (number, 3)).astype(np.float32)
    schema = DataSchema(features=(Feature(name="x"),), label=Label(name="y", dtype="float32"))
    parts = [{"x": row, "y": row} for row in rows]
    asked = ask(histogram("x", low=0, high=100, bins=4), schema, clients=number)
    assert asked.secure is not None
    assert asked.rounds.weight_cap == (1 << 24 if number < 256 else 1 << 23)
    assert ask(count("x"), schema, clients=number, secure_aggregation=False).rounds.weight_cap == 1 << 24
    found = histogram("x", low=0, high=100, bins=4).answer(simulate_full(asked, parts).weights)
    assert list(found.counts) == np.histogram(rows, 4, (0, 100))[0].tolist()


def test_mean_and_variance_are_those_of_all_rows_of_every_element() -> None:
    parts = clients()
    answer, pixels = simulated(mean("pixels", low=0, high=255, elements=3), parts), everything(parts, "pixels")
    assert answer.rows == len(pixels)
    np.testing.assert_allclose(answer.mean, pixels.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(answer.variance, pixels.var(axis=0), rtol=1e-4)


@pytest.mark.parametrize(("number", "secret"), [(3, False), (12, True), (130, True)])
def test_a_mean_states_what_its_sums_round(number: int, secret: bool) -> None:
    """Also with a range that is far wider than the values, and where nobody says how many answered."""
    schema = DataSchema(features=(Feature(name="x"),), label=Label(name="y", dtype="float32"))
    query, ratios = mean("x", low=-5000, high=5000), list[float]()
    for seed in range(4):
        rows = np.random.default_rng(seed).normal(40, 3, (number, 20)).astype(np.float32)
        asked = ask(query, schema, clients=number, secure_aggregation=secret)
        run = simulate_full(asked, [{"x": row, "y": row} for row in rows])
        found = query.answer(run.weights, clients=number if secret else 0)
        unsaid = query.answer(run.weights)
        assert unsaid.error[0] >= found.error[0] > 0 and unsaid.variance_error[0] >= found.variance_error[0] > 0
        off = (found.mean[0] - rows.mean(dtype=np.float64), found.variance[0] - rows.var(dtype=np.float64))
        ratios += [abs(off[0]) / found.error[0], abs(off[1]) / found.variance_error[0]]
    assert max(ratios) < 4 and max(ratios) > 0.01


def test_values_beyond_the_range_of_a_mean_count_as_its_end() -> None:
    parts = clients()
    answer, ages = simulated(mean("age", low=30, high=40), parts), everything(parts, "age").clip(30, 40)
    np.testing.assert_allclose(answer.mean, ages.mean(), rtol=1e-5)


@pytest.mark.parametrize(("column", "high"), [("pixels", 255.0), ("digit", 9.0), ("age", 120.0)])
def test_a_histogram_counts_every_value_of_a_feature_or_of_the_label(column: str, high: float) -> None:
    parts = clients()
    answer, values = simulated(histogram(column, low=0, high=high, bins=8), parts), everything(parts, column).ravel()
    assert answer.counts.tolist() == np.histogram(values, answer.edges)[0].tolist()
    assert (answer.below, answer.above, answer.counts.sum()) == (0, 0, values.size)


def test_edges_at_whole_numbers_are_whole() -> None:
    parts = clients()
    answer = simulated(histogram("digit", low=0, high=10, bins=10), parts)
    assert answer.edges[:-1].tolist() == list(range(10))
    assert answer.counts.tolist() == np.bincount(everything(parts, "digit"), minlength=10).tolist()


def test_what_lies_outside_a_histogram_is_counted_apart() -> None:
    parts = clients()
    answer, ages = simulated(histogram("age", low=30, high=50, bins=4), parts), everything(parts, "age")
    assert (answer.below, answer.above) == ((ages < 30).sum(), (ages > 50).sum())


def test_quantiles_and_heavy_hitters_through_simulation_are_those_of_all_rows() -> None:
    parts = clients(12)
    ages, codes = everything(parts, "age"), everything(parts, "code")
    levels = (0.0, 0.25, 0.5, 0.99)
    answer = simulated(quantiles("age", levels, low=0, high=120, rounds=2), parts)
    for found, exact in zip(answer.quantiles, np.quantile(ages, levels, method="inverted_cdf"), strict=True):
        # The schema normalises ages, and undoing that costs a rounding.
        assert abs(found.value - exact) <= found.error + 1e-5
        assert found.error <= 0.5 * 120 / 64**2 + 1e-5
    values, times = np.unique(codes, return_counts=True)
    wanted = {int(v): int(n) for v, n in zip(values, times, strict=True) if n >= 0.05 * codes.size}
    assert simulated(heavy_hitters("code", bits=12, fraction=0.05, step=5), parts).counts == wanted


FLOATS = st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=60)


@given(values=FLOATS, level=st.floats(0, 1), bins=st.integers(2, 9), rounds=st.integers(1, 5))
def test_a_quantile_lies_between_its_bounds_which_are_as_near_as_stated(
    values: list[float], level: float, bins: int, rounds: int
) -> None:
    column = np.array(values, np.float32)
    answer = direct(quantiles("x", (level,), low=-10, high=10, bins=bins, rounds=rounds), column).quantiles[0]
    rank = max(1, math.ceil(level * column.size * (1 - 1e-12)))
    exact = float(np.sort(column)[rank - 1])
    assert answer.lower <= exact < answer.upper
    assert abs(answer.value - exact) <= answer.error
    # Each round rounds two edges, and the upper end of the range is closed by one spacing more.
    assert answer.upper - answer.lower <= 20 / bins**rounds + (rounds + 1) * float(np.spacing(np.float32(10)))


@given(values=FLOATS, low=st.floats(-5, 0), width=st.floats(0.5, 5))
def test_a_quantile_outside_the_range_is_said_to_be_outside(values: list[float], low: float, width: float) -> None:
    column, high = np.array(values, np.float32), low + width
    for found in direct(quantiles("x", (0.0, 0.5, 1.0), low=low, high=high, bins=4, rounds=2), column).quantiles:
        exact = float(cast(Any, np).quantile(column, found.level, method="inverted_cdf"))
        assert found.lower <= exact < found.upper or (found.lower, exact) == (-math.inf, found.upper)
        assert math.isinf(found.value) == (not np.float32(low) <= exact <= np.float32(high))


@given(
    values=st.lists(st.integers(0, 63), min_size=1, max_size=80),
    fraction=st.floats(0.02, 1),
    step=st.integers(1, 6),
)
def test_every_heavy_hitter_is_found_and_nothing_else(values: list[int], fraction: float, step: int) -> None:
    answer = direct(heavy_hitters("x", bits=6, fraction=fraction, step=step), np.array(values, np.float32))
    wanted = {v: values.count(v) for v in set(values) if values.count(v) >= fraction * len(values) * (1 - 1e-12)}
    assert answer.counts == wanted
    assert list(answer.counts.values()) == sorted(answer.counts.values(), reverse=True)


def test_seven_of_a_hundred_are_seven_hundredths() -> None:
    """0.07 · 100 is a little more than 7 in binary."""
    assert direct(heavy_hitters("x", bits=4, fraction=0.07), np.array([1.0] * 7 + [2.0] * 93, np.float32)).counts == {
        2: 93,
        1: 7,
    }


def test_other_rows_in_a_later_round_leave_a_quantile_at_the_end_that_they_are_beyond() -> None:
    query = quantiles("x", (0.5,), low=0, high=1, bins=10, rounds=2)
    # The first round's rows have their median in [0.5, 0.6), the second's below or above it.
    for value, bounds in ((0.2, (-math.inf, 0.5)), (0.9, (0.6, math.inf))):
        answers = [np.full(5, 0.55, np.float32), np.full(5, value, np.float32)]
        found = direct(query, *answers).quantiles[0]
        np.testing.assert_allclose((found.value, found.lower, found.upper), (min(map(abs, bounds)), *bounds), rtol=1e-6)


@pytest.mark.parametrize("rows", [250, 255])
def test_counts_stay_exact_however_many_numbers_a_row_has(rows: int) -> None:
    """A batch of 255 rows of 60 000 numbers is more than float32 can divide by 255 and multiply again."""
    schema = DataSchema(features=(Feature(name="x", shape=(60_000,)),), label=Label(name="y", low=0, high=1))
    held = {"x": np.full((rows, 60_000), 0.7, np.float32), "y": np.zeros(rows, np.int32)}
    query = histogram("x", low=0, high=1, bins=2)
    answer = query.answer(simulate_full(ask(query, schema, clients=1), [held]).weights)
    assert answer.counts.tolist() == [0, rows * 60_000]
    with pytest.raises(errors.ExperimentError, match="too large") as caught:
        ask(query, schema, clients=1, batch_size=256)
    assert caught.value.reason == "query_invalid"


def test_values_outside_the_domain_count_into_the_total_only() -> None:
    answer = direct(heavy_hitters("x", bits=2, fraction=0.4), np.array([-1, 3, 3, 4, 99], np.float32))
    assert (answer.values, answer.counts) == (5, {3: 2})


@pytest.mark.parametrize(("offset", "scale"), [(0.0, 1.0), (50.0, 0.1), (40.7, 1 / 17.3), (8000.5, 1 / 4096)])
def test_whole_numbers_are_found_whatever_the_normalisation_and_others_are_none(offset: float, scale: float) -> None:
    column = Feature(name="x", low=0, high=16383, offset=offset, scale=scale)
    schema = DataSchema(features=(column,), label=Label(name="y", low=0, high=1))
    values = np.repeat(np.array([3, 7, 48, 8191, 16383, 48.5, 99.75], np.float32), (5, 6, 7, 8, 9, 30, 35))
    rows = [{"x": part, "y": np.zeros(part.size, np.int32)} for part in (values[::2], values[1::2])]
    query = heavy_hitters("x", bits=14, fraction=0.05, step=7)
    answer = query.answer(simulate_full(ask(query, schema, clients=2), rows).weights)
    assert (answer.values, answer.counts) == (100, {16383: 9, 8191: 8, 48: 7, 7: 6, 3: 5})


def test_totals_beyond_float32_stay_exact() -> None:
    query = count("age")
    part = method(query.rule)
    layout = Layout.of({"total/high": (1,), "total/low": (1,)})
    from coterie.aggregation.horizontal.server_part import Aggregates

    placed = np.array([2.0**40 + 12345, 0.0])
    together = Aggregates(sections={TALLY: placed}, clients=1, weight=1.0)
    step, _ = part.server.apply(together, part.server.init(layout), _never)
    assert query.answer(layout.unflatten(step.astype(np.float32))).rows == 2**40 + 12345


@pytest.mark.parametrize("name", QUERIES)
def test_a_server_rebuilds_a_query_from_its_name_and_numbers(name: str) -> None:
    rule = QUERIES[name].rule
    rebuilt = algorithm(name, rule.parameters)
    assert name in METHODS and rebuilt == method(rule)
    with pytest.raises(errors.ExperimentError, match="unknown_algorithm|There is no algorithm"):
        algorithm(name, {**rule.parameters, "other": 1.0})


@pytest.mark.parametrize("name", QUERIES)
def test_the_order_of_clients_changes_no_answer(name: str) -> None:
    parts = clients()
    forth, back = simulated(QUERIES[name], parts), simulated(QUERIES[name], parts[::-1])
    if name == "mean":
        np.testing.assert_allclose(forth.mean, back.mean, rtol=1e-6)  # rows are shuffled by client number
    else:
        assert str(forth) == str(back)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: mean("age", low=1, high=1), "low must be below high"),
        (lambda: mean("age", low=0, high=math.inf), "high must be a finite number"),
        (lambda: mean("age", low=0, high=1, elements=0), "elements must be a whole number"),
        (lambda: histogram("age", low=0, high=1, bins=0), "bins must be a whole number"),
        (lambda: histogram("age", low=math.nan, high=1), "low must be a finite number"),
        (lambda: quantiles("age", (), low=0, high=1), "one to 8 levels"),
        (lambda: quantiles("age", (1.5,), low=0, high=1), "a level must be a finite number in 0..1"),
        (lambda: quantiles("age", (0.5,), low=0, high=1, rounds=0), "rounds must be a whole number"),
        (lambda: heavy_hitters("code", bits=25, fraction=0.1), "bits must be a whole number in 1..24"),
        (lambda: heavy_hitters("code", bits=8, fraction=0), "fraction must be a finite number"),
        (lambda: ask(count("height"), SCHEMA, clients=3), "asks about 'height'; the schema has age, code"),
        (lambda: ask(mean("pixels", low=0, high=1), SCHEMA, clients=3), "give elements=3"),
        (lambda: ask(count("x"), ERASED, clients=3), "multiplies 'x' by 0"),
        (lambda: quantiles("age", cast(Any, 0.5), low=0, high=1), "levels must be numbers in a tuple, got 0.5"),
        (lambda: quantiles("age", cast(Any, "0.5"), low=0, high=1), "levels must be numbers in a tuple, got '0.5'"),
        (lambda: quantiles("age", cast(Any, (None,)), low=0, high=1), "a level must be a finite number in 0..1"),
        (lambda: ask(cast(Any, "age"), SCHEMA, clients=3), "takes a query such as count.'age'., not a str"),
        (lambda: ask(count("age"), cast(Any, {}), clients=3), "takes the schema such as DataSchema.*, not a dict"),
        (lambda: ask(count("age"), SCHEMA, clients=3, batch_size=cast(Any, "8")), "batch_size must be a whole number"),
    ],
)
def test_impossible_queries_are_refused_by_name(make: Any, words: str) -> None:
    with pytest.raises(errors.ExperimentError, match=words) as caught:
        make()
    assert caught.value.reason == "query_invalid"


def test_an_experiment_that_would_answer_another_question_is_refused() -> None:
    from dataclasses import replace

    wanted = ask(quantiles("age", (0.5,), low=0, high=120), SCHEMA, clients=3)
    for changes, words in (
        ({"epochs": 2}, "every row once"),
        ({"holdout": 0.2}, "asks all rows"),
        ({"rounds": RoundPolicy(rounds=2, cohort=3, evaluate_every=0)}, "takes 3 rounds"),
        ({"codecs": ("int8", "float32")}, "sums are exact"),
        ({"broadcast": "int8"}, "its broadcast is float32"),
    ):
        with pytest.raises(errors.ExperimentError, match=words):
            replace(wanted, **changes)
    assert replace(wanted, optimizer=adam(0.1)).algorithm.name == "quantiles"


def test_the_version_of_another_query_is_no_answer() -> None:
    parts = clients(2)
    run = simulate_full(ask(count("age"), SCHEMA, clients=2), parts)
    with pytest.raises(errors.InputError, match="the query histogram has") as caught:
        histogram("age", low=0, high=1).answer(run.weights)
    assert caught.value.reason == "query_mismatch"
