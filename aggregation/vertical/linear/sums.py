"""The sums of a step as whole numbers: what the label owner encrypts, how it lies in plaintexts, and what comes out.

Of row i the label owner has parts[i, k, s]: factor k of the residual times its column s (s = 0 is the row's weight, of
the intercept). The feature owner has left[i, k] from 0 on and its columns x[i, j]. Both get sums over rows,

    own[s] = Σ_i Σ_k left[i, k] parts[i, k, s]        theirs[j] = Σ_i x[i, j] Σ_k left[i, k] parts[i, k, 0]

which are exact, so they are the same under encryption and in the open.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.linear.columns import FARTHEST
from coterie.aggregation.vertical.linear.links import LEFT_BITS, LinearLink
from coterie.errors import ArgumentValueError, InputError
from coterie.privacy.he.keys import PaillierPublicKey
from coterie.privacy.he.packing import SlotPacking, packing_for

RIGHT_BITS: Final = 16
COLUMN_BITS: Final = 12
OWN_BITS: Final = LEFT_BITS + RIGHT_BITS
"""Of the fraction of the label owner's sums."""
THEIR_BITS: Final = OWN_BITS + COLUMN_BITS
"""Of the fraction of the feature owner's sums."""
MASK_BITS: Final = 40
"""By how many bits a mask is longer than what it hides: what is left to see is below 2**-40."""
_PART_LIMIT: Final = 1 << 36
_LIMB: Final = 26


@dataclass(frozen=True)
class SlotLayout:
    """How the label owner's columns lie in the plaintexts of one factor of one row.

    packing: of each plaintext; its slots hold sums of a whole batch, times the feature owner's columns, and a mask.
    columns: of the label owner, with the intercept.
    mask: masks are below this in absolute value.
    """

    packing: SlotPacking
    columns: int
    mask: int

    @property
    def groups(self) -> list[slice]:
        """The columns of each plaintext."""
        size = self.packing.slots
        return [slice(at, min(at + size, self.columns)) for at in range(0, self.columns, size)]


def layout_for(key: PaillierPublicKey, link: LinearLink, rows: int, columns: int) -> SlotLayout:
    """The layout that both roles know.

    rows: of the largest batch. columns: of the label owner, with the intercept.
    Raises ArgumentValueError (``plaintext_range``) for more rows than fit.
    """
    row = _PART_LIMIT * ((1 << LEFT_BITS) + link.products * link.most)
    largest = rows * row * int(FARTHEST) << COLUMN_BITS
    mask = largest << MASK_BITS
    return SlotLayout(packing_for(key, largest + mask), columns, mask)


def parts_of(
    right: NDArray[np.float64], weights: NDArray[np.float64], rows: NDArray[np.float64], step: int, role: str
) -> NDArray[np.int64]:
    """What the label owner encrypts, ``[rows, 1 + K, columns]``; the constant comes with the fraction of ``left``.

    right: ``[rows, 1 + K]``, of the link. weights: ``[rows]``. rows: ``[rows, columns]``, the intercept's 1 first.
    Raises InputError (``training_diverged``).
    """
    found = np.ldexp((right * weights[:, None])[:, :, None] * rows[:, None, :], RIGHT_BITS)
    if not bool((np.abs(found) < _PART_LIMIT).all()):
        raise InputError(
            f"A residual of {role} is too large in step {step + 1}.",
            hint="Take a smaller learning_rate, or look for labels and weights that are far from all others; counts of "
            "hundreds of thousands do not fit.",
            code="training_diverged",
        )
    whole = np.rint(found).astype(np.int64)
    whole[:, 0] <<= LEFT_BITS
    return whole


def whole_columns(rows: NDArray[np.float64]) -> NDArray[np.int64]:
    """The feature owner's columns, ``[rows, columns]``."""
    return np.rint(np.ldexp(rows, COLUMN_BITS)).astype(np.int64)


def plain_sums(
    parts: NDArray[np.int64], left: NDArray[np.int64], columns: NDArray[np.int64]
) -> tuple[list[int], list[int]]:
    """Both roles' sums in the open. left: ``[rows, K]``. columns: ``[rows, columns]``."""
    of_rows = parts[:, 0] + np.einsum("nk,nks->ns", left, parts[:, 1:])
    own = [_exact_dot(np.ones(len(parts), np.int64), of_rows[:, s]) for s in range(of_rows.shape[1])]
    return own, [_exact_dot(columns[:, j], of_rows[:, 0]) for j in range(columns.shape[1])]


def means(sums: Sequence[int], bits: int, rows: int) -> NDArray[np.float64]:
    """Sums as the mean of a row."""
    return np.array([total / (rows << bits) for total in sums], np.float64)


def pack_parts(parts: NDArray[np.int64], layout: SlotLayout) -> list[int]:
    """Plaintexts of rows: of each group of columns, of each row, of each factor."""
    flat = parts.reshape(-1, parts.shape[2])
    return [layout.packing.pack(numbers) for group in layout.groups for numbers in flat[:, group].tolist()]


def unpack_sums(plains: Sequence[int], layout: SlotLayout) -> list[int]:
    """The sums of all columns, of one plaintext for each group. Raises ArgumentValueError (``plaintext_range``)."""
    return [
        number
        for plain, group in zip(plains, layout.groups, strict=True)
        for number in layout.packing.unpack(plain, group.stop - group.start)
    ]


def first_sum(plain: int, layout: SlotLayout) -> int:
    """The first sum of a plaintext. Raises ArgumentValueError (``plaintext_range``)."""
    (first, *_) = layout.packing.unpack(plain, layout.groups[0].stop)
    if abs(first) > 2 * layout.mask:
        raise ArgumentValueError("A sum is larger than its mask.", hint="Ask the partner.", code="plaintext_range")
    return first


def to_bytes(totals: Sequence[int], layout: SlotLayout) -> NDArray[np.uint8]:
    """Masked sums as they are told, ``[sums, bytes]``."""
    width = _width(layout)
    data = b"".join(total.to_bytes(width, "little", signed=True) for total in totals)
    return np.frombuffer(data, np.uint8).reshape(-1, width)


def from_bytes(told: NDArray[Any], layout: SlotLayout) -> list[int]:
    """The sums of `to_bytes`. Raises ArgumentValueError (``plaintext_range``) for another width."""
    width = _width(layout)
    if told.ndim != 2 or told.shape[1] != width:
        raise ArgumentValueError("Sums have another width.", hint="Ask the partner.", code="plaintext_range")
    data = told.tobytes()
    return [int.from_bytes(data[at : at + width], "little", signed=True) for at in range(0, len(data), width)]


def _width(layout: SlotLayout) -> int:
    return (2 * layout.mask).bit_length() // 8 + 1


def _exact_dot(factors: NDArray[np.int64], numbers: NDArray[np.int64]) -> int:
    """Of numbers that are too large for their products to fit: in two halves."""
    low, high = numbers & (1 << _LIMB) - 1, numbers >> _LIMB
    return (int(factors @ high) << _LIMB) + int(factors @ low)
