"""Questions about dtypes, as the array API standard asks them. Dtypes are NumPy's own objects."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.compute.array_type import Array, promote
from coterie.compute.ir import DTYPES, FLOATS, SIGNED
from coterie.compute.source import user_source
from coterie.errors import DTypeError, InputError

KINDS: dict[str, tuple[str, ...]] = {
    "bool": ("bool",),
    "signed integer": SIGNED,
    "unsigned integer": ("uint8",),
    "integral": (*SIGNED, "uint8"),
    "real floating": FLOATS,
    "complex floating": (),
    "numeric": (*SIGNED, "uint8", *FLOATS),
}


def _dtype(x: Any) -> np.dtype[Any]:
    dtype: np.dtype[Any] = x.dtype if hasattr(x, "dtype") else np.dtype(x)
    if dtype.name not in DTYPES:
        raise DTypeError(
            f"{user_source()}: coterie has no dtype {dtype.name}.", hint=f"Choose one of {', '.join(DTYPES)}."
        )
    return dtype


@dataclass(frozen=True)
class FloatLimits:
    """What :func:`finfo` tells, in Python's numbers."""

    dtype: np.dtype[Any]
    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float


def finfo(type: Any) -> FloatLimits:
    """The limits of a float dtype, or of an array's."""
    info = np.finfo(_dtype(type))
    numbers = (float(x) for x in (info.eps, info.max, info.min, info.smallest_normal))
    return FloatLimits(info.dtype, info.bits, *numbers)


def iinfo(type: Any) -> Any:
    """The limits of an integer dtype, or of an array's."""
    return np.iinfo(_dtype(type))


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is another, or of a kind such as "real floating", or one of a tuple of these."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)  # pyright: ignore[reportUnknownVariableType]
    if isinstance(kind, str) and kind in KINDS:
        return np.dtype(dtype).name in KINDS[kind]
    return bool(np.dtype(dtype) == np.dtype(kind))


def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    """The dtype of an operation on these. Raises DTypeError for different kinds, InputError for nothing but numbers."""
    strong = [_dtype(x) for x in arrays_and_dtypes if not isinstance(x, (bool, int, float))]
    if not strong:
        raise InputError(
            f"{user_source()}: result_type needs an array or a dtype.", hint="Pass one beside the numbers."
        )
    ones = [Array(np.ones((1,), dtype)) for dtype in strong]
    numbers = [x for x in arrays_and_dtypes if isinstance(x, (bool, int, float))]
    return promote("result_type", *ones, *numbers)[0].dtype


def can_cast(from_: Any, to: Any) -> bool:
    """Whether promotion may make this dtype (or that of an array) the other."""
    source, target = _dtype(from_), _dtype(to)
    try:
        return result_type(source, target) == target
    except DTypeError:
        return False


class Info:
    """What the array API standard asks of a namespace."""

    def capabilities(self) -> dict[str, Any]:
        """No indices by mask and no shapes that depend on data, because shapes are static; NumPy's number of axes."""
        return {"boolean indexing": False, "data-dependent shapes": False, "max dimensions": 32}

    def default_device(self) -> str:
        """Where arrays are made."""
        return "cpu"

    def devices(self) -> list[str]:
        """Where arrays may be. Accelerators run compiled graphs."""
        return ["cpu"]

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype[Any]]:
        """Of Python floats, Python integers, and positions."""
        return {
            "real floating": np.dtype("float32"),
            "integral": np.dtype("int32"),
            "indexing": np.dtype("int32"),
        }

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, np.dtype[Any]]:
        """The dtypes by name, or those of a kind; without float16, which the standard does not know."""
        names = (name for name in DTYPES if name != "float16")
        return {name: np.dtype(name) for name in names if kind is None or isdtype(name, kind)}


def __array_namespace_info__() -> Info:
    """The answers of this namespace."""
    return Info()
