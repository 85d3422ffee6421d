"""What a codec is, and what every one of them guarantees."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from coterie import errors, randomness

Reader: TypeAlias = Callable[[int, int], bytes | memoryview]
Payload: TypeAlias = bytes | memoryview | Reader
CodecState: TypeAlias = Mapping[str, npt.NDArray[np.float32]]

NO_STATE: CodecState = MappingProxyType({})


@dataclass(frozen=True)
class Keys:
    """Seeds (32 bytes each) of a section's randomness.

    own: of one update, so that the rounding errors of different clients are independent.
    shared: the same for every update of one plan from one model version (those of a round, but for buffered ones), so
        that all clients rotate alike or keep the same elements. Both follow from the update's header; whoever reads an
        update needs nothing else to decode it.
    """

    own: bytes
    shared: bytes

    @staticmethod
    def of(*, task: str, plan: str, base: str, section: str) -> "Keys":
        """The seeds of a section: SHA-256 of a label and the header's fields, each with its length before it."""
        return Keys(seed("own", task, section), seed("shared", plan, base, section))


def seed(label: str, *parts: str) -> bytes:
    """The seed (32 bytes) of ``coterie-codec-1``, the label and the parts; see `randomness.seed_of`."""
    return randomness.seed_of("coterie-codec-1", label, *parts)


@dataclass(frozen=True)
class Shape:
    """What of a section's form a codec may use.

    segments: lengths of the runs that make up the vector, one per tensor.
    rows: the number of rows of each (a tensor's first dimension; 1 for vectors and scalars), a divisor of its length.
    """

    segments: tuple[int, ...]
    rows: tuple[int, ...]

    @staticmethod
    def flat(*segments: int) -> "Shape":
        """Runs that are vectors."""
        return Shape(segments, (1,) * len(segments))

    @cached_property
    def length(self) -> int:
        """Number of elements."""
        return sum(self.segments)

    @cached_property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """(start, stop) of every segment."""
        stops = accumulate(self.segments)
        return tuple((stop - length, stop) for stop, length in zip(stops, self.segments, strict=True))


class Codec(Protocol):
    """Vector ⇄ bytes. All numbers are little-endian.

    Guarantees, for a vector of `shape.length` elements:

    - `decode(payload, keys, shape, a, b)` equals the decoded whole cut to [a, b), bit for bit, in every language;
    - `min_bytes ≤ len(payload) ≤ max_bytes`, so a reader can refuse a payload before it allocates anything, and what
      decoding allocates is bounded by the elements asked for, whatever the payload says;
    - `encode` refuses NaN and infinity, and what it returns never decodes to them;
    - the same vector, keys, shape and state give the same payload and the same state on one machine.

    A codec with `stateful` keeps something from update to update (the error it made): `encode` takes what it returned
    for the last update *that counted*, empty at first.
    """

    @property
    def name(self) -> str:
        """The string that tasks and updates carry; `parse` makes an equal codec of it."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of what `decode` returns."""
        ...

    @property
    def stateful(self) -> bool:
        """Whether `encode` reads and returns state."""
        ...

    def min_bytes(self, shape: Shape) -> int:
        """The fewest bytes a payload can have."""
        ...

    def max_bytes(self, shape: Shape) -> int:
        """The most bytes a payload can have."""
        ...

    def encode(self, vector: npt.NDArray[Any], keys: Keys, shape: Shape, state: CodecState) -> tuple[bytes, CodecState]:
        """The payload of a flat vector, and the state to keep if this update counts.

        Raises errors.UpdateRefused (``not_finite``, ``out_of_range``, ``wrong_length``).
        """
        ...

    def decode(self, payload: Payload, keys: Keys, shape: Shape, start: int, stop: int) -> npt.NDArray[Any]:
        """Elements [start, stop); read-only where they are a view of a payload in memory.

        Raises errors.UpdateRefused (``truncated``, ``malformed``, ``not_finite``).
        """
        ...


class Memoryless:
    """What most codecs have in common: float32 comes out, and nothing is kept from update to update."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32."""
        return np.dtype("<f4")

    @property
    def stateful(self) -> bool:
        """No."""
        return False


def read_payload(payload: Payload, start: int, stop: int) -> bytes | memoryview:
    """Bytes [start, stop) of a payload. Raises errors.UpdateRefused (``truncated``) when it is shorter."""
    piece = payload(start, stop) if callable(payload) else payload[start:stop]
    if len(piece) != stop - start:
        raise errors.UpdateRefused(f"The payload ends before byte {stop}.", code="truncated")
    return piece


def malformed(why: str) -> errors.UpdateRefused:
    """The refusal of bytes that no encoder writes."""
    return errors.UpdateRefused(f"{why}.", code="malformed")


def check_range(length: int, start: int, stop: int) -> None:
    """Raise IndexError unless 0 ≤ start ≤ stop ≤ length: a caller's bug, never the peer's."""
    if not 0 <= start <= stop <= length:
        raise IndexError(f"elements [{start}, {stop}) of a vector with {length}")


def check_vector(vector: npt.NDArray[Any], shape: Shape) -> None:
    """Refuse what is not a flat float vector of the segments' total length, or not finite everywhere."""
    check_form(vector, shape)
    finite = np.isfinite(vector)
    if not finite.all():
        at = int(np.argmin(finite))
        raise errors.UpdateRefused(
            f"Element {at} is {vector[at]}; {int((~finite).sum())} of {vector.size} are not finite.",
            hint="Training diverged: lower the learning rate or clip the delta.",
            code="not_finite",
        )


def check_form(vector: npt.NDArray[Any], shape: Shape) -> None:
    """Refuse what is not a flat float vector of the segments' total length."""
    if vector.ndim != 1 or vector.dtype.kind != "f" or vector.size != shape.length:
        raise errors.UpdateRefused(
            f"A section needs {shape.length} float elements in a row; got {vector.dtype} {list(vector.shape)}.",
            code="wrong_length",
        )


def as_float32(vector: npt.NDArray[Any], shape: Shape) -> npt.NDArray[np.float32]:
    """The checked vector as contiguous float32. Refuses what overflows on the way (``out_of_range``)."""
    check_vector(vector, shape)
    with np.errstate(over="ignore", under="ignore"):
        narrow = np.ascontiguousarray(vector, np.float32)
    if narrow is not vector and not np.isfinite(narrow).all():
        at = int(np.argmin(np.isfinite(narrow)))
        raise errors.UpdateRefused(
            f"Element {at} is {vector[at]}, beyond the largest float32.", hint="Clip the delta.", code="out_of_range"
        )
    return narrow
