"""Images: from the bytes of a file to the array that a network takes."""

from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal, final

import numpy as np

from coterie.compute.data.transform import Context, Transform
from coterie.compute.data.transforms.checks import image, require
from coterie.compute.ir import NDArray
from coterie.errors import ConfigurationError, DataError


@final
@dataclass(frozen=True)
class DecodeImage(Transform):
    """The bytes of an image file as uint8 [H, W, C], by Pillow: RGB (C is 3) or L, grey (C is 1).

    size: (H, W) to scale to while decoding, which for JPEG costs less than to decode and resize. Decoding lets other
    threads run. Raises DataError (``image_undecodable``) for bytes that are no whole image or too large a one, and
    ConfigurationError where Pillow is missing.
    """

    mode: Literal["RGB", "L"] = "RGB"
    size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        require(self, "the mode must be 'RGB' or 'L'", self.mode in ("RGB", "L"))
        require(self, "the size must be (H, W), both at least 1", self.size is None or min(self.size) >= 1)

    def apply(self, value: Any, context: Context) -> NDArray:
        if not isinstance(value, bytes):
            raise DataError(f"it takes the bytes of a file, got a {type(value).__name__}.", code="data_dtype")
        try:
            from PIL import Image, UnidentifiedImageError
        except ImportError as error:
            raise ConfigurationError(
                "Decoding images needs Pillow.", hint='pip install "coterie[data]"', code="extra_missing"
            ) from error
        size = None if self.size is None else (self.size[1], self.size[0])  # Pillow says width first
        try:
            with Image.open(BytesIO(value)) as file:
                if size is not None:
                    file.draft(self.mode, size)
                file.load()
                # Converting copies, even where there is nothing to convert.
                picture = file if file.mode == self.mode else file.convert(self.mode)
                if size is not None:
                    picture = picture.resize(size, Image.Resampling.BILINEAR)
                pixels = np.array(picture, np.uint8)
        except Exception as error:  # its decoders raise whatever damaged bytes lead them to
            # Pillow names the object in memory of which it knows no format.
            why = "they have no format that Pillow knows" if isinstance(error, UnidentifiedImageError) else str(error)
            raise DataError(
                f"these {len(value)} bytes are no image that can be decoded: {why.rstrip('.')}.",
                hint="Look at the file; leave it out with filter, or mend it.",
                code="image_undecodable",
            ) from error
        return pixels if pixels.ndim == 3 else pixels[..., np.newaxis]


@final
@dataclass(frozen=True)
class Resize(Transform):
    """An image [H, W, C] as [height, width, C] in its dtype, each pixel blended of the four nearest (bilinear, centres
    of pixels at halves; no smoothing before making smaller, for which ``DecodeImage(size=…)`` is better).
    """

    height: int
    width: int

    def __post_init__(self) -> None:
        require(self, "height and width must be at least 1", min(self.height, self.width) >= 1)

    def apply(self, value: Any, context: Context) -> NDArray:
        pixels = image(value)
        top, bottom, down = _nearest(pixels.shape[0], self.height)
        left, right, across = _nearest(pixels.shape[1], self.width)
        across, down = across[np.newaxis, :, np.newaxis], down[:, np.newaxis, np.newaxis]
        rows = pixels[top] * (1 - down) + pixels[bottom] * down
        blended = rows[:, left] * (1 - across) + rows[:, right] * across
        return (np.rint(blended) if pixels.dtype.kind in "iu" else blended).astype(pixels.dtype)


@final
@dataclass(frozen=True)
class CenterCrop(Transform):
    """The middle [height, width, C] of an image. Raises DataError for a smaller one."""

    height: int
    width: int

    def __post_init__(self) -> None:
        require(self, "height and width must be at least 1", min(self.height, self.width) >= 1)

    def apply(self, value: Any, context: Context) -> NDArray:
        pixels = image(value)
        top, left = pixels.shape[0] - self.height, pixels.shape[1] - self.width
        if min(top, left) < 0:
            raise DataError(
                f"the image is {pixels.shape[0]} × {pixels.shape[1]}, smaller than the {self.height} × {self.width} "
                "that are to be cut out.",
                hint="Resize it first, or pad it.",
                code="data_shape",
            )
        return pixels[top // 2 : top // 2 + self.height, left // 2 : left // 2 + self.width]


@final
@dataclass(frozen=True)
class ChannelsFirst(Transform):
    """An image [H, W, C] as [C, H, W], as the layers of ``compute.nn`` take it."""

    def apply(self, value: Any, context: Context) -> NDArray:
        return np.ascontiguousarray(image(value).transpose(2, 0, 1))


def _nearest(size: int, wanted: int) -> tuple[NDArray, NDArray, NDArray]:
    """For each wanted pixel the pixels before and behind its centre, and the share of the one behind, float32."""
    centre = (np.arange(wanted) + 0.5) * (size / wanted) - 0.5
    before = np.floor(centre)
    share = (centre - before).astype(np.float32)
    first = np.clip(before, 0, size - 1).astype(np.int64)
    return first, np.clip(before + 1, 0, size - 1).astype(np.int64), share
