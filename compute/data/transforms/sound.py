"""Sound: samples [N] to what a network hears."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from coterie.compute.data.transform import Context, Transform
from coterie.compute.data.transforms.checks import number, require, signal
from coterie.compute.ir import NDArray
from coterie.errors import DataError


@final
@dataclass(frozen=True)
class Spectrogram(Transform):
    """The power of each frequency in each frame, float32 [frames, size // 2 + 1].

    Frames of ``size`` samples begin every ``hop`` samples and are weighted by a Hann window; samples behind the last
    whole frame are left out. Raises DataError for a sound shorter than a frame.
    """

    size: int = 256
    hop: int = 128

    def __post_init__(self) -> None:
        require(self, "size must be at least 2 and hop at least 1", self.size >= 2 and self.hop >= 1)

    def apply(self, value: Any, context: Context) -> NDArray:
        samples = signal(value).astype(np.float64)
        if len(samples) < self.size:
            raise DataError(
                f"the sound has {len(samples)} samples, fewer than the {self.size} of a frame.",
                hint="Lengthen it with Pad.",
                code="data_shape",
            )
        frames = np.lib.stride_tricks.sliding_window_view(samples, self.size)[:: self.hop]
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.size) / self.size)
        return (np.abs(np.fft.rfft(frames * window, axis=1)) ** 2).astype(np.float32)


@final
@dataclass(frozen=True)
class Decibels(Transform):
    """Power as ``10 log10 x``, no less than ``floor`` below the loudest, float32."""

    floor: float = 80.0

    def __post_init__(self) -> None:
        require(self, "the floor must be positive", self.floor > 0)

    def apply(self, value: Any, context: Context) -> NDArray:
        power = number(value).astype(np.float64)
        loud = 10 * np.log10(np.maximum(power, np.finfo(np.float32).tiny))
        return np.maximum(loud, loud.max() - self.floor).astype(np.float32)


@final
@dataclass(frozen=True)
class RandomGain(Transform):
    """The samples louder or softer by up to so many decibels, in the dtype of the sound (which must be a float's)."""

    decibels: float

    def __post_init__(self) -> None:
        require(self, "the decibels must not be negative", self.decibels >= 0)

    def apply(self, value: Any, context: Context) -> NDArray:
        samples = signal(value)
        require(self, "it takes samples of a float dtype", samples.dtype.kind == "f")
        gain = 10 ** (context.random.uniform(-self.decibels, self.decibels) / 20)
        return samples * samples.dtype.type(gain)
