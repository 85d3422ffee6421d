"""Codecs that round at random to whole multiples of a unit, each block of elements with its own unit: unbiased.

Payload: the units of all blocks (float32), then the levels (see levels). With u uniform in [0, 1), drawn from the
update's own seed, element i of a block of unit t becomes

    level = sign(x) · floor(|x| / t + u_i)      at most the codec's largest level
    x'    = float32(level) · t                  one product, bit-exact in every language

so E[x'] = x, and the mean squared error is Σ f (1 - f) t², with f the fraction of |x| / t.

    qsgd:b     t = ‖block‖₂ / s, s = 2**(b-1) - 1, blocks of 512 elements  (Alistarh et al. 2017, with its buckets)
    terngrad   t = max|block|, levels -1, 0, 1, blocks of 4096              (Wen et al. 2017, whose blocks are layers)
    round:d    t = d · rms of the block, blocks of 4096, entropy coded     (Mitchell et al. 2022, arXiv:2201.02664)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coterie import errors, randomness
from coterie.protocol.codecs.codec import (
    NO_STATE,
    CodecState,
    Keys,
    Memoryless,
    Payload,
    Shape,
    as_float32,
    check_range,
    malformed,
    read_payload,
)
from coterie.protocol.codecs.levels import Coded, Fixed, Packing

_UNIT = np.dtype("<f4")
Scale = Literal["norm", "largest", "rms"]
# Each from a block's float64 magnitudes, so that squares neither overflow nor vanish.
_SCALES: Mapping[Scale, Callable[[npt.NDArray[np.float64]], float]] = MappingProxyType(
    {
        "norm": lambda block: float(np.sqrt(np.dot(block, block))),
        "largest": lambda block: float(block.max()),
        "rms": lambda block: float(np.sqrt(np.dot(block, block) / block.size)),
    }
)


@dataclass(frozen=True, kw_only=True)
class Stochastic(Memoryless):
    """See the module's docstring.

    scale, factor: a block's unit is its scale times the factor.
    most: the largest level.
    """

    name: str
    block: int
    scale: Scale
    factor: float
    most: int
    packing: Packing

    def coded(self) -> "Stochastic":
        """The same with entropy coded levels."""
        if isinstance(self.packing, Coded):
            raise ValueError(f"{self.name} is entropy coded already")
        return replace(self, name=f"{self.name}+rice", packing=Coded(_width(self.most)))

    def min_bytes(self, shape: Shape) -> int:
        """The units, and what the packing needs."""
        return self._head(shape.length) + self.packing.min_bytes(shape.length)

    def max_bytes(self, shape: Shape) -> int:
        """The units, and what the packing needs."""
        return self._head(shape.length) + self.packing.max_bytes(shape.length)

    def encode(self, vector: npt.NDArray[Any], keys: Keys, shape: Shape, state: CodecState) -> tuple[bytes, CodecState]:
        """See Codec.encode."""
        values = as_float32(vector, shape)
        units = np.zeros(-(-values.size // self.block), _UNIT)
        levels = np.zeros(values.size, np.int32)
        seed = randomness.derive(keys.own, "round")
        for index, low in enumerate(range(0, values.size, self.block)):
            block = values[low : low + self.block]
            unit = self._unit(block)
            if unit > 0:
                units[index] = unit
                draws = randomness.uniforms(seed, low, low + block.size)
                whole = np.minimum(np.floor(np.abs(block) / unit + draws), np.float32(self.most))
                levels[low : low + block.size] = np.copysign(whole, block).astype(np.int32)
        return units.tobytes() + self.packing.pack(levels), NO_STATE

    def decode(self, payload: Payload, keys: Keys, shape: Shape, start: int, stop: int) -> npt.NDArray[Any]:
        """See Codec.decode. Refuses levels beyond the largest and units that are negative or not finite."""
        check_range(shape.length, start, stop)
        if start == stop:
            return np.empty(0, np.float32)
        first, last = start // self.block, -(-stop // self.block)
        units = np.frombuffer(read_payload(payload, _UNIT.itemsize * first, _UNIT.itemsize * last), _UNIT)
        check_units(units, first)
        levels = self.packing.unpack(payload, self._head(shape.length), shape.length, start, stop)
        if int(np.abs(levels).max()) > self.most:
            raise malformed(f"A level is beyond {self.most}, the largest of {self.name}")
        spread = np.repeat(units, self.block)[start - first * self.block : stop - first * self.block]
        with np.errstate(over="ignore", under="ignore"):
            return levels.astype(np.float32) * spread

    def _unit(self, block: npt.NDArray[np.float32]) -> np.float32:
        scale = _SCALES[self.scale](np.abs(block.astype(np.float64)))
        with np.errstate(over="ignore"):
            unit = np.float32(scale * self.factor)
            if not np.isfinite(unit * np.float32(self.most)):
                raise errors.UpdateRefused(
                    f"A block's {self.scale} is {scale:g}, beyond what {self.name} can hold.",
                    hint="Use the codec float32 or clip the delta.",
                    code="out_of_range",
                )
        return unit

    def _head(self, length: int) -> int:
        return _UNIT.itemsize * -(-length // self.block)


def check_units(units: npt.NDArray[Any], first: int) -> None:
    """Refuse units (scales) of block `first` and later that no encoder writes."""
    if not np.isfinite(units).all():
        raise errors.UpdateRefused(f"A scale of block {first} or later is not finite.", code="not_finite")
    if np.signbit(units).any():
        raise malformed(f"A scale of block {first} or later is negative")


def qsgd(bits: int) -> Stochastic:
    """``qsgd:b`` for b from 2 to 8."""
    if not 2 <= bits <= 8:
        raise ValueError("qsgd takes 2 to 8 bits")
    most = (1 << (bits - 1)) - 1
    return Stochastic(name=f"qsgd:{bits}", block=512, scale="norm", factor=1 / most, most=most, packing=Fixed(bits))


def terngrad() -> Stochastic:
    """``terngrad``."""
    return Stochastic(name="terngrad", block=4096, scale="largest", factor=1.0, most=1, packing=Fixed(2))


def rounded(step: float) -> Stochastic:
    """``round:d`` for d from 0.01 to 8: a block's largest element is at most 64 times its rms, 6401 steps."""
    if not 0.01 <= step <= 8:
        raise ValueError("round takes a step from 0.01 to 8")
    most = int(np.ceil(64 / step)) + 1
    return Stochastic(
        name=f"round:{step:g}", block=4096, scale="rms", factor=step, most=most, packing=Coded(_width(most))
    )


def _width(most: int) -> int:
    return (2 * most).bit_length()
