"""How metrics differ between clients, told by counts that add."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie import errors
from coterie.protocol import spread
from coterie.protocol.metrics import MetricSums
from coterie.protocol.spread import GRID, Spread, count_sums, histogram, lower_is_better, section, spreads

METRICS = ("examples", "loss", "accuracy")


def client(loss: float, accuracy: float, examples: int = 4) -> MetricSums:
    return MetricSums({"examples": examples, "loss": loss * examples, "accuracy": accuracy * examples})


def together(clients: list[MetricSums]) -> dict[str, Spread]:
    """As rounds add them: one client after another."""
    total = MetricSums()
    for one in clients:
        total = total.merge(count_sums(METRICS, histogram(METRICS, one)))
    return spreads(total.sums)


accuracies = st.integers(0, 64).map(lambda hits: hits / 64)
populations = st.lists(st.tuples(st.floats(0, 1e4), accuracies), min_size=1, max_size=60)


def test_the_grid_is_exact_in_float32_and_rises() -> None:
    assert (np.diff(GRID) > 0).all()
    assert (GRID.astype(np.float32).astype(np.float64) == GRID).all()
    assert {0.0, 0.125, 0.5, 127 / 128, 1.0, -1.0} <= set(GRID.tolist())


@given(st.floats(-16384, 16384))
def test_a_mean_counts_once_and_near_where_it_is(value: float) -> None:
    counts = histogram(("examples", "score"), MetricSums({"examples": 1, "score": value}))
    at = float(GRID[np.flatnonzero(counts)].item())
    assert counts.sum() == 1
    assert abs(at - value) == np.abs(GRID - value).min()
    bound = 1 / 256 if 1 / 8 <= value <= 1 else abs(value) / (16 if value > 0 else 8)
    assert abs(at - value) <= max(bound, 2.0**-13)


@pytest.mark.parametrize("value", [1e30, -1e30])
def test_beyond_the_grid_a_mean_counts_at_its_end(value: float) -> None:
    counts = histogram(("examples", "score"), MetricSums({"examples": 1, "score": value}))
    assert counts[-1 if value > 0 else 0] == 1


@given(populations)
def test_deciles_from_counts_are_those_of_the_clients_up_to_the_grid(clients: list[tuple[float, float]]) -> None:
    found = together([client(*one) for one in clients])["accuracy"]
    tenth = math.ceil(len(clients) / 10)
    values = np.sort([accuracy for _, accuracy in clients])
    assert found.clients == len(clients)
    assert found.worst_decile == pytest.approx(values[:tenth].mean(), abs=1 / 256)
    assert found.best_decile == pytest.approx(values[-tenth:].mean(), abs=1 / 256)
    assert found.median == pytest.approx(np.median(values), abs=1 / 256)
    assert found.deviation == pytest.approx(values.std(), abs=1 / 128)


@given(populations)
def test_the_worst_are_those_who_lose_most(clients: list[tuple[float, float]]) -> None:
    found = together([client(*one) for one in clients])
    assert found["loss"].worst_decile >= found["loss"].median >= found["loss"].best_decile
    assert found["accuracy"].worst_decile <= found["accuracy"].median <= found["accuracy"].best_decile


@given(populations, st.randoms(use_true_random=False))
def test_order_and_size_of_clients_do_not_matter(clients: list[tuple[float, float]], random: Any) -> None:
    shuffled = random.sample(clients, len(clients))
    assert together([client(*one) for one in clients]) == together(
        [client(*one, examples=random.choice((1, 64))) for one in shuffled]
    )


def test_the_section_fits_what_a_client_puts_into_it() -> None:
    spec = section(METRICS)
    vector = histogram(METRICS, client(0.5, 0.5))
    assert spec.is_extra and vector.shape == (spec.length,) and vector.dtype == np.float32
    assert spec.value_range == (0.0, 1.0)


SPOILS: list[Callable[[Any], Any]] = [
    lambda counts: counts * 0,
    lambda counts: counts * 2,
    lambda counts: counts * 0.5,
    lambda counts: counts[::-1] - counts,
]


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_client_counts_itself_exactly_once(spoil: Any) -> None:
    with pytest.raises(errors.UpdateRefused) as caught:
        count_sums(METRICS, spoil(histogram(METRICS, client(0.5, 0.25))))
    assert caught.value.reason == "metric_invalid"


def test_an_accumulator_counts_all_its_clients() -> None:
    vector = histogram(METRICS, client(0.5, 0.25)) + histogram(METRICS, client(0.5, 1.0))
    assert spreads(count_sums(METRICS, vector, clients=2).sums)["accuracy"].median == 0.625
    with pytest.raises(errors.UpdateRefused):
        count_sums(METRICS, vector, clients=3)


VECTORS: dict[str, Any] = json.loads((Path(spread.__file__).parent / "vectors" / "spread.json").read_text("ascii"))


def test_the_grid_is_that_of_the_vectors() -> None:
    assert GRID.tolist() == VECTORS["grid"]


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: str(case["name"]))
def test_a_client_counts_where_the_vectors_say(case: Any) -> None:
    names = VECTORS["metrics"]
    counts = histogram(names, MetricSums.from_vector(names, np.array(case["sums"], np.float64))).reshape(2, -1)
    assert [np.flatnonzero(row).tolist() for row in counts] == [[place] for place in case["places"]]
    # From the vectors alone, as another language would have it.
    means = np.array(case["sums"][1:]) / case["sums"][0]
    assert [int(np.argmin(np.abs(GRID - mean))) for mean in means] == case["places"]


@pytest.mark.parametrize("case", VECTORS["refused"], ids=lambda case: str(case["name"]))
def test_counts_that_the_vectors_refuse(case: Any) -> None:
    vector = np.zeros(section(VECTORS["metrics"]).length, np.float32)
    for place, count in case["counts"].items():
        vector[int(place)] = count
    with pytest.raises(errors.UpdateRefused) as caught:
        count_sums(VECTORS["metrics"], vector)
    assert caught.value.reason == case["code"]


def test_nobody_counted_is_no_spread_and_no_mean() -> None:
    assert spreads({}) == {} and spreads({"examples": 3.0, "loss": 1.0}) == {}
    assert set(MetricSums({"examples": 2, "loss": 2, "clients/loss/3": 2}).means()) == {"loss"}


@pytest.mark.parametrize(("name", "lower"), [("loss", True), ("test_loss", True), ("mae", True), ("accuracy", False)])
def test_what_is_worse_is_known_by_the_name(name: str, lower: bool) -> None:
    assert lower_is_better(name) is lower
