"""Local differential privacy: a device's vector is made safe to show to anyone before it leaves the device.

The guarantee is for one upload and between ANY two vectors that a device might have: for ``gaussian`` (ε, δ), whose
sensitivity is therefore twice the clipping norm; for ``randomised_response`` and ``sign_ds`` pure ε.

    gaussian             the vector, shortened to `clip`, with noise calibrated exactly (Balle and Wang 2018) on a grid
    randomised_response  of `outputs` coordinates drawn at random, each sign with its share ε / outputs of randomised
                         response: an unbiased estimate of `clip` times the vector of signs
    sign_ds              `clip` times one sign at `outputs` coordinates, likelier large ones: see `sign_selection`

All return float64 of the vector's length, to be averaged as any update is. Anything not finite becomes zeros first.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.privacy.dp import randomised_response, sign_selection
from coterie.privacy.dp.calibration import analytic_gaussian
from coterie.privacy.dp.clipping import clip
from coterie.privacy.dp.noise import gaussian
from coterie.privacy.dp.noise.source import NoiseSource
from coterie.protocol.arrays import Vector
from coterie.protocol.mechanisms import LocalMechanism
from coterie.protocol.privacy import LocalLevel

# tanh(x)² / x is greatest at x = 1.0887, the root of sinh 2x = 4x: as many signs as ε / (2 · 1.0887).
_BEST_SHARE = 1 / (2 * 1.0887)
# Updates travel in float32, which may round up.
_FLOAT32 = 1 + 1e-6


def privatise(vector: npt.NDArray[Any], level: LocalLevel, source: NoiseSource) -> Vector:
    """What the device sends in the vector's place.

    source: a fresh key, of the device's own.
    """
    values = np.asarray(vector).reshape(-1).astype(np.float64)
    if not np.isfinite(values).all():
        values = np.zeros_like(values)
    return _MECHANISMS[level.mechanism](values, level, source)


def deviation(level: LocalLevel, length: int) -> float:
    """Of the noise that ``gaussian`` adds to each of `length` coordinates."""
    needed, found = analytic_gaussian(level.epsilon, level.delta, 2 * level.clip), 0.0
    while needed > found:  # moving to the grid adds a little to the sensitivity, and the grid follows the deviation
        found = needed
        needed = analytic_gaussian(level.epsilon, level.delta, gaussian.sensitivity(2 * level.clip, found, length))
    return found


def reach(level: LocalLevel, length: int) -> float:
    """A public norm for the grid of secure aggregation (see `coterie.protocol.codecs.grid`), on which everything that
    is sent fits: for ``gaussian`` but for a chance below exp(-18), since the norm of n independent normal numbers is
    above √n + 6 so seldom.

    A few signs may all lie in one block of 64, where a grid made for their norm spread over all blocks would end before
    them: theirs is made √(signs · length) / 24 times as wide, which is 3 deviations for the sum of all in that block.
    """
    match level.mechanism:
        case "gaussian":
            return level.clip + deviation(level, length) * (math.sqrt(length) + 6)
        case "randomised_response":
            count, size = signs_sent(level, length), _sign_size(level, length)
        case "sign_ds":
            count, size = _shape(level, length).outputs, level.clip
    return size * math.sqrt(count) * max(1.0, math.sqrt(count * length) / 24) * _FLOAT32


def signs_sent(level: LocalLevel, length: int) -> int:
    """How many coordinates ``randomised_response`` sends."""
    best = level.outputs if level.outputs is not None else round(level.epsilon * _BEST_SHARE)
    return max(1, min(length, best))


def _gaussian(values: Vector, level: LocalLevel, source: NoiseSource) -> Vector:
    return gaussian.add(clip(values, level.clip).vector, deviation(level, values.size), source)


def _randomised_response(values: Vector, level: LocalLevel, source: NoiseSource) -> Vector:
    count, size = signs_sent(level, values.size), _sign_size(level, values.size)
    epsilon = level.epsilon / count
    sent = np.zeros_like(values)
    for place in source.distinct(count, values.size):
        positive = bool(values[place] > 0) if values[place] != 0 else source.below(2) == 1
        answer = randomised_response.respond(int(positive), 2, epsilon, source)
        sent[place] = size if answer else -size
    return sent


def _sign_size(level: LocalLevel, length: int) -> float:
    """What one sign stands for, so that the mean over many devices is `clip` times the vector of signs."""
    count = signs_sent(level, length)
    ratio = float(randomised_response.odds(level.epsilon / count))
    return level.clip * length / count * (ratio + 1) / (ratio - 1)


def _sign_ds(values: Vector, level: LocalLevel, source: NoiseSource) -> Vector:
    chosen = sign_selection.select(values, _shape(level, values.size), level.epsilon, source)
    sent = np.zeros_like(values)
    sent[chosen.coordinates] = math.copysign(level.clip, chosen.sign)
    return sent


def _shape(level: LocalLevel, length: int) -> sign_selection.SelectionShape:
    return sign_selection.best_shape(length, level.top, level.epsilon, level.outputs)


_MECHANISMS: Mapping[LocalMechanism, Callable[[Vector, LocalLevel, NoiseSource], Vector]] = MappingProxyType(
    {"gaussian": _gaussian, "randomised_response": _randomised_response, "sign_ds": _sign_ds}
)
