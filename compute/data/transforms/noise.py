"""Noise for images, sound and other numbers."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from coterie.compute.data.transform import Context, Transform
from coterie.compute.data.transforms.checks import number, require
from coterie.compute.ir import NDArray


@final
@dataclass(frozen=True)
class RandomNoise(Transform):
    """Normal noise of this deviation on every number, in the dtype of the array: integers are rounded and kept in their
    range. relative: the deviation is a share of the root mean square of the array, so silence stays silent (0.1 is
    20 dB below the sound).
    """

    deviation: float
    relative: bool = False

    def __post_init__(self) -> None:
        require(self, "the deviation must be finite and not negative", 0 <= self.deviation < np.inf)

    def apply(self, value: Any, context: Context) -> NDArray:
        array = number(value)
        require(self, "it takes integers and floats", array.dtype.kind in "iuf")
        exact = array.astype(np.float64)
        # Box and Muller, A Note on the Generation of Random Normal Deviates, 1958; 1 - u is never 0.
        drawn = context.random.uniform(shape=(2, array.size))
        normal = np.sqrt(-2 * np.log(1 - drawn[0])) * np.cos(2 * np.pi * drawn[1])
        loud = float(np.sqrt(np.mean(exact * exact))) if self.relative and array.size else 1.0
        noisy = exact + self.deviation * loud * normal.reshape(array.shape)
        if array.dtype.kind == "f":
            return noisy.astype(array.dtype)
        limits = np.iinfo(array.dtype)
        return np.clip(np.rint(noisy), limits.min, limits.max).astype(array.dtype)
