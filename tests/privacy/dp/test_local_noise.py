"""Local mechanisms: calibrated exactly, pure where they say so, unbiased where they say so."""

import math
from collections import Counter
from decimal import Decimal, localcontext
from fractions import Fraction
from importlib import import_module
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from coterie import errors
from coterie.privacy.dp import local, randomised_response, sign_selection
from coterie.privacy.dp.noise import gaussian
from coterie.privacy.dp.noise.source import NoiseSource
from coterie.privacy.dp.sign_selection import SelectionShape, best_shape, select
from coterie.protocol.privacy import LocalLevel

stats: Any = import_module("scipy.stats")

KEY = b"a key of noise for tests alone.."
GAUSSIAN = LocalLevel(mechanism="gaussian", epsilon=1.0, delta=1e-6, clip=0.5)
RESPONSE = LocalLevel(mechanism="randomised_response", epsilon=2.0, clip=0.5)
SIGN_DS = LocalLevel(mechanism="sign_ds", epsilon=6.0, clip=0.5, top=0.1)


def test_gaussian_noise_is_that_of_balle_and_wang_for_any_two_vectors() -> None:
    """Twice the clip is 1.0: the known answer 4.224679 at ε = 1, δ = 1e-6, and the grid's 2**-20 on top."""
    assert local.deviation(GAUSSIAN, 1) == pytest.approx(4.224679, rel=2e-6)
    assert local.deviation(GAUSSIAN, 1) >= 4.224678


def test_the_grid_is_paid_for() -> None:
    """The deviation covers the sensitivity on its own grid, however long the vector."""
    exact = local.deviation(GAUSSIAN, 1) / gaussian.sensitivity(1.0, local.deviation(GAUSSIAN, 1), 1)
    for length in (1, 10**6, 10**12):
        found = local.deviation(GAUSSIAN, length)
        assert found / gaussian.sensitivity(1.0, found, length) >= exact * (1 - 1e-9)


def test_gaussian_uploads_are_the_clipped_vector_and_noise() -> None:
    vector = np.zeros(1 << 16)
    vector[0] = 100.0
    sent = local.privatise(vector, GAUSSIAN, NoiseSource(KEY))
    deviation = local.deviation(GAUSSIAN, vector.size)
    held = np.zeros_like(vector)
    held[0] = 0.5
    assert stats.kstest((sent - held) / deviation, "norm").pvalue > 1e-4


@pytest.mark.parametrize("level", [GAUSSIAN, RESPONSE, SIGN_DS], ids=lambda level: level.mechanism)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_sent_as_zeros_would_be(level: LocalLevel, bad: float) -> None:
    vector = np.arange(200.0)
    vector[3] = bad
    sent = local.privatise(vector, level, NoiseSource(KEY))
    assert np.array_equal(sent, local.privatise(np.zeros(200), level, NoiseSource(KEY)))
    assert np.isfinite(sent).all()


# --- randomised response ---


@pytest.mark.parametrize("epsilon", [1e-6, 0.3, 1.0, 8.0, 100.0, 500.0])
def test_odds_are_rational_and_never_above_e_to_epsilon(epsilon: float) -> None:
    with localcontext() as context:
        context.prec = 400
        found = randomised_response.odds(epsilon)
        exact = Decimal(epsilon).exp()
        ratio = Decimal(found.numerator) / Decimal(found.denominator)
        assert ratio <= exact
        assert ratio > exact * (1 - Decimal(2) ** -60)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 501.0])
def test_impossible_epsilons_are_refused(epsilon: float) -> None:
    with pytest.raises(errors.ArgumentValueError, match="epsilon above 0"):
        randomised_response.odds(epsilon)


def three_halves(epsilon: float) -> Fraction:
    """In the place of e**ε: odds so simple that everything can be counted."""
    return Fraction(3, 2)


class Told(NoiseSource):
    """A source whose next whole number a test says."""

    def __init__(self) -> None:
        super().__init__(KEY)
        self.next, self.bound = 0, 0

    def below(self, bound: int) -> int:
        self.bound = bound
        return self.next


@pytest.mark.parametrize("choices", [2, 3, 5])
def test_answers_have_exactly_their_probabilities(choices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Odds of 3/2 in place of e**ε: every draw the source could make, counted. Ratios are the odds, no more."""
    monkeypatch.setattr(randomised_response, "odds", three_halves)
    source = Told()
    counts: list[Counter[int]] = []
    for truth in range(choices):
        randomised_response.respond(truth, choices, 1.0, source)
        answers: Counter[int] = Counter()
        for drawn in range(source.bound):
            source.next = drawn
            answers[randomised_response.respond(truth, choices, 1.0, source)] += 1
        counts.append(answers)
    for truth, answers in enumerate(counts):
        assert answers == {answer: 3 if answer == truth else 2 for answer in range(choices)}


def test_the_estimate_is_unbiased() -> None:
    source, truths = NoiseSource(KEY), [0] * 3000 + [1] * 1000 + [2] * 2000
    answers = np.bincount([randomised_response.respond(truth, 4, 1.5, source) for truth in truths], minlength=4)
    found = randomised_response.estimate(answers, 1.5)
    assert found.sum() == pytest.approx(6000)
    assert np.abs(found - [3000, 1000, 2000, 0]).max() < 4 * math.sqrt(6000 * 0.25) / (
        (math.e**1.5 - 1) / (math.e**1.5 + 3)
    )


@pytest.mark.parametrize(("truth", "choices"), [(2, 2), (-1, 2), (0, 1)])
def test_a_truth_that_is_no_answer_is_refused(truth: int, choices: int) -> None:
    with pytest.raises(errors.ArgumentValueError, match="is not one of"):
        randomised_response.respond(truth, choices, 1.0, NoiseSource(KEY))


def test_signs_are_an_unbiased_estimate_of_the_vectors_signs() -> None:
    vector, source, count = np.array([3.0, -0.1, 5.0, -2.0, 1e-9]), NoiseSource(KEY), 6000
    level = LocalLevel(mechanism="randomised_response", epsilon=3.0, clip=0.5, outputs=2)
    sent = np.array([local.privatise(vector, level, source) for _ in range(count)])
    size = np.unique(np.abs(sent))
    assert size.tolist() == pytest.approx([0.0, 0.5 * 5 / 2 * (math.e**1.5 + 1) / (math.e**1.5 - 1)])
    assert (np.count_nonzero(sent, axis=1) == 2).all()
    assert np.abs(sent.mean(axis=0) - 0.5 * np.sign(vector)).max() < 4.5 * float(sent.std(axis=0).max()) / math.sqrt(
        count
    )


def test_a_coordinate_of_zero_has_no_sign_to_tell() -> None:
    source = NoiseSource(KEY)
    level = LocalLevel(mechanism="randomised_response", epsilon=50.0, outputs=1)
    signs = [local.privatise(np.zeros(1), level, source)[0] > 0 for _ in range(2000)]
    assert stats.binomtest(sum(signs), 2000, 0.5).pvalue > 1e-4


@pytest.mark.parametrize(("epsilon", "signs"), [(0.1, 1), (2.0, 1), (8.0, 4), (100.0, 46)])
def test_as_many_signs_are_sent_as_tell_most(epsilon: float, signs: int) -> None:
    """tanh(ε/2h)² · h is what h signs tell: no other count tells more."""
    level = LocalLevel(mechanism="randomised_response", epsilon=epsilon)
    assert local.signs_sent(level, 10**6) == signs

    def told(count: int) -> float:
        return math.tanh(epsilon / (2 * count)) ** 2 * count

    assert told(signs) >= 0.99 * max(told(count) for count in range(1, 200))


# --- SignDS ---


class Path(NoiseSource):
    """A source that follows one path through all that could be drawn, and notes where it could have turned."""

    def __init__(self, path: tuple[int, ...]) -> None:
        super().__init__(KEY)
        self.path, self.bounds = path, list[int]()

    def below(self, bound: int) -> int:
        self.bounds.append(bound)
        return self.path[len(self.bounds) - 1] if len(self.bounds) <= len(self.path) else 0


def chances(vector: list[float], shape: SelectionShape) -> dict[tuple[int, tuple[int, ...]], Fraction]:
    """The exact chance of every selection: all paths through the draws, with their probabilities."""
    found: dict[tuple[int, tuple[int, ...]], Fraction] = {}
    paths: list[tuple[int, ...]] = [()]
    while paths:
        source = Path(paths.pop())
        chosen = select(np.array(vector), shape, 1.0, source)
        key = chosen.sign, tuple(chosen.coordinates.tolist())
        chance = math.prod((Fraction(1, bound) for bound in source.bounds), start=Fraction(1))
        found[key] = found.get(key, Fraction(0)) + chance
        taken = (*source.path, *(0 for _ in source.bounds[len(source.path) :]))
        for place in range(len(source.path), len(taken)):
            paths += [(*taken[:place], other) for other in range(1, source.bounds[place])]
    return found


def test_selections_of_any_two_vectors_differ_by_exactly_the_odds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Odds of 3/2 in place of e**ε, 5 coordinates, two of them sent: every draw there is, counted exactly."""
    monkeypatch.setattr(sign_selection, "odds", three_halves)
    shape = SelectionShape(length=5, top=2, outputs=2, threshold=1)
    one, other = chances([9, 8, 0, -8, -9], shape), chances([-9, 0, 9, 8, -8], shape)
    for found, tops in ((one, {1: {0, 1}, -1: {3, 4}}), (other, {1: {2, 3}, -1: {0, 4}})):
        assert sum(found.values()) == 1
        assert len(found) == 2 * 10
        least = min(found.values())
        for (sign, chosen), chance in found.items():
            assert chance == least * (Fraction(3, 2) if tops[sign] & set(chosen) else 1)
    assert {one[key] / other[key] for key in one} == {Fraction(2, 3), Fraction(1), Fraction(3, 2)}


def test_selections_have_the_promised_probabilities() -> None:
    """χ² of many draws against those chances: sets with a top coordinate e**ε times as likely as the others."""
    shape, epsilon, count, source = (
        SelectionShape(length=6, top=2, outputs=2, threshold=1),
        1.2,
        12_000,
        NoiseSource(KEY),
    )
    vector = np.array([0.1, 5.0, -7.0, 0.2, 6.0, -8.0])
    seen: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for _ in range(count):
        chosen = select(vector, shape, epsilon, source)
        seen[chosen.sign, tuple(chosen.coordinates.tolist())] += 1
    tops = {1: {1, 4}, -1: {2, 5}}
    weights = {
        (sign, chosen): math.exp(epsilon) if tops[sign] & set(chosen) else 1.0
        for sign in tops
        for chosen in combinations(range(6), 2)
    }
    assert set(seen) <= set(weights)
    total = sum(weights.values())
    meant = [weight / total * count for weight in weights.values()]
    assert stats.chisquare([seen[key] for key in weights], meant).pvalue > 1e-4


def test_an_upload_is_one_sign_at_a_few_coordinates() -> None:
    sent = local.privatise(np.random.default_rng(0).standard_normal(1000), SIGN_DS, NoiseSource(KEY))
    shape = best_shape(1000, 0.1, 6.0)
    assert np.count_nonzero(sent) == shape.outputs
    assert len(set(sent[sent != 0].tolist())) == 1
    assert set(np.abs(sent).tolist()) == {0.0, 0.5}


def test_large_coordinates_are_chosen_oftener_with_more_epsilon() -> None:
    vector = np.concatenate([np.full(10, 5.0), np.zeros(190), np.full(10, -5.0)])
    shares: list[float] = []
    for epsilon in (1.0, 8.0, 40.0):
        shape, source, hits, total = best_shape(210, 10 / 210, epsilon), NoiseSource(KEY), 0, 0
        for _ in range(300):
            chosen = select(vector, shape, epsilon, source)
            hits += int((vector[chosen.coordinates] * chosen.sign == 5).sum())
            total += chosen.coordinates.size
        shares.append(hits / total)
    assert shares[0] < shares[1] < shares[2]
    assert shares[2] > 0.95


def test_the_best_shape_is_the_best_of_all() -> None:
    """By brute force over every h and ν for a small vector."""
    length, share, epsilon = 60, 0.2, 5.0
    found = best_shape(length, share, epsilon)

    def gain(size: int, threshold: int) -> float:
        chances = [math.comb(12, hits) * math.comb(48, size - hits) / math.comb(60, size) for hits in range(size + 1)]
        raised = [chance * (math.exp(epsilon) if hits >= threshold else 1) for hits, chance in enumerate(chances)]
        over = sum(hits * chance for hits, chance in enumerate(raised)) / sum(raised) - size * 12 / 60
        return over * over / size

    best = max(gain(size, threshold) for size in range(1, 13) for threshold in range(1, size + 1))
    assert gain(found.outputs, found.threshold) == pytest.approx(best)


@pytest.mark.parametrize(
    "wrong",
    [(10, 3, 4, 1), (10, 3, 2, 3), (10, 3, 2, 0), (10, 8, 3, 1), (1000, 400, 300, 1)],
    ids=["outputs above top", "threshold above outputs", "no threshold", "too short", "too many outputs"],
)
def test_impossible_shapes_are_refused(wrong: tuple[int, int, int, int]) -> None:
    with pytest.raises(errors.ArgumentValueError, match="cannot be chosen"):
        SelectionShape(*wrong)


@pytest.mark.parametrize("length", [2, 3, 10])
def test_tiny_vectors_have_a_shape(length: int) -> None:
    shape = best_shape(length, 0.01, 4.0)
    assert (
        sign_selection.select(np.arange(float(length)), shape, 4.0, NoiseSource(KEY)).coordinates.size == shape.outputs
    )


@pytest.mark.parametrize("level", [GAUSSIAN, RESPONSE, SIGN_DS], ids=lambda level: level.mechanism)
@pytest.mark.parametrize("length", [50, 3000])
def test_all_that_is_sent_lies_within_its_public_norm(level: LocalLevel, length: int) -> None:
    vector = np.random.default_rng(1).standard_normal(length)
    for _ in range(20):
        sent = local.privatise(vector, level, NoiseSource.fresh()).astype(np.float32)
        assert float(np.linalg.norm(sent.astype(np.float64))) <= local.reach(level, length)
