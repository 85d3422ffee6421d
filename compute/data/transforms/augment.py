"""Images changed by chance, anew in every pass. All take [H, W, C] and keep the dtype."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from coterie.compute.data.transform import Context, Transform
from coterie.compute.data.transforms.checks import image, require
from coterie.compute.ir import NDArray
from coterie.errors import DataError


@final
@dataclass(frozen=True)
class RandomCrop(Transform):
    """A part [height, width, C] of the image, every place as likely. padding: zeros put around it first, in pixels.

    Raises DataError for an image that is smaller with its padding.
    """

    height: int
    width: int
    padding: int = 0

    def __post_init__(self) -> None:
        require(self, "height and width must be at least 1", min(self.height, self.width) >= 1)
        require(self, "the padding must not be negative", self.padding >= 0)

    def apply(self, value: Any, context: Context) -> NDArray:
        pixels = image(value)
        if self.padding:
            pixels = np.pad(pixels, ((self.padding, self.padding), (self.padding, self.padding), (0, 0)))
        down, across = pixels.shape[0] - self.height, pixels.shape[1] - self.width
        if min(down, across) < 0:
            raise DataError(
                f"the image is {pixels.shape[0]} × {pixels.shape[1]} with its padding, smaller than the "
                f"{self.height} × {self.width} that are to be cut out.",
                hint="Resize it first, or pad it more.",
                code="data_shape",
            )
        top, left = context.random.integer(down + 1), context.random.integer(across + 1)
        return pixels[top : top + self.height, left : left + self.width]


@final
@dataclass(frozen=True)
class RandomFlip(Transform):
    """The image mirrored with this probability: left and right, or upside down where ``vertical``."""

    probability: float = 0.5
    vertical: bool = False

    def __post_init__(self) -> None:
        require(self, "the probability must lie in [0, 1]", 0 <= self.probability <= 1)

    def apply(self, value: Any, context: Context) -> NDArray:
        pixels = image(value)
        if context.random.uniform() >= self.probability:
            return pixels
        return pixels[::-1] if self.vertical else pixels[:, ::-1]


@final
@dataclass(frozen=True)
class RandomRotate(Transform):
    """The image turned about its middle by up to so many degrees to either side, every angle as likely; between four
    pixels in proportion to how near they are, and 0 outside of the image. Same size.
    """

    degrees: float

    def __post_init__(self) -> None:
        require(self, "the degrees must lie in 0 .. 180", 0 <= self.degrees <= 180)

    def apply(self, value: Any, context: Context) -> NDArray:
        pixels = image(value)
        angle = np.deg2rad(context.random.uniform(-self.degrees, self.degrees))
        return pixels if angle == 0 else _turned(pixels, float(np.sin(angle)), float(np.cos(angle)))


@final
@dataclass(frozen=True)
class RandomBrightness(Transform):
    """All pixels times one number in [1 - amount, 1 + amount]; integers are rounded and kept in their range."""

    amount: float

    def __post_init__(self) -> None:
        require(self, "the amount must lie in [0, 1]", 0 <= self.amount <= 1)

    def apply(self, value: Any, context: Context) -> NDArray:
        factor = np.float32(context.random.uniform(1 - self.amount, 1 + self.amount))
        return _each(image(value), factor, np.float32(0))


@final
@dataclass(frozen=True)
class RandomContrast(Transform):
    """The distance of all pixels from the image's mean times one number in [1 - amount, 1 + amount]."""

    amount: float

    def __post_init__(self) -> None:
        require(self, "the amount must lie in [0, 1]", 0 <= self.amount <= 1)

    def apply(self, value: Any, context: Context) -> NDArray:
        pixels = image(value)
        mean = np.float32(pixels.mean(dtype=np.float64))
        factor = np.float32(context.random.uniform(1 - self.amount, 1 + self.amount))
        return _each(pixels, factor, mean - mean * factor)


@final
@dataclass(frozen=True)
class RandomErase(Transform):
    """Zeros in a square of ``size`` pixels around a place that is as likely as any other (DeVries and Taylor, Improved
    Regularization of Convolutional Neural Networks with Cutout, 2017); at an edge a part of the square.
    """

    size: int

    def __post_init__(self) -> None:
        require(self, "the size must be at least 1", self.size >= 1)

    def apply(self, value: Any, context: Context) -> NDArray:
        pixels = image(value).copy()
        top = context.random.integer(pixels.shape[0]) - self.size // 2
        left = context.random.integer(pixels.shape[1]) - self.size // 2
        pixels[max(top, 0) : max(top + self.size, 0), max(left, 0) : max(left + self.size, 0)] = 0
        return pixels


def _turned(pixels: NDArray, sine: float, cosine: float) -> NDArray:
    height, width, channels = pixels.shape
    down: NDArray = np.arange(height, dtype=np.float64)[:, None] - (height - 1) / 2
    across: NDArray = np.arange(width, dtype=np.float64)[None] - (width - 1) / 2
    # Where each pixel comes from; a margin of one pixel of zeros catches what is half outside.
    row: NDArray = np.clip(cosine * down + sine * across + (height - 1) / 2, -1, height) + 1
    column: NDArray = np.clip(cosine * across - sine * down + (width - 1) / 2, -1, width) + 1
    framed = np.zeros((height + 3, width + 3, channels), np.float64)
    framed[1 : height + 1, 1 : width + 1] = pixels
    top, left = np.floor(row).astype(int), np.floor(column).astype(int)
    below: NDArray = (row - top)[..., None]
    beside: NDArray = (column - left)[..., None]
    upper: NDArray = framed[top, left] * (1 - beside) + framed[top, left + 1] * beside
    lower: NDArray = framed[top + 1, left] * (1 - beside) + framed[top + 1, left + 1] * beside
    found: NDArray = upper * (1 - below) + lower * below
    return (found if pixels.dtype.kind == "f" else np.rint(found)).astype(pixels.dtype)


def _each(pixels: NDArray, factor: np.float32, shift: np.float32) -> NDArray:
    """``pixels * factor + shift`` in their dtype: integers are rounded and kept in their range."""
    if pixels.dtype.kind not in "iu":
        return (pixels * factor + shift).astype(pixels.dtype)
    # A mirrored image is a view that goes backwards, which NumPy copies pixel by pixel: it is worked on as it lies, and
    # mirrored again.
    forwards = tuple(slice(None, None, -1 if stride < 0 else 1) for stride in pixels.strides)
    limits = np.iinfo(pixels.dtype)
    values = pixels[forwards].astype(np.float32, order="C")
    values *= factor
    if shift:
        values += shift
    np.rint(values, out=values)
    if shift or factor > 1:
        np.clip(values, limits.min, limits.max, out=values)
    return values.astype(pixels.dtype)[forwards]
