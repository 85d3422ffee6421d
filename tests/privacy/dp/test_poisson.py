"""Poisson batches: each row for itself, and what batches that overflow cost."""

# SciPy is partly without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeArgument=false, reportUnknownParameterType=false, reportMissingTypeStubs=false

import math

import numpy as np
import pytest
from scipy import stats

from coterie.errors import ArgumentValueError
from coterie.privacy.dp.noise.source import NoiseSource
from coterie.privacy.dp.poisson import draw_rows, draws, most_of, overflow, rate_of


@pytest.mark.parametrize(("expected", "most"), [(1, 2), (8, 9), (8, 32), (256, 300), (256, 400), (4096, 4500)])
def test_overflow_bounds_every_binomial_of_that_mean_and_is_close_to_poisson(expected: int, most: int) -> None:
    bound = overflow(expected, most)
    exact = float(stats.poisson.sf(most - 1, expected))
    assert exact <= bound * (1 + 1e-9)
    assert bound <= min(1.0, exact * (expected + 2))
    for rows in (expected + 1, 2 * expected, 100 * expected, 10_000 * expected):
        assert stats.binom.sf(most - 1, rows, expected / rows) <= bound * (1 + 1e-9)


def test_the_most_is_the_least_that_fails_so_seldom() -> None:
    most = most_of(256, rows=60_000, steps=14_040, failure=1e-9)
    assert draws(256, most, rows=60_000, steps=14_040).failure <= 1e-9
    assert draws(256, most - 1, rows=60_000, steps=14_040).failure > 1e-9
    assert 256 < most < 2 * 256


def test_room_for_no_more_than_what_is_expected_is_refused() -> None:
    for most in (7, 8):
        with pytest.raises(ArgumentValueError, match="max_batch"):
            overflow(8, most)


def test_rows_are_drawn_for_themselves_with_the_rate() -> None:
    source, rows, rate, times = NoiseSource(bytes(range(32))), 400, 0.07, 500
    seen = np.zeros((times, rows))
    for time in range(times):
        seen[time, draw_rows(rows, rate, source)] = 1
    each = stats.binomtest(int(seen.sum()), times * rows, rate)
    assert each.pvalue > 1e-4
    # Sizes of batches are as spread as independent draws make them, and rows are alike.
    assert abs(seen.sum(1).var() / (rows * rate * (1 - rate)) - 1) < 0.3
    assert stats.chisquare(seen.sum(0)).pvalue > 1e-4
    assert not np.array_equal(seen[0], seen[1])


def test_a_rate_of_one_takes_all_rows_and_one_of_nothing_none() -> None:
    source = NoiseSource(bytes(32))
    assert draw_rows(5, 1.0, source).tolist() == [0, 1, 2, 3, 4]
    assert draw_rows(1000, 2.0**-65, source).size == 0
    assert rate_of(8, 4) == 1.0 and rate_of(8, 16) == 0.5


@pytest.mark.parametrize("most", [3, 4, 6])
@pytest.mark.parametrize("others", [5, 9])
def test_an_overflowing_batch_that_counts_as_empty_costs_no_more_than_is_charged(most: int, others: int) -> None:
    """One step in one dimension, by numbers: the hockey-stick divergence with and without a row, against that of the
    ideal step and a failure of the probability that is charged. All other rows pull the other way as hard as they may.
    """
    rate, sigma = 2 / (others + 1), 1.0
    x = np.linspace(-others - 12, 14, 40_001)
    width = x[1] - x[0]

    def density(counts: np.ndarray, with_row: bool) -> np.ndarray:
        total = np.zeros_like(x)
        for count, chance in enumerate(counts):
            for joins, share in ((False, 1 - rate), (True, rate)) if with_row else ((False, 1.0),):
                size = count + joins
                mean = 0.0 if size > most else float(joins) - count
                total += chance * share * stats.norm.pdf(x, mean, sigma)
        return total

    counts = stats.binom.pmf(np.arange(others + 1), others, rate)
    without, with_row = density(counts, False), density(counts, True)
    ideal_without = stats.norm.pdf(x, 0, sigma)
    ideal_with = (1 - rate) * ideal_without + rate * stats.norm.pdf(x, 1, sigma)
    charged = rate * float(stats.binom.sf(most - 1, others, rate))
    assert charged <= draws(2, most, rows=others + 1, steps=1).failure
    for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0):
        for p, q, a, b in (
            (with_row, without, ideal_with, ideal_without),
            (without, with_row, ideal_without, ideal_with),
        ):
            truth = float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * width)
            ideal = float(np.maximum(a - math.exp(epsilon) * b, 0).sum() * width)
            assert truth <= ideal + charged + 1e-9
