"""First values of parameters, each a function of a seed and the parameter's name alone."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from math import sqrt
from typing import TypeAlias

import numpy as np

from coterie.compute.ir import NDArray

Initialiser: TypeAlias = "Callable[[tuple[int, ...], np.random.Philox], NDArray]"


def stream(seed: int, name: str) -> np.random.Philox:
    """The random stream of one parameter: Philox4x64-10 keyed by the first 16 bytes of SHA-256 of "<seed>/<name>".

    Every parameter has a stream of its own, so adding, removing or reordering layers changes no other layer's first
    values.
    """
    return np.random.Philox(key=np.frombuffer(sha256(f"{seed}/{name}".encode()).digest()[:16], np.uint64))


def unit(shape: tuple[int, ...], bits: np.random.Philox) -> NDArray:
    """Numbers in [0, 1), float64, from the raw stream: the same bits on every NumPy version."""
    count = int(np.prod(shape, dtype=np.int64))
    return ((bits.random_raw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53).reshape(shape)


@dataclass(frozen=True)
class Constant:
    """Every element is ``value``."""

    value: float

    def __call__(self, shape: tuple[int, ...], bits: np.random.Philox) -> NDArray:
        return np.full(shape, self.value, np.float32)


@dataclass(frozen=True)
class Uniform:
    """Uniform in [-bound, bound)."""

    bound: float

    def __call__(self, shape: tuple[int, ...], bits: np.random.Philox) -> NDArray:
        return ((2 * unit(shape, bits) - 1) * self.bound).astype(np.float32)


@dataclass(frozen=True)
class Normal:
    """Normal with mean 0 and this standard deviation (Box and Muller, 1958, in float64)."""

    deviation: float = 1.0

    def __call__(self, shape: tuple[int, ...], bits: np.random.Philox) -> NDArray:
        radius, angle = unit((2, *shape), bits)
        # 1 - u is in (0, 1], so that the logarithm is finite.
        return (np.sqrt(-2 * np.log(1 - radius)) * np.cos(2 * np.pi * angle) * self.deviation).astype(np.float32)


def fan_in_uniform(fan_in: int) -> Uniform:
    """Uniform in ±1/sqrt(fan_in): what PyTorch gives the weights and biases of linear and convolution layers (He et al.
    2015 with a = sqrt 5).
    """
    return Uniform(1 / sqrt(fan_in))


def he_uniform(fan_in: int) -> Uniform:
    """Uniform in ±sqrt(6 / fan_in), for layers that a ReLU follows (He et al. 2015)."""
    return Uniform(sqrt(6 / fan_in))
