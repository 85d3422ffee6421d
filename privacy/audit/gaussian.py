"""A lower bound of ε for Gaussian noise, from how far canaries stand out of it in one run.

**What is tested.** The claim (ε, δ) of a Gaussian mechanism says one number: the mark of a device is at most μ(ε, δ)
deviations of the noise, over all of its rounds (its trade-off function is that of N(0, 1) against N(μ, 1)). Canaries
measure this number. Their directions are orthonormal and secret, so their values are independent; those that a coin has
left out show the noise, those that are in show the noise and their mark. With x the strength that a canary's mark is
asked to have, the value of a canary is A·x·coin + N(0, s²), and least squares give

    T = Â √(Σ x² over those that are in) / ŝ,   a noncentral t of m − 1 degrees, its shift (A / s) √(Σ x²).

That is exact for a finite run, with no approximation for many canaries, and `least` is what T proves of A / s.

**What is assumed.** Noise that is Gaussian, alike in all directions, and drawn without knowing the canaries. What
honest devices send adds to the noise that is seen, never to the mark (their sum has no reason to lie along a direction
whose signs are secret), so that it hides canaries and accuses nobody. Noise that is missing in some directions only is
seen as far as it lowers the whole. `one_run` assumes none of this, and proves less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.privacy.audit.student import LARGEST, critical, least_shift, upper_tail
from coterie.privacy.audit.whitening import CanaryScores
from coterie.privacy.dp import normal

FEWEST, MOST = 64, 20_000
POWER = 0.95
"""The chance with which an audit must catch noise of half the size, to say more than that it cannot tell."""
_PLANNED = 0.999
"""That with which canaries are chosen: a run hides them a little better than its noise alone."""


@dataclass(frozen=True)
class Marks:
    """What canaries say of a Gaussian mechanism, with `confidence`.

    canaries: how many were chosen at least once.
    included: how many of them were in.
    ratio: by how many deviations of the noise the mark of the strongest of them stood out, as estimated.
    least: the lower bound of that.
    epsilon: at `delta`, if the mark of a device is `least`.
    cap: the same for a run without any noise, in which only the updates of honest devices hid the canaries.
    power: the chance with which noise of half the size that is asked for would have been told from the claim; None
        where nothing is claimed.
    """

    canaries: int
    included: int
    ratio: float
    least: float
    delta: float
    confidence: float
    epsilon: float
    cap: float
    power: float | None


@dataclass(frozen=True, kw_only=True)
class CanaryParameters:
    """What the judgement of marks needs beside what was seen.

    delta, claimed: of the claim.
    halved: how many deviations the strongest mark would stand out by, were the noise half of what is asked for.
    unnoised: the same without any noise.
    confidence: of the bound.
    """

    delta: float
    claimed: float | None
    halved: float
    unnoised: float
    confidence: float


def judge_marks(seen: CanaryScores, included: npt.NDArray[np.bool_], terms: CanaryParameters) -> Marks:
    """The bound that the marks prove.

    included: the coins, ``[canaries]``.

    Canaries that took part in no round say nothing, and are left out. Raises errors.ArgumentValueError for values that
    are not finite, or fewer than two canaries.
    """
    there = seen.strengths > 0
    values, coins = seen.values[there], included[there]
    if len(values) < 2 or not np.isfinite(values).all():
        raise errors.ArgumentValueError("An audit by marks needs finite values of two or more canaries.")
    strongest = float(seen.strengths.max())
    x = np.where(coins, seen.strengths[there] / strongest, 0.0)
    information, freedom = math.sqrt(float((x * x).sum())), len(values) - 1
    mistake = 1 - terms.confidence
    least, ratio = 0.0, 0.0
    if information:
        slope = float(x @ values) / information
        rest = math.sqrt(max(0.0, float(values @ values) - slope * slope) / freedom)
        statistic = min(max(slope / rest if rest else math.copysign(LARGEST, slope), -LARGEST), LARGEST)
        ratio, least = statistic / information, least_shift(statistic, freedom, mistake) / information
    cap = _cap(information, freedom, terms)
    epsilon = min(normal.epsilon_of(least, terms.delta), cap)
    power = None if terms.claimed is None else _power(information, freedom, terms, terms.claimed)
    return Marks(len(values), int(coins.sum()), ratio, least, terms.delta, terms.confidence, epsilon, cap, power)


def enough_canaries(
    *, claimed: float, delta: float, halved: float, strength: float, confidence: float, most: int = MOST
) -> int:
    """The fewest canaries that tell noise of half the size from the claim with near certainty; `most` where so many do
    not.

    halved: see `CanaryParameters`.
    strength: the mean square of the canaries' strengths, over that of the strongest.
    """

    def suffice(count: int) -> bool:
        terms = CanaryParameters(delta=delta, claimed=claimed, halved=halved, unnoised=halved, confidence=confidence)
        # Coins may leave fewer in than half: as few as in one of a thousand audits.
        fewest = count / 2 - 1.55 * math.sqrt(count)
        return _power(math.sqrt(fewest * strength), count - 1, terms, claimed) >= _PLANNED

    low, high = FEWEST, FEWEST
    while high < most and not suffice(high):
        low, high = high, min(2 * high, most)
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        low, high = (low, middle) if suffice(middle) else (middle, high)
    return min(high, most)


def _power(information: float, freedom: int, terms: CanaryParameters, claimed: float) -> float:
    """The chance that noise of half the size makes a statistic which the claim does not explain."""
    if not information:
        return 0.0
    limit = critical(freedom, _mu(claimed, terms.delta) * information, 1 - terms.confidence)
    return upper_tail(limit, freedom, terms.halved * information)


def _cap(information: float, freedom: int, terms: CanaryParameters) -> float:
    if not information:
        return 0.0
    least = least_shift(terms.unnoised * information, freedom, 1 - terms.confidence) / information
    return normal.epsilon_of(least, terms.delta)


def _mu(claimed: float, delta: float) -> float:
    return normal.mu_of(claimed, delta) if claimed > 0 else 0.0
