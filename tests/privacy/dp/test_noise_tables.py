"""Discrete Gaussian and Skellam draws: tables equal to the exact distribution, draws that follow the tables."""

from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from importlib import import_module
from itertools import accumulate
from math import factorial, isqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from coterie import errors
from coterie.privacy.dp.noise import discrete_gaussian, rejection, skellam
from coterie.privacy.dp.noise.fixed_point import exp_minus
from coterie.privacy.dp.noise.source import NoiseSource
from coterie.privacy.dp.noise.table import PRECISION, Table

stats: Any = import_module("scipy.stats")

KEY = b"a key of noise for tests alone.."
Draw = Callable[[int, Fraction, NoiseSource], npt.NDArray[np.int64]]
SAMPLERS: dict[str, Draw] = {"discrete_gaussian": discrete_gaussian.draw, "skellam": skellam.draw}
VARIANCES = [Fraction(1, 9), Fraction(1), Fraction(9), Fraction(1000, 7), Fraction(400), Fraction(40000)]


def decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)


def gaussian_weights(variance: Fraction, reach: int) -> list[Decimal]:
    """exp(-x²/2σ²) for x from -reach to reach, by another road: Decimal's own exponential."""
    half = [(-Decimal(x * x) / (2 * decimal(variance))).exp() for x in range(reach + 1)]
    return [*half[:0:-1], *half]


def skellam_weights(variance: Fraction, reach: int) -> list[Decimal]:
    """I_|k|(μ) by its power series Σ (μ/2)^(2j+k) / j! (j+k)!: all terms positive."""
    square, half = (decimal(variance) / 2) ** 2, decimal(variance) / 2
    found: list[Decimal] = []
    for k in range(reach + 1):
        term, total, j = half**k / factorial(k), Decimal(0), 0
        while term > total * Decimal(10) ** -90 or j < half:
            total += term
            j += 1
            term = term * square / (j * (j + k))
        found.append(total)
    return [*found[:0:-1], *found]


def drawn_table(sampler: Draw, variance: Fraction, monkeypatch: pytest.MonkeyPatch) -> Table:
    """The table that a draw goes through."""
    seen: list[Table] = []
    draw = Table.draw

    def noted(self: Table, count: int, source: NoiseSource) -> npt.NDArray[np.int64]:
        seen.append(self)
        return draw(self, count, source)

    monkeypatch.setattr(Table, "draw", noted)
    sampler(1, variance, NoiseSource(KEY))
    return seen[0]


@pytest.mark.parametrize(
    ("name", "variance", "weights"),
    [
        ("discrete_gaussian", Fraction(1, 9), gaussian_weights),
        ("discrete_gaussian", Fraction(9), gaussian_weights),
        ("discrete_gaussian", Fraction(1000, 7), gaussian_weights),
        ("discrete_gaussian", Fraction(4096), gaussian_weights),
        ("skellam", Fraction(1, 9), skellam_weights),
        ("skellam", Fraction(9), skellam_weights),
        ("skellam", Fraction(1000, 7), skellam_weights),
    ],
    ids=lambda value: str(getattr(value, "__name__", value)),
)
def test_every_threshold_of_a_table_is_the_exact_probability(
    name: str, variance: Fraction, weights: Callable[[Fraction, int], list[Decimal]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To two units of 2**-144, and what is cut off is within what the table says of itself."""
    table = drawn_table(SAMPLERS[name], variance, monkeypatch)
    with localcontext() as context:
        context.prec = 110
        further = 20 + isqrt(int(variance))
        exact = weights(variance, further - table.least)
        total, inside = sum(exact), exact[further:-further]
        cut = float((total - sum(inside)) / total)
        unit = Decimal(2) ** PRECISION
        away = [
            abs(Decimal(threshold) - below / sum(inside) * unit)
            for threshold, below in zip(table.thresholds, accumulate(inside[:-1]), strict=True)
        ]
    assert max(away) <= 2
    assert cut + len(inside) * 2.0**-PRECISION <= table.distance < 1e-35


@pytest.mark.parametrize("variance", VARIANCES, ids=str)
@pytest.mark.parametrize("name", SAMPLERS)
def test_draws_follow_the_exact_probabilities(name: str, variance: Fraction) -> None:
    """χ² of 2**18 draws over all values that are expected at least ten times."""
    count = 1 << 18
    values = SAMPLERS[name](count, variance, NoiseSource(KEY))
    spread = 6 * isqrt(int(variance)) + 6
    inside = np.arange(-spread, spread + 1)
    if name == "skellam":
        # Of the two Poisson numbers' difference: SciPy's own road to the probabilities.
        chance = stats.skellam.pmf(inside, float(variance) / 2, float(variance) / 2)
    else:
        chance = np.exp(-(inside**2) / (2 * float(variance)))
        chance /= chance.sum()
    expected = chance * count
    kept = expected >= 10
    observed = np.bincount(values[np.abs(values) <= spread] + spread, minlength=inside.size)
    rest = np.array([count - observed[kept].sum()]), np.array([count - expected[kept].sum()])
    if rest[1][0] < 10:
        rest = np.zeros(0), np.zeros(0)
    seen, meant = np.append(observed[kept], rest[0]), np.append(expected[kept], rest[1])
    assert stats.chisquare(seen, meant * seen.sum() / meant.sum()).pvalue > 1e-4


@pytest.mark.parametrize("deviation", [300.0, 5000.0, 2.0**18, 2.0**22 * 1.37, 2.0**39])
def test_sums_of_tables_are_discrete_gaussians_of_the_whole_variance(deviation: float) -> None:
    """Beyond one table: mean, variance, kurtosis, the normal distribution, and every residue as often."""
    count = 1 << 17
    values = discrete_gaussian.draw(count, Fraction(deviation) ** 2, NoiseSource(KEY))
    scaled = values / deviation
    assert abs(scaled.mean()) < 4 / count**0.5
    assert abs(scaled.var() - 1) < 4 * (2 / count) ** 0.5
    assert abs(stats.kurtosis(scaled)) < 4 * (24 / count) ** 0.5
    assert stats.kstest(scaled, "norm").pvalue > 1e-4
    for modulus in (2, 3, 64, 85):
        assert stats.chisquare(np.bincount(values % modulus, minlength=modulus)).pvalue > 1e-4


def test_the_sum_of_two_tables_is_exact() -> None:
    """P(X = x) of K·Y + Z in Decimal, x by x, against exp(-x²/2σ²): the theta function's ripple is below 2**-400."""
    variance = Fraction(300) ** 2
    factor = 2
    inner, outer = Fraction(16 * factor * factor), (variance - 16 * factor * factor) / factor**2
    assert outer <= 1 << 16
    with localcontext() as context:
        context.prec = 160

        def weight(x: int) -> Decimal:
            return sum(
                (
                    (
                        -Decimal(y * y) / (2 * decimal(outer)) - Decimal((x - factor * y) ** 2) / (2 * decimal(inner))
                    ).exp()
                    for y in range(x // factor - 130, x // factor + 130)
                ),
                Decimal(0),
            )

        ratios = [weight(x) / (-Decimal(x * x) / (2 * decimal(variance))).exp() for x in (0, 1, 2, 7, 300, 1501)]
        assert max(ratios) / min(ratios) - 1 < Decimal(2) ** -400


@pytest.mark.parametrize("variance", [Fraction(257) ** 2, Fraction(10**7, 3), Fraction(2.0**22 * 1.37) ** 2], ids=str)
def test_the_variances_of_the_tables_add_up_exactly(variance: Fraction, monkeypatch: pytest.MonkeyPatch) -> None:
    """K² times that of Y and 16 K² of Z, at every level: rational numbers, no tolerance."""
    asked: list[Fraction] = []
    table = discrete_gaussian._table  # pyright: ignore[reportPrivateUsage]

    def noted(of: Fraction) -> Table:
        asked.append(of)
        return table(of)

    monkeypatch.setattr(discrete_gaussian, "_table", noted)
    discrete_gaussian.draw(1, variance, NoiseSource(KEY))
    # The outermost Z is asked for first, the innermost Y last.
    *inner, whole = asked
    for least in reversed(inner):
        factor = isqrt(int(least / 16))
        assert least == 16 * factor * factor
        assert whole >= 100  # wide enough for the ripple to vanish
        whole = factor * factor * whole + least
    assert whole == variance


def test_skellam_sums_are_skellam_and_large_ones_are_sums() -> None:
    count, variance = 1 << 16, Fraction(200_000)
    values = skellam.draw(count, variance, NoiseSource(KEY))
    assert abs(values.var() / float(variance) - 1) < 4 * (2 / count) ** 0.5
    assert stats.kstest(values / float(variance) ** 0.5, "norm").pvalue > 1e-4


def test_the_exact_sampler_and_the_table_agree() -> None:
    """Canonne, Kamath and Steinke's rejection sampler, in rational numbers, against the table: two samples, one χ²."""
    variance, count, source = Fraction(25, 4), 8000, NoiseSource(KEY)
    slow = np.array([rejection.discrete_gaussian(variance, source) for _ in range(count)])
    fast = discrete_gaussian.draw(count * 10, variance, source)
    edges = np.arange(-6, 7)
    table = np.array([np.bincount(np.clip(values, -6, 6) + 6, minlength=edges.size) for values in (slow, fast)])
    assert stats.chi2_contingency(table).pvalue > 1e-4
    assert abs(slow.var() - 6.25) < 4 * 6.25 * (2 / count) ** 0.5


def test_the_exact_discrete_laplace_is_one() -> None:
    source, scale, count = NoiseSource(KEY), 3, 6000
    values = np.array([rejection.discrete_laplace(scale, source) for _ in range(count)])
    inside = np.arange(-12, 13)
    chance = np.exp(-np.abs(inside) / scale) * np.tanh(1 / (2 * scale))
    observed = np.bincount(values[np.abs(values) <= 12] + 12, minlength=inside.size)
    seen, meant = np.append(observed, count - observed.sum()), np.append(chance, 1 - chance.sum()) * count
    assert stats.chisquare(seen, meant).pvalue > 1e-4


@pytest.mark.parametrize("power", [Fraction(0), Fraction(1, 3), Fraction(1), Fraction(5, 2)], ids=str)
def test_the_exact_coin_falls_with_its_probability(power: Fraction) -> None:
    source, count = NoiseSource(KEY), 20_000
    heads = sum(rejection.bernoulli_exp(power, source) for _ in range(count))
    assert stats.binomtest(heads, count, float(np.exp(-float(power)))).pvalue > 1e-4


class Words(NoiseSource):
    """A source that says what a test wants to hear."""

    def __init__(self, cells: list[int], rest: list[int]) -> None:
        super().__init__(KEY)
        self.cells, self.rest = cells, rest

    def words16(self, count: int) -> npt.NDArray[np.uint16]:
        return np.array([self.cells.pop(0) for _ in range(count)], np.uint16)

    def words64(self, count: int) -> npt.NDArray[np.uint64]:
        return np.array([self.rest.pop(0) for _ in range(count)], np.uint64)


def split(whole: int) -> tuple[int, list[int]]:
    """A number below 2**144 as its cell and its two words."""
    return whole >> 128, [whole >> 64 & (1 << 64) - 1, whole & (1 << 64) - 1]


def test_a_draw_on_a_threshold_is_decided_by_its_last_bit() -> None:
    """Weights 1, 2, 4: thresholds at 1/7 and 3/7. U one below a threshold is the smaller value, at it the larger."""
    table = Table.of(-5, [1, 2, 4], 0.0)
    assert table.thresholds == ((1 << PRECISION) // 7, (3 << PRECISION) // 7)
    for index, threshold in enumerate(table.thresholds):
        for away, value in ((-1, index), (0, index + 1), (1, index + 1), (-(1 << 81), index), (1 << 81, index + 1)):
            cell, rest = split(threshold + away)
            assert table.draw(1, Words([cell], rest)).tolist() == [value - 5]


def test_many_thresholds_in_one_cell_are_told_apart() -> None:
    """Ten numbers share the first cell, some even the upper 64 bits of their thresholds."""
    for heavy in (1 << 40, 1 << 70):
        table = Table.of(0, [1] * 10 + [heavy], 0.0)
        for index, threshold in enumerate(table.thresholds):
            for away, value in ((-1, index), (0, index + 1)):
                cell, rest = split(threshold + away)
                assert cell == 0
                assert table.draw(1, Words([cell], rest)).tolist() == [value]


def test_numbers_without_weight_are_never_drawn() -> None:
    table = Table.of(0, [0, 1, 2, 0, 0], 0.0)
    for whole, value in ((0, 1), (table.thresholds[1] - 1, 1), (table.thresholds[1], 2), ((1 << PRECISION) - 1, 2)):
        cell, rest = split(whole)
        assert table.draw(1, Words([cell], rest)).tolist() == [value]


def test_a_cell_inside_one_interval_costs_no_further_words() -> None:
    assert Table.of(-5, [1, 2, 4], 0.0).draw(3, Words([0, 20000, 65535], [])).tolist() == [-5, -4, -3]


def test_the_same_key_gives_the_same_draws_and_a_source_never_repeats_itself() -> None:
    variance = Fraction(40000)
    one, other = NoiseSource(KEY), NoiseSource(KEY)
    first = discrete_gaussian.draw(70_000, variance, one)
    assert np.array_equal(first, discrete_gaussian.draw(70_000, variance, other))
    assert not np.array_equal(first, discrete_gaussian.draw(70_000, variance, one))


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("variance", [Fraction(0), Fraction(-1), Fraction(2) ** 90], ids=str)
def test_impossible_variances_are_refused(name: str, variance: Fraction) -> None:
    with pytest.raises(errors.ArgumentValueError, match="needs a variance above 0"):
        SAMPLERS[name](1, variance, NoiseSource(KEY))


@pytest.mark.parametrize("variance", [Fraction(1, 10**6), Fraction(1, 100)], ids=str)
def test_tiny_variances_draw_zeros(variance: Fraction) -> None:
    assert not discrete_gaussian.draw(1000, variance, NoiseSource(KEY)).any()


def test_no_draws_are_an_empty_vector() -> None:
    assert discrete_gaussian.draw(0, Fraction(9), NoiseSource(KEY)).shape == (0,)
    assert skellam.draw(0, Fraction(9), NoiseSource(KEY)).shape == (0,)


@pytest.mark.parametrize(
    "power", [Fraction(0), Fraction(1, 10**12), Fraction(1, 2), Fraction(7, 3), Fraction(200)], ids=str
)
def test_the_exponential_is_right_to_its_last_unit(power: Fraction) -> None:
    with localcontext() as context:
        context.prec = 150
        exact = (-decimal(power)).exp() * Decimal(2) ** 320
        assert abs(exact - exp_minus(power, 320)) <= 1


def test_the_exponential_of_a_huge_power_is_zero() -> None:
    assert exp_minus(Fraction(10**9), 320) == 0


def test_distances_grow_with_the_number_of_tables_and_stay_far_below_any_delta() -> None:
    assert discrete_gaussian.distance(Fraction(9)) < 1e-40
    assert discrete_gaussian.distance(Fraction(2) ** 44) < 1e-37
    assert skellam.distance(Fraction(1 << 20)) < 1e-36
