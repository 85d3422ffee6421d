"""What is remembered of activations adds up, however rows are dealt out, and ranges are chosen from it by rule."""

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.compute.ir import NDArray
from coterie.compute.quant import Histogram, QuantSettings, observe, observed, quantise, quantise_with
from coterie.compute.quant.ranges import chosen_range
from coterie.errors import InputError
from tests.compute.quant.graphs import small_cnn

BOUNDS = (-4.0, 4.0)


@pytest.mark.capability("G9")
@settings(max_examples=40)
@given(
    parts=st.lists(st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=20), min_size=1, max_size=5),
    bounds=st.sampled_from([None, BOUNDS, (0.0, 0.0)]),
)
def test_histograms_of_parts_add_up_to_that_of_all(parts: list[list[float]], bounds: Any) -> None:
    arrays = [np.asarray(part, np.float32) for part in parts]
    whole = Histogram.of(np.concatenate(arrays), bounds, bins=16)
    for order in (arrays, arrays[::-1]):
        total = Histogram.of(order[0], bounds, bins=16)
        for array in order[1:]:
            total = total + Histogram.of(array, bounds, bins=16)
        assert (total.low, total.high, total.bounds) == (whole.low, whole.high, whole.bounds)
        np.testing.assert_array_equal(total.counts, whole.counts)
    if bounds is not None:
        assert whole.counts.sum() == sum(map(len, parts)), "every number counts, also outside of the bounds"


def test_a_part_counts_what_numpy_counts_in_it() -> None:
    x = np.random.default_rng(0).normal(size=4000).astype(np.float32)
    found = Histogram.of(x, (-5.0, 5.0), bins=50)
    np.testing.assert_array_equal(found.counts, np.histogram(x, bins=found.edges)[0])


def histogram(x: NDArray, bins: int = 2048) -> Histogram:
    return Histogram.of(x.astype(np.float32), (float(x.min()), float(x.max())), bins)


@pytest.mark.capability("G9")
def test_each_method_chooses_its_range() -> None:
    rng = np.random.default_rng(1)
    plain = np.concatenate([rng.normal(size=20000).clip(-4, 4), [-12.0, 16.0]])
    seen = histogram(plain)
    ranges = {
        method: chosen_range(seen, QuantSettings(calibration=cast(Any, method), percentile=99.0))
        for method in ("minmax", "percentile", "kl")
    }
    assert ranges["minmax"] == (-12.0, 16.0)
    width = 28 / 2048
    low, high = np.percentile(plain, [0.5, 99.5])
    assert abs(ranges["percentile"][0] - low) <= width and abs(ranges["percentile"][1] - high) <= width
    assert -8 < ranges["kl"][0] < -2 and 2 < ranges["kl"][1] < 10, "far outliers are cut off"
    flat = histogram(rng.uniform(0, 6, 20000))
    low, high = chosen_range(flat, QuantSettings(calibration="kl"))
    assert low < 0.01 and high > 5.4, "what fills its range is kept"


@pytest.mark.parametrize("method", ["minmax", "percentile", "kl"])
@pytest.mark.parametrize("x", [[0.0], [0.0, 0.0, 5.0], [-3.0], [2.0, 2.0], list(range(10))])
def test_a_method_survives_few_numbers(method: str, x: list[float]) -> None:
    low, high = chosen_range(
        histogram(np.asarray(x, np.float64)), QuantSettings(calibration=cast(Any, method), percentile=100)
    )
    assert low == min(x) and high == max(x)


@pytest.mark.capability("G9")
@pytest.mark.parametrize("method", ["minmax", "percentile", "kl"])
def test_clients_that_share_histograms_make_the_file_that_their_pooled_rows_make(method: str) -> None:
    model, rows, _ = small_cnn()
    options = QuantSettings(calibration=cast(Any, method))
    clients = [{"x": rows[:10]}, {"x": rows[10:40]}, {"x": rows[40:]}]
    extremes = [observe(model, [client]) for client in clients]
    bounds = {
        name: (min(seen[name].low for seen in extremes), max(seen[name].high for seen in extremes))
        for name in observed(model)
    }
    told = [observe(model, [client], bounds=bounds) for client in clients]
    total = {name: told[0][name] + told[1][name] + told[2][name] for name in bounds}
    assert quantise_with(model, total, options) == quantise(model, [{"x": rows}], options)


def test_rows_that_do_not_fit_are_refused_by_name() -> None:
    model, rows, _ = small_cnn()
    bad = rows.copy()
    bad[3, 0, 2, 2] = np.nan
    cases: list[tuple[Any, str]] = [
        ([], "no calibration rows"),
        ([{"x": rows[:0]}], "no calibration rows"),
        ([{"image": rows}], "holds image; the model takes x"),
        ([rows], "holds ndarray"),
        ([{"x": rows.astype(np.float64)}], "'x' is float64"),
        ([{"x": rows[:, :, :4]}], r"'x' is float32\[64, 1, 4, 8\]"),
        ([{"x": bad}], "not finite on a calibration row"),
    ]
    for batches, named in cases:
        with pytest.raises(InputError, match=named):
            observe(model, batches)
    with pytest.raises(InputError, match="is missing or not among them"):
        observe(model, [{"x": rows}], bounds={"y": (0.0, 1.0)})
    with pytest.raises(InputError, match="cannot be added"):
        _ = Histogram.of(rows, BOUNDS) + Histogram.of(rows)
    with pytest.raises(InputError, match="from one finite number"):
        Histogram.of(bad)
