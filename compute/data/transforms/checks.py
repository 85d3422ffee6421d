"""What transforms require of the values that they are given."""

from typing import Any, cast

import numpy as np

from coterie.compute.ir import NDArray
from coterie.errors import ArgumentValueError, DataError


def image(value: Any) -> NDArray:
    """The value, if it is an image [H, W, C]. Raises DataError."""
    if not isinstance(value, np.ndarray) or cast(NDArray, value).ndim != 3:
        raise DataError(
            f"an image is an array [H, W, C], got {_told(value)}.",
            hint="Decode files first, with map(DecodeImage(), 'image').",
            code="data_shape",
        )
    return cast(NDArray, value)


def text(value: Any) -> str:
    """The value, if it is text. Raises DataError."""
    if not isinstance(value, str):
        raise DataError(f"it takes text, got {_told(value)}.", code="data_dtype")
    return value


def number(value: Any) -> NDArray:
    """The value as an array of numbers. Raises DataError."""
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise DataError(f"it takes numbers, got {_told(value)}.", code="data_dtype")
    return array


def signal(value: Any) -> NDArray:
    """The value, if it is an array [N] of real numbers. Raises DataError."""
    array = number(value)
    if array.ndim != 1:
        raise DataError(f"a sound is an array [N], got {_told(value)}.", code="data_shape")
    return array


def require(where: object, rule: str, holds: object) -> None:
    """Require of the settings of a transform what the rule says. Raises ArgumentValueError."""
    if not holds:
        raise ArgumentValueError(f"{where}: {rule}.")


def _told(value: Any) -> str:
    if isinstance(value, np.ndarray):
        array = cast(NDArray, value)
        return f"{array.dtype}{list(array.shape)}"
    return f"a {type(value).__name__}"
