"""Updates side by side, read in blocks of coordinates, and their Gram matrix.

Rules that must see every update never need all of every update at once: they work on inner products (n × n numbers) or
on one block of coordinates after another.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.protocol.arrays import Matrix, Vector

Block = npt.NDArray[np.float32]

# Columns of a product: enough for BLAS to be at its best, few enough that float32 sums stay short.
STRIP = 1 << 14
# Below this many elements float64 costs nothing worth counting.
SMALL = 1 << 16
# Elements of float64 that stay in a core's second-level cache.
CACHE = 1 << 16
# Where a squared distance is below this part of the updates' own squares, float32 products leave too little of it.
NEAR = 1e-2
# Squares of elements below 1e-19 leave float32.
FAINT = 1e-24


class UpdateSource(Protocol):
    """n updates of one length.

    blocks: (first coordinate, ``[n, width]``) over all coordinates, as often as asked.
    order: the places of the updates in the order in which rules see them; None for the order in which they lie.
    """

    @property
    def count(self) -> int:
        """n."""
        ...

    @property
    def length(self) -> int:
        """Elements of one update."""
        ...

    @property
    def order(self) -> npt.NDArray[np.intp] | None:
        """See the class."""
        ...

    def blocks(self) -> Iterator[tuple[int, Block]]:
        """See the class."""
        ...


@dataclass(frozen=True)
class InMemory:
    """The rows of a float32 matrix ``[n, length]``."""

    rows: Block
    order: npt.NDArray[np.intp] | None = None

    @property
    def count(self) -> int:
        """n."""
        return self.rows.shape[0]

    @property
    def length(self) -> int:
        """Elements of one update."""
        return self.rows.shape[1]

    def blocks(self) -> Iterator[tuple[int, Block]]:
        """The whole matrix at once, without a copy."""
        yield 0, self.rows


@dataclass(frozen=True)
class Beside:
    """Updates, and after them the vector ``[length]`` that a rule takes as its reference."""

    source: UpdateSource
    vector: Block

    @property
    def count(self) -> int:
        """n + 1."""
        return self.source.count + 1

    @property
    def length(self) -> int:
        """Elements of one."""
        return self.source.length

    @property
    def order(self) -> npt.NDArray[np.intp] | None:
        """That of the updates, then the reference."""
        order = self.source.order
        return None if order is None else np.append(order, self.source.count)

    def blocks(self) -> Iterator[tuple[int, Block]]:
        """Strips of the source's blocks, since each is copied."""
        for start, block in self.source.blocks():
            for low in range(0, block.shape[1], STRIP):
                strip = block[:, low : low + STRIP]
                at = start + low
                yield at, np.concatenate([strip, self.vector[None, at : at + strip.shape[1]]])


def gram(source: UpdateSource) -> Matrix:
    """All inner products, ``[n, n]`` float64: products of strips in float32, added in float64.

    Raises errors.UpdateRefused (``not_finite``). Everything is done again in float64, at three times the cost, where
    updates are so near to each other, or so small, that distances would drown in the rounding of float32.
    """
    total = _products(source, SMALL)
    return total if _is_precise_enough(total) else _products(source, source.count * STRIP)


def _is_precise_enough(products: Matrix) -> bool:
    """Whether distances between updates can be told from products that were rounded to float32."""
    squares = np.diagonal(products)
    both = squares[:, None] + squares[None, :]
    apart = both - 2 * products
    np.fill_diagonal(apart, np.inf)
    return bool((apart >= NEAR * both).all() and (squares >= FAINT).all())


def _products(source: UpdateSource, small: int) -> Matrix:
    """Inner products, in float64 for strips of up to ``small`` elements. A strip whose products overflow float32 is
    done again in float64, where no finite float32 can overflow.
    """
    total = np.zeros((source.count, source.count), np.float64)
    for start, block in source.blocks():
        for low in range(0, block.shape[1], STRIP):
            strip = block[:, low : low + STRIP]
            part: npt.NDArray[Any] | None = None
            if strip.size > small:
                with np.errstate(over="ignore", invalid="ignore"):
                    part = strip @ strip.T
            if part is None or not np.isfinite(part).all():
                check_finite(strip, start + low)
                wide = strip.astype(np.float64)
                part = wide @ wide.T
            total += part
    return total


def combine(source: UpdateSource, weights: Vector) -> Vector:
    """``weights @ updates`` in float64. Updates of weight zero are not read, so what they hold cannot matter."""
    used = np.flatnonzero(weights)
    total = np.zeros(source.length, np.float64)
    if used.size == 0:
        return total
    factors, width = weights[used], max(CACHE // used.size, 1 << 10)
    wide = np.empty((used.size, width), np.float64)
    for start, block in source.blocks():
        for low in range(0, block.shape[1], width):
            into = total[start + low : start + low + min(width, block.shape[1] - low)]
            strip = wide[:, : into.size]
            for row, place in zip(strip, used, strict=True):
                row[:] = block[place, low : low + into.size]
            np.matmul(factors, strip, out=into)
    return total


def distances(products: Matrix) -> Matrix:
    """Squared Euclidean distances between all updates from their Gram matrix, ``[n, n]``, zero on the diagonal."""
    squares = np.diagonal(products)
    apart = np.maximum(squares[:, None] + squares[None, :] - 2 * products, 0.0)
    np.fill_diagonal(apart, 0.0)
    return apart


def canonical(rows: Block) -> npt.NDArray[np.intp]:
    """An order of the rows that depends on what they hold and not on how they lie, so that ties between updates fall
    the same way whoever comes first.
    """
    few = rows[:, :8]
    order = np.lexsort(few.T[::-1])
    ranked = few[order]
    if not (ranked[1:] == ranked[:-1]).all(axis=1).any():
        return order
    return np.array(sorted(range(len(rows)), key=lambda place: rows[place].tobytes()), np.intp)


def generator(source: UpdateSource) -> np.random.Generator:
    """Random numbers that the bytes of all updates decide: the same for the same updates in whatever order and blocks,
    and known to no client before all have sent.
    """
    digests = [hashlib.sha256() for _ in range(source.count)]
    for _, block in source.blocks():
        for digest, row in zip(digests, block, strict=True):
            digest.update(row.tobytes())
    whole = hashlib.sha256(b"".join(sorted(digest.digest() for digest in digests)))
    return np.random.Generator(np.random.PCG64(int.from_bytes(whole.digest())))


def check_finite(block: Block, start: int = 0) -> None:
    """Raise errors.UpdateRefused (``not_finite``) naming the update and the element that is NaN or infinite."""
    finite = np.isfinite(block)
    if not finite.all():
        row, column = (int(at) for at in np.argwhere(~finite)[0])
        raise errors.UpdateRefused(
            f"Update {row} holds {block[row, column]} at element {start + column}.",
            hint="An update must be finite; drop it before it is aggregated.",
            code="not_finite",
        )


def stacked(updates: Sequence[npt.ArrayLike] | npt.NDArray[Any]) -> Block:
    """Updates as a float32 matrix ``[n, length]``, without a copy where they are one already.

    Raises errors.InputError (``updates_shape``) unless they are one vector or more, of real numbers, all of one length.
    """
    several = updates if isinstance(updates, list | tuple) else ()
    if any(isinstance(one, np.ma.MaskedArray) for one in (updates, *several)):
        raise _shape_refusal("these are masked, and what a mask hides would count all the same")
    try:
        given = np.asarray(updates)
    except ValueError as error:
        raise _shape_refusal(str(error)) from error
    if given.dtype.kind not in "fiub":
        raise _shape_refusal(f"they hold {given.dtype}")
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(given, np.float32)
    if rows.ndim != 2 or 0 in rows.shape:
        raise _shape_refusal(f"they have the shape {list(rows.shape)}")
    return rows


def _shape_refusal(why: str) -> errors.InputError:
    return errors.InputError(
        f"Updates must be one or more vectors of real numbers, all of one length, [n, d]; {why}.", code="updates_shape"
    )
