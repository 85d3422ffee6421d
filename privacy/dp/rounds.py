"""What each round of an experiment draws, and what it costs: from the asked-for `Privacy` to noise and events.

    multiplier(privacy, rounds)                      the noise multiplier z, from epsilon where that was asked for
    round_noise(privacy, 7, rounds, cohort=100)      standard deviations of round 7's noise, over the clip
    round_cost(privacy, 7, rounds, released=(1, …, 6), cohort=100)    what round 7 adds to the ledger
    whole_cost(privacy, rounds, cohort=100)          all rounds together: the claim

A device is accounted for in the worst rounds that `participation` lets it have. So what a round adds depends on the
rounds that were released before it, and the costs of all rounds add up to the whole, exactly where noise is Gaussian.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np

from coterie import errors
from coterie.privacy.dp import normal
from coterie.privacy.dp.adaptive import bits_stddev, updates_multiplier
from coterie.privacy.dp.calibration import analytic_gaussian, calibrate, concentrated_rho
from coterie.privacy.dp.events import Approximate, Concentrated, Gaussian, PrivacyEvent, Pure, SampledGaussian, merged
from coterie.privacy.dp.matrix.factorisation import factorisation
from coterie.privacy.dp.participation import most_participations
from coterie.protocol.mechanisms import DISTRIBUTED, MATRIX
from coterie.protocol.privacy import ExampleLevel, LocalLevel, Privacy, UserLevel

_BELOW = 1 - 1e-9
"""Leaves a billionth to sums of floats and to samplers, so that no claim is above what was asked for."""
_SHARED_BELOW = 1 - 1e-4
"""The same for noise that devices share: what the tails of its distribution cost more than a Gaussian's."""


@dataclass(frozen=True)
class Draws:
    """How a device draws its own rows in one round under `ExampleLevel`, as bounds that are public: each row of it is
    in a batch with a probability of at most `rate`, in each of at most `steps` steps.

    failure: what δ one round adds, for batches that overflow.
    """

    rate: float
    steps: int
    failure: float = 0.0


@dataclass(frozen=True)
class RoundNoise:
    """Standard deviations of a round's noise.

    updates: on the sum of the clipped updates, over the clip; of a matrix mechanism, that of its independent noise,
        before it is correlated.
    bits: on the sum of the clip bits, absolute; None where clipping is not adaptive.
    """

    updates: float
    bits: float | None


@dataclass(frozen=True)
class RoundCost:
    """What one round of distributed noise really costs, as its mechanism has it: rounding and the sum of many small
    noises make it a little more than the ideal's.
    """

    updates: PrivacyEvent
    bits: PrivacyEvent | None = None


def multiplier(privacy: UserLevel | ExampleLevel, rounds: int, draws: Draws | None = None) -> float:
    """The noise multiplier z: the one that was asked for, or the least that keeps `rounds` rounds within epsilon.

    Under a schedule, that of a factor of 1. Raises errors.ExperimentError (``privacy_invalid``) for
    `ExampleLevel` without draws, or where no noise suffices.
    """
    # Frozen messages have a hash, which a type checker does not see.
    return cast(Any, _multiplier)(privacy, rounds, draws)


@lru_cache(maxsize=256)
def _multiplier(privacy: UserLevel | ExampleLevel, rounds: int, draws: Draws | None) -> float:
    """See `multiplier`, whose search takes a second."""
    if privacy.noise_multiplier is not None:
        return privacy.noise_multiplier
    epsilon = privacy.epsilon or 0.0
    if isinstance(privacy, ExampleLevel):
        known = _require_draws(draws)
        try:
            factors = factors_of(privacy, rounds)
            return calibrate(lambda z: _example_cost(z, known, factors), epsilon, privacy.delta)
        except errors.ArgumentValueError as error:
            raise errors.ExperimentError(f"ExampleLevel: {error.message}", code="privacy_invalid") from error
    if privacy.mechanism in DISTRIBUTED:
        rho = concentrated_rho(epsilon, privacy.delta * _BELOW) * _SHARED_BELOW
        return math.sqrt(most_participations(privacy, rounds) / (2 * rho))
    mu = normal.mu_of(epsilon, privacy.delta) * _BELOW
    if privacy.mechanism in MATRIX:
        return 1 / mu
    weights = {round: factor**-2 for round, factor in enumerate(factors_of(privacy, rounds), start=1)}
    return math.sqrt(_largest_sum(weights, privacy, rounds)) / mu


def round_noise(privacy: UserLevel, round: int, rounds: int, *, cohort: int) -> RoundNoise:
    """The noise of a round (counted from 1).

    cohort: the public number of devices that sums are divided by.

    Raises errors.ExperimentError (``privacy_invalid``).
    """
    whole = multiplier(privacy, rounds)
    if privacy.mechanism in MATRIX:
        return RoundNoise(whole * factorisation(privacy, rounds).sensitivity, None)
    if privacy.mechanism not in DISTRIBUTED:
        whole *= factors_of(privacy, rounds)[round - 1]
    if privacy.adaptive is None:
        return RoundNoise(whole, None)
    bits = bits_stddev(privacy.adaptive, cohort)
    return RoundNoise(updates_multiplier(whole, bits), bits)


def round_cost(
    privacy: Privacy,
    round: int,
    rounds: int,
    *,
    released: Collection[int],
    cohort: int,
    draws: Draws | None = None,
    measured: RoundCost | None = None,
) -> tuple[PrivacyEvent, ...]:
    """What round `round` (counted from 1) adds, with everything that it releases: the sum, and the clip bits.

    released: the earlier rounds of the experiment whose cost was spent; those that were refunded are not among them.
    cohort: as for `round_noise`.
    draws: of `ExampleLevel`.
    measured: what distributed noise really costs in a round. An empty tuple costs nothing: the devices that can be in
        this round could have spent as much in earlier ones.
    Raises errors.ExperimentError (``privacy_invalid``).
    """
    match privacy:
        case LocalLevel():
            return (_local_cost(privacy),)
        case ExampleLevel():
            factor = factors_of(privacy, rounds)[round - 1]
            return _example_cost(multiplier(privacy, rounds, draws), _require_draws(draws), (factor,))
        case UserLevel():
            pass
    before = sorted(earlier for earlier in released if earlier < round)
    if privacy.mechanism in MATRIX:
        shares = factorisation(privacy, rounds).shares()
        added = float(shares[max(before, default=0) : round].sum()) / multiplier(privacy, rounds) ** 2
        return (Gaussian(added**-0.5),) if added > 0 else ()
    if privacy.mechanism in DISTRIBUTED:
        times = dict.fromkeys(before, 1.0)
        added = _largest_sum({**times, round: 1.0}, privacy, rounds) - _largest_sum(times, privacy, rounds)
        return _distributed_cost(privacy, round, rounds, cohort, measured) if added > 0.5 else ()
    weights = {earlier: _weight(privacy, earlier, rounds) for earlier in before}
    own = _weight(privacy, round, rounds)
    added = _largest_sum({**weights, round: own}, privacy, rounds) - _largest_sum(weights, privacy, rounds)
    if added <= 1e-12 * own:
        return ()
    noise = round_noise(privacy, round, rounds, cohort=cohort)
    events = [Gaussian(noise.updates), *([] if noise.bits is None else [Gaussian(2 * noise.bits)])]
    # The same releases, for the share of their cost that is new.
    return tuple(Gaussian(event.multiplier * math.sqrt(own / added)) for event in events)


def whole_cost(
    privacy: Privacy, rounds: int, *, cohort: int, draws: Draws | None = None, measured: RoundCost | None = None
) -> tuple[PrivacyEvent, ...]:
    """What all rounds cost together, if none is abandoned: what an experiment claims. As few events as possible.

    Raises errors.ExperimentError (``privacy_invalid``).
    """
    match privacy:
        case LocalLevel():
            return merged([_local_cost(privacy)] * rounds)
        case ExampleLevel():
            factors = factors_of(privacy, rounds)
            return _example_cost(multiplier(privacy, rounds, draws), _require_draws(draws), factors)
        case UserLevel() if privacy.mechanism in MATRIX:
            return (Gaussian(multiplier(privacy, rounds)),)
        case UserLevel() if privacy.mechanism in DISTRIBUTED:
            single = _distributed_cost(privacy, 1, rounds, cohort, measured)
            return merged(single * most_participations(privacy, rounds))
        case UserLevel():
            round_noise(privacy, 1, rounds, cohort=cohort)
            weights = {round: _weight(privacy, round, rounds) for round in range(1, rounds + 1)}
            return (Gaussian(_largest_sum(weights, privacy, rounds) ** -0.5),)


def factors_of(privacy: UserLevel | ExampleLevel, rounds: int) -> tuple[float, ...]:
    """By what the noise of each round is multiplied. Raises errors.ExperimentError (``privacy_invalid``) for a schedule
    of another number of rounds.
    """
    factors = privacy.schedule or (1.0,) * rounds
    if len(factors) != rounds:
        raise errors.ExperimentError(
            f"{type(privacy).__name__}: schedule has {len(factors)} factors for {rounds} rounds; give one per round.",
            code="privacy_invalid",
        )
    return factors


def _weight(privacy: UserLevel, round: int, rounds: int) -> float:
    return (multiplier(privacy, rounds) * factors_of(privacy, rounds)[round - 1]) ** -2


def _largest_sum(weights: Mapping[int, float], privacy: UserLevel, rounds: int) -> float:
    """The largest sum of weights of rounds that one device may have, among these rounds."""
    if not weights:
        return 0.0
    apart, most = privacy.min_separation, most_participations(privacy, rounds)
    line = np.zeros(max(weights) + 1)
    line[list(weights)] = list(weights.values())
    if apart == 1:
        return float(np.sort(line)[::-1][:most].sum())
    if privacy.max_participations is None:
        best = [0.0] * len(line)
        for at, weight in enumerate(line.tolist()):
            best[at] = max(best[at - 1] if at else 0.0, weight + (best[at - apart] if at >= apart else 0.0))
        return best[-1]
    # best[i]: the most from rounds 0..i with one participation more in every pass.
    best_of = np.zeros(len(line))
    for _ in range(most):
        earlier = np.concatenate([np.zeros(min(apart, len(line))), best_of[: max(len(line) - apart, 0)]])
        following = np.maximum.accumulate(line + earlier)
        if np.array_equal(following, best_of):
            break
        best_of = following
    return float(best_of[-1])


def _distributed_cost(
    privacy: UserLevel, round: int, rounds: int, cohort: int, measured: RoundCost | None
) -> tuple[PrivacyEvent, ...]:
    if measured is not None:
        return (measured.updates, *([] if measured.bits is None else [measured.bits]))
    noise = round_noise(privacy, round, rounds, cohort=cohort)
    bits = [] if noise.bits is None else [Concentrated(0.5 / (2 * noise.bits) ** 2, whole_orders=True)]
    return (Concentrated(0.5 / noise.updates**2, whole_orders=True), *bits)


def _local_cost(privacy: LocalLevel) -> PrivacyEvent:
    """Of one upload. Local privacy is between ANY two updates, so this multiplier is over twice the clip; accounts of
    adding and removing use it as it is, which is never too little.
    """
    if privacy.mechanism == "gaussian":
        return Gaussian(analytic_gaussian(privacy.epsilon, privacy.delta))
    return Pure(privacy.epsilon)


def _example_cost(multiplier: float, draws: Draws, factors: Sequence[float]) -> tuple[PrivacyEvent, ...]:
    """Of one round for each factor of its noise. Rounds of one factor are one event."""
    fails = (Approximate(0.0, draws.failure, len(factors)),) if draws.failure else ()
    steps = Counter(factors)
    return (
        *(SampledGaussian(multiplier * factor, draws.rate, draws.steps * times) for factor, times in steps.items()),
        *fails,
    )


def _require_draws(draws: Draws | None) -> Draws:
    if draws is None:
        raise errors.ExperimentError(
            "The cost of ExampleLevel depends on what devices draw: give Draws(rate, steps), the public bounds of "
            "one round.",
            code="privacy_invalid",
        )
    return draws
