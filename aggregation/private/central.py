"""The coordinator's own noise: the mean of a round's updates under user-level differential privacy, where the
coordinator sees each update and nobody else sees anything but what comes out here.

DP-FedAvg (McMahan et al., ICLR 2018) with what Kairouz et al. (ICML 2021) add for correlated noise. Each update is
shortened to the clipping norm here, whatever its device did; all count alike; the noise is added to the SUM, and the
sum is divided by a public number. An update that cannot be used is a vector of zeros, and a round without any usable
update is noise alone: that a device failed changes the sum by no more than its vector.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.privacy.dp.adaptive import next_clip
from coterie.privacy.dp.clipping import clip
from coterie.privacy.dp.matrix.factorisation import NoiseState, factorisation
from coterie.privacy.dp.noise import gaussian
from coterie.privacy.dp.noise.source import NoiseSource
from coterie.privacy.dp.rounds import round_noise
from coterie.protocol.arrays import ArraysByName, Vector
from coterie.protocol.mechanisms import MATRIX
from coterie.protocol.privacy import UserLevel

COUNT_AS_ZEROS = frozenset(("not_finite", "out_of_range"))
"""The codes by which an update is refused for its values elsewhere. Here it is of a device that is there, and a vector
of zeros: to leave it out by name would tell of its rows.
"""
_GROUP = b"coterie noise of a group v1\n"
CLIP = "privacy/clip"
NOISE = "privacy/noise/"
"""Where the server's state between rounds keeps an adaptive clipping norm, and what correlated noise needs of the
rounds before. Both are the coordinator's secrets, as all server state is.
"""


@dataclass(frozen=True, kw_only=True)
class CentralNoise:
    """How one round's sum is noised.

    round: its number, from 1, of `rounds` at most.
    expected: the public number that the sum is divided by, the cohort that was asked for and never the one that came.
    seed: 32 bytes that nobody else knows, of this round alone; the same seed gives the same noise.
    groups: how many sums the round's devices make, each device being in one of them.
    """

    privacy: UserLevel
    round: int
    rounds: int
    expected: int
    seed: bytes = field(repr=False)
    groups: int = 1


@dataclass(frozen=True)
class NoisedMean:
    """What may be released of a round.

    mean: float64.
    clip: the norm that held in this round.
    state: for the next round, not for release.
    """

    mean: Vector
    clip: float
    state: ArraysByName = field(repr=False)


class ClippedSum:
    """The sum of a round's vectors on their way to its noised mean: one at a time, in O(length) memory.

    state: what the round before returned, empty at first.
    Guarantees: one device's vector moves the sum by at most the clipping norm (plus half a step of the noise's grid per
    coordinate, which the noise is scaled up for), non-finite numbers count as zeros, sums are of whole steps and
    therefore exact, and the same vectors, seed and state give the same bytes in any order of the vectors.
    """

    def __init__(self, length: int, terms: CentralNoise, state: ArraysByName) -> None:
        self._terms = terms
        self._state = state
        self._bound = clip_of(terms, state)
        self._step = gaussian.grid(deviation_of(terms, self._bound, length))
        self._steps: Vector = np.zeros(length, np.float64)
        self._bits = 0.0

    def add(self, vector: npt.NDArray[np.floating[Any]]) -> None:
        """Shorten one device's vector to the round's norm, and add it."""
        clipped = clip(vector, self._bound)
        self._steps += np.rint(clipped.vector / self._step)
        self._bits += -0.5 if clipped.shortened else 0.5

    def join(self, other: "ClippedSum") -> None:
        """Add another sum of the same round."""
        self._steps += other._steps
        self._bits += other._bits

    def noised(self) -> NoisedMean:
        """The mean, with the round's noise: the same however often it is asked for."""
        return noised_sum(self._steps * self._step, self._bits, self._terms, self._state)


def noised_mean(
    vectors: Iterable[npt.NDArray[np.floating[Any]]], length: int, terms: CentralNoise, state: ArraysByName
) -> NoisedMean:
    """The noised mean of the vectors (each of this length, one per device), as `ClippedSum` guarantees it."""
    total = ClippedSum(length, terms, state)
    for vector in vectors:
        total.add(vector)
    return total.noised()


def noised_sum(total: Vector, bits: float, terms: CentralNoise, state: ArraysByName) -> NoisedMean:
    """The noised mean of vectors that were shortened to `clip_of` before, by whoever makes sums that the coordinator
    may see, such as devices under masks.

    bits: the sum of ½ for each that needed no shortening and −½ for each that did; only an adaptive clip reads it.
    """
    privacy, bound, length = terms.privacy, clip_of(terms, state), total.size
    plan = round_noise(privacy, terms.round, terms.rounds, cohort=terms.expected)
    deviation, source = deviation_of(terms, bound, length), NoiseSource(terms.seed)
    kept: dict[str, npt.NDArray[Any]] = {}
    if privacy.mechanism in MATRIX:
        step = gaussian.grid(deviation)
        noise, kept = _correlated(terms, state, deviation, length, source)
        total = np.rint(total / step) * step + noise
    else:
        total = gaussian.add(total, deviation, source)
    if privacy.adaptive is not None and plan.bits is not None:
        noisy = float(gaussian.add(np.array([bits]), plan.bits, source)[0])
        kept[CLIP] = np.array([next_clip(bound, noisy, terms.expected, privacy.adaptive)])
    return NoisedMean(total / terms.expected, bound, kept)


def noised_groups(totals: Sequence[Vector], terms: CentralNoise, state: ArraysByName) -> tuple[Vector, ...]:
    """The noised mean of each group of a round, from sums of vectors that were shortened to `clip_of` before.

    Every sum gets the noise of a whole round, its own. A device is in one group, and who is in which has nothing to do
    with what the devices send; so all groups together cost what one sum would (parallel composition), and whatever rule
    is made of these means costs nothing more. Sums are divided by the public size of a group.
    """
    found: list[Vector] = []
    for place, total in enumerate(totals):
        seed = hashlib.sha256(_GROUP + place.to_bytes(4, "big") + terms.seed).digest()
        found.append(noised_sum(total, 0.0, replace(terms, seed=seed), state).mean * terms.groups)
    return tuple(found)


def clip_of(terms: CentralNoise, state: ArraysByName) -> float:
    """The norm to which this round's vectors are shortened: the one asked for, or where quantiles have moved it."""
    return float(state[CLIP][0]) if CLIP in state else terms.privacy.clip


def deviation_of(terms: CentralNoise, bound: float, length: int) -> float:
    """The deviation that is the round's multiplier times the sensitivity which vectors on its own grid have."""
    plan = round_noise(terms.privacy, terms.round, terms.rounds, cohort=terms.expected)
    factors = factorisation(terms.privacy, terms.rounds) if terms.privacy.mechanism in MATRIX else None
    deviation = plan.updates * bound
    for _ in range(3):  # the grid moves by powers of two: once is enough, unless that crosses one
        moved = gaussian.sensitivity(bound, deviation, length)
        if factors is not None:
            # plan.updates holds the sensitivity of all rounds already; `factorisation` says what the grid adds to it.
            moved = factors.on_grid(moved, length, gaussian.grid(deviation)) / factors.sensitivity
        deviation = plan.updates * moved
    return deviation


def _correlated(
    terms: CentralNoise, state: ArraysByName, deviation: float, length: int, source: NoiseSource
) -> tuple[Vector, dict[str, npt.NDArray[Any]]]:
    """The noise of this round's row, and what the rows after it need. Rows of rounds that released nothing are drawn
    and passed over.
    """
    factors = factorisation(terms.privacy, terms.rounds)
    stored = {name.removeprefix(NOISE): value for name, value in state.items() if name.startswith(NOISE)}
    before = NoiseState.from_tensors(stored) if stored else factors.init(length)
    noise, after = factors.catch_up(
        terms.round, before, lambda _: gaussian.add(np.zeros(length), deviation, source), gaussian.grid(deviation)
    )
    return noise, {NOISE + name: value for name, value in after.to_tensors().items()}
