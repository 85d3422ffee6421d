"""Noise on embeddings, which tell the role with the labels something of a row's columns.

An embedding is shortened to a norm C and gets Gaussian noise of deviation σ on a grid, so that the low bits of a float
tell nothing (`coterie.privacy.dp.noise.gaussian`). Whatever two rows there are, their embeddings are at most 2 C apart.

The (ε, δ) of `cost` is that of the embeddings of one row, given the part of the network that makes them. That part was
trained on the row too, and the embeddings of other rows tell of it: `cost` does not count that.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.privacy.dp import normal
from coterie.privacy.dp.noise import gaussian
from coterie.privacy.dp.noise.source import NoiseSource
from coterie.protocol.cut import EmbeddingNoise


def protect(embeddings: npt.NDArray[Any], noise: EmbeddingNoise, key: bytes) -> npt.NDArray[np.float32]:
    """Embeddings ``[B, w]`` as they may be sent.

    key: 32 bytes that nobody else knows, for this batch alone; the same key gives the same noise.
    """
    rows = embeddings.astype(np.float64)
    norms = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    bounded = rows * np.minimum(1.0, noise.clip / np.maximum(norms, np.finfo(np.float64).tiny))
    noised = gaussian.add(bounded.reshape(-1), noise.deviation, NoiseSource(key))
    return noised.reshape(rows.shape).astype(np.float32)


def cost(noise: EmbeddingNoise, *, width: int, times: int, delta: float) -> float:
    """The ε, at this δ, of a row whose embedding is sent so often, between any two rows; see the module.

    width: numbers of an embedding. times: an epoch sends it once, an evaluation and a prediction too.
    Raises errors.ArgumentValueError for numbers out of range.
    """
    if not (width >= 1 and times >= 1 and 0 < delta < 1):
        raise errors.ArgumentValueError("cost needs width and times of at least 1, and delta between 0 and 1.")
    apart = gaussian.sensitivity(2 * noise.clip, noise.deviation, width)
    return normal.epsilon_of(apart / noise.deviation * math.sqrt(times), delta)
