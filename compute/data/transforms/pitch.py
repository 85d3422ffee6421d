"""Sound, higher or lower."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from coterie.compute.data.transform import Context, Transform
from coterie.compute.data.transforms.checks import require, signal
from coterie.compute.ir import NDArray

_FRAME, _HOP = 1024, 256


@final
@dataclass(frozen=True)
class PitchShift(Transform):
    """The sound so many semitones higher (lower where negative) and as long as before, in its dtype, which must be a
    float's.

    A phase vocoder (Flanagan and Golden 1966) makes it longer by the factor of the pitch, and reading it so much faster
    makes it as long as it was.
    """

    semitones: float

    def __post_init__(self) -> None:
        require(self, "the semitones must lie in -24 .. 24", -24 <= self.semitones <= 24)

    def apply(self, value: Any, context: Context) -> NDArray:
        return _shifted(self, value, self.semitones)


@final
@dataclass(frozen=True)
class RandomPitch(Transform):
    """The sound higher or lower by up to so many semitones, as :class:`PitchShift` makes it."""

    semitones: float

    def __post_init__(self) -> None:
        require(self, "the semitones must lie in 0 .. 24", 0 <= self.semitones <= 24)

    def apply(self, value: Any, context: Context) -> NDArray:
        return _shifted(self, value, context.random.uniform(-self.semitones, self.semitones))


def _shifted(where: object, value: Any, semitones: float) -> NDArray:
    samples = signal(value)
    require(where, "it takes samples of a float dtype", samples.dtype.kind == "f")
    if not samples.size or semitones == 0:
        return samples
    factor = 2 ** (semitones / 12)
    longer = _stretched(samples.astype(np.float64), factor)
    places = np.arange(len(samples)) * factor
    return np.interp(places, np.arange(len(longer)), longer, right=0.0).astype(samples.dtype)


def _stretched(samples: NDArray, factor: float) -> NDArray:
    """The samples ``factor`` times as long, with the same tones."""
    frame = _FRAME
    while frame > 8 and frame > len(samples):
        frame //= 2
    hop = frame // (_FRAME // _HOP)
    window: NDArray = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(frame) / frame)
    padded = np.pad(samples, (frame // 2, frame + hop))
    frames: NDArray = np.lib.stride_tricks.sliding_window_view(padded, frame)[::hop] * window
    heard: NDArray = np.fft.rfft(frames, axis=1)
    # What each frequency turns by from one frame to the next, beyond what its number of the transform says.
    expected: NDArray = np.arange(heard.shape[1], dtype=np.float64) * (2 * np.pi * hop / frame)
    turned: NDArray = np.angle(heard[1:]) - np.angle(heard[:-1]) - expected
    turned -= 2 * np.pi * np.rint(turned / (2 * np.pi))
    steps = np.arange(0, len(heard) - 1, 1 / factor)
    before = steps.astype(int)
    share = (steps - before)[:, None]
    loud: NDArray = (1 - share) * np.abs(heard[before]) + share * np.abs(heard[before + 1])
    advance: NDArray = (expected + turned)[before]
    phase: NDArray = np.angle(heard[0]) + np.concatenate(
        [np.zeros((1, heard.shape[1])), np.cumsum(advance, axis=0)[:-1]]
    )
    pieces: NDArray = np.fft.irfft(loud * np.exp(1j * phase), n=frame, axis=1) * window
    out, weight = np.zeros(hop * len(pieces) + frame), np.zeros(hop * len(pieces) + frame)
    for index, piece in enumerate(pieces):
        out[index * hop : index * hop + frame] += piece
        weight[index * hop : index * hop + frame] += window * window
    whole = out / np.maximum(weight, 1e-3)
    start = round(frame // 2)
    return whole[start : start + int(np.ceil(len(samples) * factor)) + 1]
