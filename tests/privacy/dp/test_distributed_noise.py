"""Noise that clients share: sums come back, no client weighs more than promised, the price is an upper bound."""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from coterie import errors
from coterie.privacy.dp import distributed, spread
from coterie.privacy.dp.choosing import RARE, choose, overflow
from coterie.privacy.dp.distributed import DistributedNoise, decode, encode, event
from coterie.privacy.dp.events import Concentrated
from coterie.privacy.dp.noise import discrete_gaussian
from coterie.privacy.dp.noise.distributions import DISTRIBUTIONS
from coterie.privacy.dp.noise.source import NoiseSource
from coterie.protocol.mechanisms import DISTRIBUTED, DistributedMechanism

special: Any = import_module("scipy.special")

KEY = b"a key of noise for tests alone.."
SHARED = bytes(range(32))
MECHANISMS = DISTRIBUTED
Vector = npt.NDArray[np.float64]


def terms(mechanism: DistributedMechanism = "discrete_gaussian", **changed: Any) -> DistributedNoise:
    """Of 20 clients with vectors of 300 coordinates."""
    given_terms: dict[str, Any] = {
        "mechanism": mechanism,
        "clip": 2.0,
        "scale": 300.0,
        "variance": 900.0,
        "contributors": 16,
        "bits": 16,
        "length": 300,
    }
    return DistributedNoise(**(given_terms | changed))


def vectors(count: int, length: int, norm: float) -> list[Vector]:
    """Vectors at random of that norm."""
    rng = np.random.default_rng(3)
    drawn = rng.standard_normal((count, length))
    return list(drawn * (norm / np.linalg.norm(drawn, axis=1))[:, None])


def silent(mechanism: DistributedMechanism, count: int, variance: float, source: NoiseSource) -> npt.NDArray[np.int64]:
    """In the place of `distributed.share`: no noise."""
    return np.zeros(count, np.int64)


def test_every_name_of_the_wire_has_a_row() -> None:
    assert tuple(DISTRIBUTIONS) == DISTRIBUTED


@pytest.mark.parametrize("length", [1, 5, 64, 65, 100, 4096, 7850, 20_000])
def test_spreading_keeps_the_norm_and_is_undone(length: int) -> None:
    vector = np.random.default_rng(0).standard_normal(length)
    turned = spread.spread(vector, SHARED)
    assert turned.size == spread.padded(length)
    assert np.linalg.norm(turned) == pytest.approx(np.linalg.norm(vector), rel=1e-12)
    assert np.allclose(spread.gather(turned, length, SHARED), vector, rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", [1, 2, 3, 64, 100, 7850, 1 << 20])
def test_dealing_visits_every_coordinate_once(length: int) -> None:
    step = spread.stride(length)
    assert 1 <= step <= length
    assert math.gcd(step, length) == 1


def test_a_layer_of_large_numbers_does_not_fill_one_block() -> None:
    """The last 500 of 7850 hold nearly all; no block holds more than twice its part, and no coordinate sticks out."""
    vector = np.random.default_rng(0).standard_normal(7850) * 1e-3
    vector[-500:] = 1.0
    turned = spread.spread(vector, SHARED)
    mean = float(np.dot(vector, vector)) / turned.size
    assert all((block**2).mean() < 2 * mean for block in np.split(turned[:4096], 64))
    assert np.abs(turned).max() < 6 * math.sqrt(mean)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_sum_in_the_ring_is_the_sum_of_the_clipped_vectors_and_the_noise(mechanism: DistributedMechanism) -> None:
    """20 clients, half of them beyond the clip: the error is the noise's, in every coordinate, without bias."""
    chosen = terms(mechanism)
    inputs = [*vectors(10, 300, 1.5), *vectors(10, 300, 7.0)]
    total = np.zeros(chosen.padded, np.uint32)
    for index, vector in enumerate(inputs):
        encoded = encode(vector, chosen, SHARED, NoiseSource(KEY[:-1] + bytes([index])))
        assert encoded.numbers.dtype == np.uint32
        assert encoded.numbers.shape == (chosen.padded,)
        assert int(encoded.numbers.max()) < 1 << chosen.bits
        assert encoded.shortened == (index >= 10)
        total += encoded.numbers
    meant = np.sum([vector * min(1.0, 2.0 / float(np.linalg.norm(vector))) for vector in inputs], axis=0)
    error = decode(total, chosen, SHARED) - meant
    deviation = math.sqrt(20 * (900 + 1 / 6)) / 300
    assert abs(error.mean()) < 4 * deviation / math.sqrt(300)
    assert abs(error.std() / deviation - 1) < 4 / math.sqrt(600)
    assert decode(total % (1 << chosen.bits), chosen, SHARED).tolist() == decode(total, chosen, SHARED).tolist()


@given(
    arrays.arrays(np.float64, 300, elements=st.floats(allow_nan=True, allow_infinity=True), fill=st.floats(-1e9, 1e9)),
    st.binary(min_size=32, max_size=32),
    st.sampled_from([0.5, 3.0, 300.0, 1e8]),
)
def test_no_vector_weighs_more_than_the_sensitivity_after_rounding(vector: Vector, key: bytes, scale: float) -> None:
    """Whatever a device feeds in, NaN included: without the noise, the squares sum to at most `square`."""
    chosen = terms(scale=scale, bits=32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "share", silent)
        numbers = encode(vector, chosen, SHARED, NoiseSource(key)).numbers
    lifted = numbers.astype(np.int64)
    lifted[lifted >= 1 << 31] -= 1 << 32
    assert sum(int(value) ** 2 for value in lifted) <= chosen.square


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_vector_that_is_not_finite_is_sent_as_zeros_with_all_the_noise(
    mechanism: DistributedMechanism, bad: float
) -> None:
    """Bit for bit what a vector of zeros would be: nobody can tell that anything was wrong."""
    vector = vectors(1, 300, 1.0)[0]
    vector[17] = bad
    sent = encode(vector, terms(mechanism), SHARED, NoiseSource(KEY)).numbers
    assert np.array_equal(sent, encode(np.zeros(300), terms(mechanism), SHARED, NoiseSource(KEY)).numbers)
    lifted = (sent.astype(np.int64) + (1 << 15)) % (1 << 16) - (1 << 15)
    assert abs(lifted.std() / 30 - 1) < 4 / math.sqrt(2 * lifted.size)


def test_what_leaves_a_device_depends_on_its_own_key() -> None:
    vector = vectors(1, 300, 1.0)[0]
    one = encode(vector, terms(), SHARED, NoiseSource(KEY)).numbers
    assert np.array_equal(one, encode(vector, terms(), SHARED, NoiseSource(KEY)).numbers)
    assert not np.array_equal(one, encode(vector, terms(), SHARED, NoiseSource.fresh()).numbers)


def test_a_sum_beyond_the_ring_wraps_and_comes_back_at_the_other_end() -> None:
    """64 coordinates, one block: 40 equal vectors of one direction in a ring too small for them."""
    small = terms(length=64, bits=9, scale=100.0, clip=1.0, variance=4.0)
    assert overflow(small, 40) > 0.5
    vector = spread.gather(np.eye(64)[0], 64, SHARED)
    total = np.zeros(64, np.uint32)
    for index in range(40):
        total += encode(vector, small, SHARED, NoiseSource(KEY[:-1] + bytes([index]))).numbers
    steps = spread.spread(decode(total, small, SHARED), SHARED)[0] * 100
    assert abs(steps - (4000 - 8 * 512)) < 5 * math.sqrt(40 * 5)


# --- the price ---


def pmf(mechanism: DistributedMechanism, variance: float, reach: int) -> Vector:
    """Of one share on -reach … reach."""
    at = np.arange(-reach, reach + 1)
    if mechanism == "skellam":
        return special.ive(np.abs(at), variance)
    weights = np.exp(-(at**2) / (2 * variance))
    return weights / weights.sum()


def renyi(chances: Vector, shift: int, order: float) -> float:
    """The Rényi divergence of a distribution from itself moved by `shift`, where both are above 1e-290."""
    one, other = chances[shift:], chances[: chances.size - shift]
    both = (one > 1e-290) & (other > 1e-290)
    exponents = order * np.log(one[both]) + (1 - order) * np.log(other[both])
    return float(special.logsumexp(exponents)) / (order - 1)


@pytest.mark.parametrize("contributors", [1, 2, 5])
@pytest.mark.parametrize("variance", [4.0, 9.5])
@pytest.mark.parametrize("shift", [1, 2, 6])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_price_is_above_the_true_divergence(
    mechanism: DistributedMechanism, shift: int, variance: float, contributors: int
) -> None:
    """One coordinate, one client of `shift` whole numbers or none: the exact distribution of the sum of the shares,
    order by order. Never below; and, where Skellam is near a Gaussian, not far above: a wrong factor would show.
    """
    reach = 40 * math.isqrt(int(variance * contributors)) + 60
    one = pmf(mechanism, variance, reach)
    total = one
    for _ in range(contributors - 1):
        total = np.convolve(total, one, mode="same")
    bound = distributed.cost_of_sum(mechanism, shift * shift, 1, variance, contributors)
    for order in (2, 3, 5, 8, 16):
        true = renyi(total, shift, order)
        claimed = bound.rho * order + bound.xi
        assert true <= claimed * (1 + 1e-9)
        if mechanism == "discrete_gaussian" or variance * contributors >= 40:
            assert claimed <= true * 1.7


def test_discrete_gaussians_cost_what_theorem_one_says() -> None:
    """Fine shares: ½ε² = S / 2nv to eight digits. Coarse ones: τ counts."""
    fine = terms(variance=400.0)
    assert event(fine).rho == pytest.approx(fine.square / (2 * 16 * 400), rel=1e-8)
    coarse, many, clients = 0.5, 10_000, 3
    tau = 10 * (math.exp(-(math.pi**2) * coarse) + math.exp(-(math.pi**2) * coarse * 4 / 3))
    ratio = 9 / (clients * coarse)
    meant = min(ratio + tau * many / 2, (math.sqrt(ratio) + tau * math.sqrt(many)) ** 2) / 2
    assert distributed.cost_of_sum("discrete_gaussian", 9, many, coarse, clients).rho == pytest.approx(meant, rel=1e-12)


def test_one_count_with_a_deviation_of_20_costs_an_eight_hundredth() -> None:
    """What OpenDP's discrete Gaussian says of sensitivity 1 and σ = 20: ρ = 0.00125."""
    assert distributed.cost_of_sum("discrete_gaussian", 1, 1, 400.0, 1).rho == 0.00125


def test_tau_over_many_clients_is_an_upper_bound() -> None:
    variance, clients = 0.6, 5000
    exact = 10 * sum(math.exp(-2 * math.pi**2 * variance * k / (k + 1)) for k in range(1, clients))
    found = distributed.cost_of_sum("discrete_gaussian", 1, 100, variance, clients)
    squared = 2 * found.rho
    assert squared >= min(1 / (clients * variance) + exact * 50, (clients * variance) ** -0.5 + exact * 10) * (1 - 1e-9)


def test_skellam_costs_what_theorem_3_5_says() -> None:
    """S = 36 in 4 dimensions, μ = 2 · 9.5: the first bound for its small constant; S = 1, μ = 5: the second."""
    mu, square, absolute = 19.0, 36, 12.0
    found = distributed.cost_of_sum("skellam", square, 4, 9.5, 2)
    first = square / (2 * mu) + square / (2 * mu**2), (6 * absolute - square) / (4 * mu**2)
    second = square / (2 * mu), 3 * absolute / (2 * mu)
    meant = min(first, second, key=lambda bound: 8 * bound[0] + bound[1])
    assert (found.rho, found.xi) == pytest.approx(meant, rel=1e-12)
    for order in (2, 5, 30):
        paper = order * square / (2 * mu) + min(
            ((2 * order - 1) * square + 6 * absolute) / (4 * mu**2), 3 * absolute / (2 * mu)
        )
        assert order * found.rho + found.xi >= paper * (1 - 1e-12)


def test_the_ring_is_lifted_to_its_own_half() -> None:
    """2**(b-1) is the least number, one below it the largest."""
    chosen = terms(length=64, bits=8, scale=1.0)
    for number, meant in ((127, 127), (128, -128), (255, -1), (0, 0)):
        total = np.zeros(64, np.uint32)
        total[5] = number
        assert spread.spread(decode(total, chosen, SHARED), SHARED)[5] == pytest.approx(meant, abs=1e-9)


def test_the_bound_of_overflow_is_chernoffs() -> None:
    """2 d exp(-h² / 2v) for sub-Gaussian sums; Skellam's, on a grid of tilts, is a little above it."""
    chosen = terms(length=256, clip=1.0, scale=60.0, variance=100.0, bits=11, contributors=20)
    variance = 2 * (20 * 60.0) ** 2 / 256 + 20 / 4 + 20 * 100
    gaussian = 2 * 256 * math.exp(-(1023**2) / (2 * variance))
    assert 1e-25 < gaussian < 1e-3
    assert overflow(chosen, 20) == pytest.approx(gaussian, rel=1e-9, abs=0)
    skellam = overflow(replace(chosen, mechanism="skellam"), 20)
    assert gaussian <= skellam < gaussian * 1.5


def test_skellam_holds_for_whole_orders_and_costs_hardly_more() -> None:
    found = event(terms("skellam"))
    plain = terms("skellam").square / (2 * 16 * 900)
    assert found.whole_orders
    assert plain < found.rho + found.xi / 8 < plain * 1.02


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_samplers_distance_is_charged_to_delta(mechanism: DistributedMechanism) -> None:
    chosen = terms(mechanism)
    found = event(chosen)
    assert isinstance(found, Concentrated)
    assert 0 < found.delta < 1e-25
    if mechanism == "discrete_gaussian":
        each = discrete_gaussian.distance(Fraction(900))
        assert found.delta == pytest.approx(each * chosen.padded * 16 * 2**30, rel=1e-9, abs=0)


def test_fewer_contributors_cost_more() -> None:
    assert event(replace(terms(), contributors=8)).rho == pytest.approx(2 * event(terms()).rho)


# --- the choice ---


@pytest.mark.parametrize("bits", [None, 14, 16, 20])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_choice_keeps_the_noise_multiplier_and_hardly_ever_wraps(
    mechanism: DistributedMechanism, bits: int | None
) -> None:
    multiplier = 1.3
    chosen = choose(
        mechanism, clip=0.5, noise_multiplier=multiplier, length=7850, clients=200, contributors=150, bits=bits
    )
    assert chosen.bits == bits or bits is None
    assert 150 * chosen.variance == pytest.approx(multiplier**2 * chosen.square)
    assert overflow(chosen, 200) <= RARE
    cost = event(chosen)
    assert 8 * cost.rho + cost.xi == pytest.approx(8 / (2 * multiplier**2), rel=2e-3)
    if bits is None:
        assert chosen.inflation <= 1.01


def test_bits_are_the_fewest_that_waste_a_hundredth() -> None:
    arguments: dict[str, Any] = {
        "clip": 1.0, "noise_multiplier": 1.0, "length": 100_000, "clients": 100, "contributors": 90,
    }  # fmt: skip
    chosen = choose("discrete_gaussian", **arguments)
    fewer = choose("discrete_gaussian", **arguments, bits=chosen.bits - 1)
    assert chosen.inflation <= 1.01 < fewer.inflation


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_bound_of_overflow_is_one(mechanism: DistributedMechanism) -> None:
    """A ring so small that sums of equal vectors wrap now and then: seen no oftener than the bound says."""
    chosen = terms(mechanism, length=256, clip=1.0, scale=60.0, variance=16.0, bits=10, contributors=20)
    vector = np.ones(256) / 16
    seen, rounds = 0, 40
    for seed in range(rounds):
        shared = bytes([seed]) * 32
        exact = spread.spread(vector, shared) * 60 * 20
        noise = sum(distributed.share(mechanism, 256, 16.0, NoiseSource(bytes([seed, k]) * 16)) for k in range(20))
        seen += int((np.abs(exact + noise) > 511).any())
    assert seen / rounds <= min(1.0, overflow(chosen, 20) + 0.2)
    assert overflow(chosen, 5) < overflow(chosen, 20) < overflow(chosen, 80)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"bits": 8, "clients": 100_000, "contributors": 90_000}, "do not fit a ring of 8 bits"),
        ({"noise_multiplier": 1e-7}, "do not fit a ring of 32 bits"),
        ({"contributors": 101}, "101 of at most 100 clients"),
        ({"contributors": 0}, "0 of at most 100 clients"),
    ],
    ids=["bits", "noise", "more than clients", "nobody"],
)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_what_no_grid_fits_is_refused_by_name(
    mechanism: DistributedMechanism, changed: dict[str, Any], match: str
) -> None:
    arguments: dict[str, Any] = {
        "clip": 1.0, "noise_multiplier": 1.0, "length": 1000, "clients": 100, "contributors": 90,
    }  # fmt: skip
    with pytest.raises(errors.ExperimentError, match=match) as caught:
        choose(mechanism, **(arguments | changed))
    assert caught.value.reason == "noise_range"


# --- the terms ---


def test_terms_travel_as_a_signed_message() -> None:
    chosen = choose("skellam", clip=0.3, noise_multiplier=2.0, length=500, clients=50, contributors=40)
    sent = type(chosen.message).model_validate_json(chosen.message.model_dump_json())
    assert DistributedNoise.of(sent, chosen.bits, chosen.length) == chosen


IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "clip": {"clip": 0.0},
    "clip not finite": {"clip": math.inf},
    "scale": {"scale": -1.0},
    "variance": {"variance": math.nan},
    "too little noise": {"variance": 3.9},
    "nobody": {"contributors": 0},
    "no vector": {"length": 0},
    "one bit": {"bits": 1},
    "33 bits": {"bits": 33},
    "too fine": {"scale": 2.0**31},
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_impossible_terms_are_refused_by_name(case: str) -> None:
    with pytest.raises(errors.ArgumentValueError, match="terms of distributed noise are invalid") as caught:
        terms(**IMPOSSIBLE[case])
    assert caught.value.reason == "noise_terms"


def test_skellam_shares_have_a_largest_variance() -> None:
    assert terms(variance=2.0**21).variance == 2.0**21
    with pytest.raises(errors.ArgumentValueError, match="variance lies in"):
        terms("skellam", variance=2.0**21)


@pytest.mark.parametrize("wrong", [lambda: encode(np.zeros(299), terms(), SHARED, NoiseSource(KEY)),
                                   lambda: decode(np.zeros(300, np.uint32), terms(), SHARED)],
                         ids=["encode", "decode"])  # fmt: skip
def test_a_vector_of_another_length_is_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(errors.ArgumentValueError, match="the terms are for"):
        wrong()
