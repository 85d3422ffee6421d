"""Numbers of any shape."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from coterie.compute.data.transform import Context, Transform
from coterie.compute.data.transforms.checks import number, require
from coterie.compute.ir import NDArray
from coterie.errors import DataError

# Images have one, three or four.
_CHANNELS = 4


@final
@dataclass(frozen=True)
class Cast(Transform):
    """The value in another dtype, as NumPy's ``astype`` does it."""

    dtype: str

    def __post_init__(self) -> None:
        require(self, "it must name a dtype of numbers", np.dtype(self.dtype).kind in "biuf")

    def apply(self, value: Any, context: Context) -> NDArray:
        return number(value).astype(self.dtype)


@final
@dataclass(frozen=True)
class Normalise(Transform):
    """``(x - mean) / std`` in float32: one number each, or one for each place of the last axis (a channel)."""

    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]

    def __post_init__(self) -> None:
        require(self, "the deviation must be positive", np.all(np.asarray(self.std) > 0))

    def apply(self, value: Any, context: Context) -> NDArray:
        given = number(value)
        mean, std = np.asarray(self.mean, np.float32), np.asarray(self.std, np.float32)
        if given.ndim < 2 or mean.ndim + std.ndim == 0:
            return (given.astype(np.float32) - mean) / std
        if given.ndim == 3 and given.shape[-1] <= _CHANNELS:
            return _planes(given, mean, std)
        # NumPy goes along the last axis, which may be short: a whole line at a time is several times as fast.
        places = np.zeros(given.shape[-2:], np.float32)
        lines = given.astype(np.float32, order="C").reshape(*given.shape[:-2], -1)
        lines -= (places + mean).reshape(-1)
        lines /= (places + std).reshape(-1)
        return lines.reshape(given.shape)


@final
@dataclass(frozen=True)
class OneHot(Transform):
    """A class number as float32 [classes], with a one at its place. Raises DataError for a number outside of them."""

    classes: int

    def __post_init__(self) -> None:
        require(self, "there must be at least one class", self.classes >= 1)

    def apply(self, value: Any, context: Context) -> NDArray:
        place = number(value)
        if place.ndim or place.dtype.kind not in "iu" or not 0 <= place < self.classes:
            raise DataError(f"{value!r} is no class of 0 … {self.classes - 1}.", code="data_cell")
        hot = np.zeros(self.classes, np.float32)
        hot[place] = 1
        return hot


@final
@dataclass(frozen=True)
class Pad(Transform):
    """The first ``length`` values along the first axis; where there are fewer, ``value`` behind them."""

    length: int
    value: float = 0

    def __post_init__(self) -> None:
        require(self, "the length must be at least 1", self.length >= 1)

    def apply(self, value: Any, context: Context) -> NDArray:
        array = number(value)
        require(self, "it takes values along an axis, not a single one", array.ndim)
        padded = np.full((self.length, *array.shape[1:]), self.value, array.dtype)
        padded[: len(array)] = array[: self.length]
        return padded


def _planes(image: NDArray, mean: NDArray, std: NDArray) -> NDArray:
    """An image [H, W, C] normalised. In memory a channel lies behind the other, as what comes next mostly wants it: a
    channel is all one sum and one division, and turning the image to [C, H, W] costs nothing any more.
    """
    channels = image.shape[-1]
    mean, std = np.broadcast_to(mean, channels), np.broadcast_to(std, channels)
    # Bytes are turned before they are numbers of four bytes each.
    planes = np.array(image.transpose(2, 0, 1), order="C").astype(np.float32, copy=False)
    for plane, one_mean, one_std in zip(planes, mean, std, strict=True):
        plane -= one_mean
        plane /= one_std
    return planes.transpose(1, 2, 0)
