"""``powersgd:r``: every matrix as a product of two thin ones, P Qᵀ of rank r. Biased: use it with ``+ef``.

A segment with more than one row is a matrix M [rows, columns]; where r · (rows + columns) elements are fewer than it
has, P (orthonormal columns, [rows, r]) and Q = MᵀP ([columns, r]) are sent, float32, rows first; any other segment is
sent as it is. One power iteration per update, P = orth(M Q₀), begins with the Q of the last update that counted, at
first with signs from the round's seed. A decoded element is Σⱼ P[i,j]·Q[k,j], each product and each sum in j's order
rounded to float32. Vogels et al. 2019 (arXiv:1905.13727), without its all-reduce between the halves.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import errors, randomness
from coterie.protocol.arrays import FloatMatrix
from coterie.protocol.codecs.codec import (
    CodecState,
    Keys,
    Payload,
    Shape,
    as_float32,
    check_range,
    read_payload,
)
from coterie.protocol.codecs.eden import check_magnitudes

_VALUE = np.dtype("<f4")


@dataclass(frozen=True)
class _Part:
    """A segment: where it is, its matrix form, whether two factors are sent for it, its first value in the payload."""

    start: int
    rows: int
    columns: int
    factors: bool
    at: int
    values: int

    @property
    def stop(self) -> int:
        return self.start + self.rows * self.columns


@dataclass(frozen=True)
class PowerSGD:
    """See the module's docstring."""

    rank: int

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= 64:
            raise ValueError("powersgd takes a rank from 1 to 64")

    @property
    def name(self) -> str:
        """``powersgd:`` and the rank."""
        return f"powersgd:{self.rank}"

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32."""
        return np.dtype("<f4")

    @property
    def stateful(self) -> bool:
        """Yes: the Q of every matrix, so that the next iteration goes on from it."""
        return True

    def min_bytes(self, shape: Shape) -> int:
        """Exactly four bytes for each element of the factors and of the segments sent as they are."""
        return _VALUE.itemsize * sum(part.values for part in self._parts(shape))

    def max_bytes(self, shape: Shape) -> int:
        """As `min_bytes`."""
        return self.min_bytes(shape)

    def encode(self, vector: npt.NDArray[Any], keys: Keys, shape: Shape, state: CodecState) -> tuple[bytes, CodecState]:
        """See Codec.encode. Refuses magnitudes beyond 1e15 (``out_of_range``)."""
        values = as_float32(vector, shape)
        check_magnitudes(values, self.name)
        seed = randomness.derive(keys.shared, "power")
        pieces: list[FloatMatrix] = []
        kept: dict[str, FloatMatrix] = {}
        for index, part in enumerate(self._parts(shape)):
            run = values[part.start : part.stop]
            if not part.factors:
                pieces.append(run)
                continue
            matrix = run.reshape(part.rows, part.columns)
            before = state.get(f"q.{index}")
            if before is None or before.shape != (part.columns, self.rank) or not before.any():
                flips = randomness.signs(randomness.derive(seed, str(index)), part.columns * self.rank)
                before = flips.reshape(part.columns, self.rank)
            left = np.linalg.qr(matrix @ before)[0].astype(np.float32)
            right = matrix.T @ left
            pieces += [left.reshape(-1), right.reshape(-1)]
            kept[f"q.{index}"] = right
        return np.concatenate(pieces).astype(_VALUE).tobytes(), kept

    def decode(self, payload: Payload, keys: Keys, shape: Shape, start: int, stop: int) -> npt.NDArray[Any]:
        """See Codec.decode. Refuses factors that are not finite."""
        check_range(shape.length, start, stop)
        vector = np.empty(stop - start, np.float32)
        for part in self._parts(shape):
            low, high = max(part.start, start), min(part.stop, stop)
            if low >= high:
                continue
            into = vector[low - start : high - start]
            low, high = low - part.start, high - part.start
            if not part.factors:
                into[:] = _read(payload, part.at + low, part.at + high)
                continue
            for a, b in _pieces(low, high, part.columns):
                into[a - low : b - low] = self._product(payload, part, a, b)
        return vector

    def _product(self, payload: Payload, part: _Part, low: int, high: int) -> FloatMatrix:
        """Elements [low, high) of P Qᵀ: a part of one row, or whole rows."""
        first, last = low // part.columns, -(-high // part.columns)
        left = _read(payload, part.at + first * self.rank, part.at + last * self.rank).reshape(-1, self.rank)
        begin = low - first * part.columns
        end = high - first * part.columns if last - first == 1 else part.columns
        at = part.at + part.rows * self.rank
        right = _read(payload, at + begin * self.rank, at + end * self.rank).reshape(-1, self.rank)
        for factor in (left, right):
            if not np.isfinite(factor).all():
                raise errors.UpdateRefused("A factor of a matrix is not finite.", code="not_finite")
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            total = left[:, :1] * right[:, 0]
            for j in range(1, self.rank):
                total += left[:, j : j + 1] * right[:, j]
        return total.reshape(-1)

    def _parts(self, shape: Shape) -> list[_Part]:
        parts: list[_Part] = []
        at = 0
        for (start, stop), rows in zip(shape.bounds, shape.rows, strict=True):
            columns = (stop - start) // rows
            small = self.rank * (rows + columns)
            factors = rows > 1 and small < rows * columns and self.rank <= min(rows, columns)
            values = small if factors else stop - start
            parts.append(_Part(start, rows, columns, factors, at, values))
            at += values
        return parts


def _pieces(low: int, high: int, columns: int) -> list[tuple[int, int]]:
    """[low, high) cut into a part of a row, whole rows and a part of a row, those that there are: rows may be long, and
    what decoding takes shall follow from what is asked for.
    """
    first, last = -(-low // columns) * columns, high // columns * columns
    if first > last:
        return [(low, high)]
    return [(a, b) for a, b in ((low, first), (first, last), (last, high)) if a < b]


def _read(payload: Payload, start: int, stop: int) -> FloatMatrix:
    return np.frombuffer(read_payload(payload, _VALUE.itemsize * start, _VALUE.itemsize * stop), _VALUE)
