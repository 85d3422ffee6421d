"""What a codec is, and what every one of them guarantees."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from coterie import errors

Reader: TypeAlias = Callable[[int, int], bytes | memoryview]
Payload: TypeAlias = bytes | memoryview | Reader


class Codec(Protocol):
    """Vector ⇄ bytes. All numbers are little-endian.

    Guarantees, for a vector of `length` elements and `segments` (lengths of its runs, one per tensor, summing to
    `length`):

    - `decode(encode(v, key, segments), length, segments, a, b)` equals that of the whole range, cut to [a, b), bit
      for bit;
    - `min_bytes ≤ len(encode(...)) ≤ max_bytes`, so a reader can refuse a payload before it allocates anything;
    - `encode` refuses NaN and infinity, and what it returns never decodes to them;
    - `key` seeds the randomness of codecs that round at random; the codecs that have none ignore it.
    """

    @property
    def name(self) -> str:
        """The string that tasks and updates carry."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of what `decode` returns."""
        ...

    def min_bytes(self, length: int, segments: Sequence[int]) -> int:
        """The fewest bytes a payload can have."""
        ...

    def max_bytes(self, length: int, segments: Sequence[int]) -> int:
        """The most bytes a payload can have."""
        ...

    def encode(self, vector: npt.NDArray[Any], key: bytes, segments: Sequence[int]) -> bytes:
        """The payload of a flat vector.

        Raises errors.UpdateRefused (``not_finite``, ``out_of_range``, ``wrong_length``).
        """
        ...

    def decode(self, payload: Payload, length: int, segments: Sequence[int], start: int, stop: int) -> npt.NDArray[Any]:
        """Elements [start, stop); read-only where they are a view of a payload in memory.

        Raises errors.UpdateRefused (``truncated``, ``malformed``, ``not_finite``).
        """
        ...


def read_payload(payload: Payload, start: int, stop: int) -> bytes | memoryview:
    """Bytes [start, stop) of a payload. Raises errors.UpdateRefused (``truncated``) when it is shorter."""
    piece = payload(start, stop) if callable(payload) else payload[start:stop]
    if len(piece) != stop - start:
        raise errors.UpdateRefused(f"The payload ends before byte {stop}.", code="truncated")
    return piece


def check_range(length: int, start: int, stop: int) -> None:
    """Raise IndexError unless 0 ≤ start ≤ stop ≤ length: a caller's bug, never the peer's."""
    if not 0 <= start <= stop <= length:
        raise IndexError(f"elements [{start}, {stop}) of a vector with {length}")


def check_vector(vector: npt.NDArray[Any], segments: Sequence[int]) -> None:
    """Refuse what is not a flat float vector of the segments' total length, or not finite everywhere."""
    if vector.ndim != 1 or vector.dtype.kind != "f" or vector.size != sum(segments):
        raise errors.UpdateRefused(
            f"A section needs {sum(segments)} float elements in a row; got {vector.dtype} {list(vector.shape)}.",
            code="wrong_length",
        )
    finite = np.isfinite(vector)
    if not finite.all():
        at = int(np.argmin(finite))
        raise errors.UpdateRefused(
            f"Element {at} is {vector[at]}; {int((~finite).sum())} of {vector.size} are not finite.",
            hint="Training diverged: lower the learning rate or clip the delta.",
            code="not_finite",
        )
