"""First values that are known beforehand."""

from dataclasses import dataclass

import numpy as np

from coterie.compute.ir import NDArray
from coterie.compute.nn.initialisers import Initialiser


@dataclass(frozen=True, eq=False)
class Given:
    """An initialiser (see `nn.initialisers`) that gives these values."""

    value: NDArray

    def __call__(self, shape: tuple[int, ...], bits: np.random.Philox) -> NDArray:
        return np.array(self.value, np.float32).reshape(shape)


@dataclass(frozen=True, eq=False)
class Masked:
    """The values of another initialiser, 0 where the mask is."""

    init: Initialiser
    mask: NDArray

    def __call__(self, shape: tuple[int, ...], bits: np.random.Philox) -> NDArray:
        return np.where(self.mask > 0, self.init(shape, bits), np.float32(0)).astype(np.float32)
