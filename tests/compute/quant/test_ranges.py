"""The ranges that calibration chooses, against others' words for the same rules."""

from math import ceil, inf, log
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.compute.ir import NDArray
from coterie.compute.quant import Histogram, QuantSettings
from coterie.compute.quant.ranges import chosen_range

RNG = np.random.default_rng(3)
NUMBERS = {
    "normal": RNG.normal(size=6000),
    "behind ReLU": np.maximum(RNG.normal(size=6000), 0),
    "long tails": RNG.laplace(size=6000),
    "outliers": np.concatenate([RNG.normal(size=3000), [-9.0, 14.0]]),
    "one side": -RNG.exponential(size=6000),
    "even": RNG.uniform(-1, 6, 6000),
}


def histogram(x: NDArray, bins: int) -> Histogram:
    return Histogram.of(x.astype(np.float32), (float(x.min()), float(x.max())), bins)


def least_divergence(counts: list[float], zero: int, levels: int) -> tuple[int, int]:
    """The parts start .. stop of least divergence, one number after the other (Migacz 2017): p is what is inside and,
    at both ends, what is outside; q is what is inside, spread evenly over the parts in use of each level.
    """
    counts = [0.0 if place == zero else count for place, count in enumerate(counts)]
    best, chosen = inf, (0, len(counts))
    for step in range(128):
        share = 1.0 + step * (min(1.0, levels / len(counts)) - 1.0) / 127
        start, stop = zero - round(share * zero), zero + 1 + round(share * (len(counts) - 1 - zero))
        inside = counts[start:stop]
        if sum(count > 0 for count in inside) <= levels:
            continue
        p = [*inside]
        p[0] += sum(counts[:start])
        p[-1] += sum(counts[stop:])
        # Level k begins at the part floor(k n / levels).
        levels_of = [ceil((place + 1) * levels / len(inside)) - 1 for place in range(len(inside))]
        sums, used = [0.0] * levels, [0] * levels
        for count, level in zip(inside, levels_of, strict=True):
            sums[level] += count
            used[level] += count > 0
        q = [
            (sums[level] / used[level] if count else 0.0) + 1e-4 for count, level in zip(inside, levels_of, strict=True)
        ]
        whole = sum(p), sum(q)
        found = sum(a / whole[0] * log(a / whole[0] * whole[1] / b) for a, b in zip(p, q, strict=True) if a)
        if found < best - 1e-12:
            best, chosen = found, (start, stop)
    return chosen


@pytest.mark.capability("G9")
@pytest.mark.parametrize("case", NUMBERS)
def test_the_range_of_least_divergence_is_that_of_the_definition(case: str) -> None:
    seen = histogram(NUMBERS[case], 200)
    zero = next(place for place in range(200) if place == 199 or seen.edges[place + 1] > 0)
    start, stop = least_divergence(seen.counts.tolist(), zero, 16)
    expected = max(float(seen.edges[start]), seen.low), min(float(seen.edges[stop]), seen.high)
    assert chosen_range(seen, QuantSettings(calibration="kl", activation_bits=4)) == expected


@pytest.mark.capability("G9")
@pytest.mark.parametrize("case", ["normal", "even"])
def test_the_runtimes_own_search_comes_near(case: str) -> None:
    """ONNX Runtime's search is for ranges even on both sides, over every width."""
    from onnxruntime.quantization.calibrate import HistogramCollector  # pyright: ignore[reportMissingTypeStubs]

    x = NUMBERS[case]
    most = np.abs(x).max()
    counts, edges = np.histogram(x, bins=513, range=(-most, most))
    told = (counts, edges, x.min(), x.max(), most)
    theirs = cast(Any, HistogramCollector).get_entropy_threshold(None, told, 256)
    mine = chosen_range(histogram(x, 512), QuantSettings(calibration="kl"))
    np.testing.assert_allclose(mine, [float(end) for end in theirs], rtol=0.15)


@pytest.mark.capability("G9")
@pytest.mark.parametrize("case", NUMBERS)
@pytest.mark.parametrize("percentile", [90.0, 99.0, 100.0])
def test_the_range_of_a_percentile_is_that_of_the_sorted_numbers(case: str, percentile: float) -> None:
    x = NUMBERS[case]
    found = chosen_range(histogram(x, 500), QuantSettings(calibration="percentile", percentile=percentile))
    rest = (100 - percentile) / 2
    expected = np.percentile(x, [rest, 100 - rest], method="inverted_cdf")
    np.testing.assert_allclose(found, expected, atol=1.01 * (x.max() - x.min()) / 500)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), method=st.sampled_from(["minmax", "percentile", "kl"]))
def test_counts_below_none_that_noise_has_made_are_none(seed: int, method: str) -> None:
    noised = np.random.default_rng(seed).normal(1.0, 2.0, 64)
    options = QuantSettings(calibration=cast(Any, method), percentile=95.0, activation_bits=4)
    seen, clipped = (
        chosen_range(Histogram(low=-4.0, high=4.0, counts=each, bounds=(-4.0, 4.0)), options)
        for each in (noised, np.maximum(noised, 0))
    )
    assert seen == clipped and seen[0] <= seen[1]
