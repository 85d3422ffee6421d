"""What a graph says about one of its inputs or outputs."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np

from coterie.compute.ir import NDArray
from coterie.errors import InputError


@dataclass(frozen=True)
class TensorInfo:
    """Name, NumPy dtype name (``"float32"``) and static shape of a graph's input or output."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype as NumPy's object; comparing these is much cheaper than comparing names."""
        return np.dtype(self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's values."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.numpy_dtype.itemsize

    def zeros(self) -> NDArray:
        """A new array of this dtype and shape, all zeros."""
        return np.zeros(self.shape, dtype=self.numpy_dtype)

    def check(self, value: object, *, where: str) -> NDArray:
        """``value`` as it is, when it is an array of exactly this dtype and shape.

        No value is converted: a silent cast of a feed is how a wrong column trains without a word.
        Raises InputError naming the tensor, both dtypes and both shapes.
        """
        if not isinstance(value, np.ndarray):
            raise InputError(f"{where}: tensor {self.name!r} must be a NumPy array, got {type(value).__name__}.")
        array = cast(NDArray, value)
        if array.shape != self.shape or array.dtype != self.numpy_dtype:
            raise InputError(
                f"{where}: tensor {self.name!r} must be {self.dtype}{list(self.shape)}, got "
                f"{array.dtype.name}{list(array.shape)}{'' if array.dtype.isnative else ' in another order of bytes'}.",
                tensor=self.name,
                expected_shape=list(self.shape),
                shape=list(array.shape),
            )
        return array


def check_names(expected: Mapping[str, object], given: Mapping[str, object], *, where: str) -> None:
    """Require that ``given`` has exactly the names of ``expected``; raises InputError that lists the missing and the
    unknown ones.
    """
    wanted = expected.keys()
    if wanted == given.keys():
        return
    missing = sorted(wanted - given.keys())
    unknown = sorted(given.keys() - wanted)
    parts = [
        f"{what} {', '.join(map(repr, names))}" for what, names in (("missing", missing), ("unknown", unknown)) if names
    ]
    raise InputError(f"{where}: {' and '.join(parts)}.", missing=missing, unknown=unknown)
