"""The global layout: which named tensor lies where in the one flat vector that updates are slices of."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from coterie import errors
from coterie.protocol.canonical import digest_of, first_repeated
from coterie.protocol.conversion import to_json

LARGEST_SIZE = 1 << 40
LONGEST_NAME = 256
HIGHEST_RANK = 8

Slice = tuple[int, int]


@dataclass(frozen=True)
class Tensor:
    """One named tensor: its dotted name and its shape. Elements are float32, row-major."""

    name: str
    shape: tuple[Annotated[int, Field(le=LARGEST_SIZE)], ...]

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > LONGEST_NAME:
            raise _invalid(f"A tensor's name has 1 to {LONGEST_NAME} characters; got {len(self.name)}.")
        if len(self.shape) > HIGHEST_RANK or any(n < 1 for n in self.shape):
            raise _invalid(
                f"Tensor {self.name!r} has shape {list(self.shape)}; sizes must be ≥ 1, at most {HIGHEST_RANK} of them."
            )

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """An ordered tuple of tensors with unique names. The order given is the order in the vector.

    Guarantees: `unflatten(flatten(t))` equals `t` bit for bit; equal layouts have equal digests, and only those.
    """

    tensors: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        names = [tensor.name for tensor in self.tensors]
        if not names:
            raise _invalid("A layout needs at least one tensor.")
        if (twice := first_repeated(names)) is not None:
            raise _invalid(f"Tensor {twice!r} occurs twice in the layout.")
        if self.size > LARGEST_SIZE:
            raise _invalid(f"A layout holds at most {LARGEST_SIZE} elements; got {self.size}.")

    @staticmethod
    def of(shapes: Mapping[str, Sequence[int]]) -> "Layout":
        """The layout of a mapping from name to shape, in the mapping's order."""
        return Layout(tuple(Tensor(name, tuple(shape)) for name, shape in shapes.items()))

    @cached_property
    def size(self) -> int:
        """Number of elements of the whole vector."""
        return sum(tensor.size for tensor in self.tensors)

    @cached_property
    def slices(self) -> Mapping[str, Slice]:
        """Name → (start, stop) in the vector, in layout order."""
        result: dict[str, Slice] = {}
        start = 0
        for tensor in self.tensors:
            result[tensor.name] = (start, start + tensor.size)
            start += tensor.size
        return result

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Name → shape, in layout order."""
        return {tensor.name: tensor.shape for tensor in self.tensors}

    @property
    def offsets(self) -> Mapping[str, int]:
        """Name → first element in the vector, in layout order."""
        return {name: start for name, (start, _) in self.slices.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """Tensor names in layout order."""
        return tuple(tensor.name for tensor in self.tensors)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the layout's canonical JSON."""
        return digest_of(to_json(self))

    def segments(self, slices: Sequence[Slice] | None = None) -> tuple[int, ...]:
        """Lengths of the runs that `slices` (the whole vector when None) make when also cut at every tensor's edge.

        A codec that scales per tensor uses these as its segments. They sum to the slices' total length.
        """
        if slices is None:
            return tuple(tensor.size for tensor in self.tensors)
        edges = [stop for _, stop in self.slices.values()]
        lengths: list[int] = []
        for start, stop in slices:
            low, last = max(start, 0), min(stop, self.size)
            at = bisect_right(edges, low)
            while low < last:
                high = min(edges[at], last)
                lengths.append(high - low)
                low, at = high, at + 1
        return tuple(lengths)

    def rows(self, slices: Sequence[Slice] | None = None) -> tuple[int, ...]:
        """For every run of `segments`, the number of rows it holds: of a tensor's first dimension, when the tensor has
        two or more and the run begins and ends between rows; else 1.

        A codec that scales per channel or sees matrices uses these.
        """
        counts: list[int] = []
        for start, stop in ((0, self.size),) if slices is None else slices:
            low, last = max(start, 0), min(stop, self.size)
            at = bisect_right([end for _, end in self.slices.values()], low)
            while low < last:
                tensor, (begin, end) = self.tensors[at], self.slices[self.tensors[at].name]
                high = min(end, last)
                width = tensor.size // tensor.shape[0] if len(tensor.shape) > 1 else tensor.size
                whole = (low - begin) % width == 0 and (high - low) % width == 0
                counts.append((high - low) // width if whole else 1)
                low, at = high, at + 1
        return tuple(counts)

    def flatten(self, tensors: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
        """The tensors as one new float32 vector `[size]`; names, shapes and dtype float32 must be the layout's.

        Raises errors.InputError (code ``layout_mismatch``) naming the first tensor that does not fit.
        """
        self.check(tensors)
        vector = np.empty(self.size, np.float32)
        for name, (start, stop) in self.slices.items():
            vector[start:stop] = tensors[name].reshape(-1)
        return vector

    def unflatten(self, vector: npt.NDArray[Any]) -> dict[str, npt.NDArray[np.float32]]:
        """Views of a float32 vector `[size]` by name and shape. Raises errors.InputError (code ``layout_mismatch``)."""
        if vector.shape != (self.size,) or vector.dtype != np.float32:
            raise _mismatch(
                f"The layout needs a float32 vector of {self.size} elements; got {vector.dtype} {list(vector.shape)}."
            )
        slices = self.slices
        return {tensor.name: vector[slice(*slices[tensor.name])].reshape(tensor.shape) for tensor in self.tensors}

    def check(self, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
        """Raise errors.InputError (code ``layout_mismatch``) unless names, dtypes and shapes are the layout's."""
        missing = [name for name in self.slices if name not in tensors]
        if missing:
            raise _mismatch(f"{len(missing)} tensor(s) of the layout are missing, first {missing[0]!r}.")
        extra = [name for name in tensors if name not in self.slices]
        if extra:
            raise _mismatch(f"{len(extra)} tensor(s) are not in the layout, first {extra[0][:LONGEST_NAME]!r}.")
        for tensor in self.tensors:
            array = tensors[tensor.name]
            if array.shape != tensor.shape or array.dtype != np.float32:
                wanted, got = f"float32 {list(tensor.shape)}", f"{array.dtype} {list(array.shape)}"
                raise _mismatch(f"Tensor {tensor.name!r} must be {wanted}; got {got}.")


def _invalid(message: str) -> errors.InputError:
    return errors.InputError(message, code="layout_invalid")


def _mismatch(message: str) -> errors.InputError:
    return errors.InputError(message, hint="Use the tensors that this plan's layout names.", code="layout_mismatch")


def join_slices(slices: Iterable[Slice]) -> tuple[Slice, ...]:
    """Rising slices, with those joined that touch."""
    found: list[Slice] = []
    for start, stop in slices:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return tuple(found)
