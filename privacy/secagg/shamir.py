"""Shamir's secret sharing (1979) of 32 bytes, over the prime field of 2**31 + 11.

A secret is read as a little-endian number and cut into nine limbs of 31 bits (the last has 8); each limb is the value
at 0 of a random polynomial of degree threshold - 1, and share x holds the nine values at x. Any `threshold` shares give
the secret; fewer say nothing at all about it. Products of two field elements fit 64 bits, so a whole table of shares is
a few array operations, and JavaScript, Kotlin and Swift need no big numbers (BigInt or ULong suffices).

NumPy's operations take no secret-dependent branch here, but nothing promises constant time.
"""

from collections.abc import Sequence
from os import urandom

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.privacy.entropy import Entropy, draw

PRIME = 2**31 + 11
SECRET_BYTES = 32
LIMBS = 9
_LIMB_BITS = 31
_P = np.uint64(PRIME)

FieldShares = npt.NDArray[np.uint32]
"""Field elements: one row of nine for each share."""


def share(secret: bytes, threshold: int, count: int, entropy: Entropy = urandom) -> FieldShares:
    """Shares number 1 to `count` of a 32-byte secret, [count, 9]; any `threshold` of them open it.

    Raises errors.ArgumentValueError (``secagg_shares``) unless 1 ≤ threshold ≤ count < 2**31 and the secret has 32
    bytes.
    """
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= count < 2**31:
        raise _refused(
            f"A secret of {len(secret)} bytes cannot be cut into {count} shares of which {threshold} open it"
        )
    number = int.from_bytes(secret, "little")
    limbs = [number >> _LIMB_BITS * index & (1 << _LIMB_BITS) - 1 for index in range(LIMBS)]
    coefficients = random_elements((threshold - 1) * LIMBS, entropy).reshape(threshold - 1, LIMBS)
    points = np.arange(1, count + 1, dtype=np.uint64)[:, None]
    values = np.zeros((count, LIMBS), np.uint64)
    for coefficient in coefficients:  # Horner's rule, from the highest power down
        values = (values + coefficient) * points % _P
    return ((values + np.array(limbs, np.uint64)) % _P).astype(np.uint32)


def rebuild(points: Sequence[int], shares: FieldShares, threshold: int) -> bytes:
    """The secret from the shares [m, 9] number `points`, of which the first `threshold` are used.

    Wrong shares give a wrong secret or an error, never a sign of which: compare the secret with what was published of
    it. Raises errors.ArgumentValueError (``secagg_shares``) for fewer shares than the threshold, for a point that
    stands there twice or is 0, for numbers outside the field, and where the result is no 32 bytes.
    """
    used = np.array(points[:threshold], np.uint64)[None]
    if len(points) != len(shares) or used.size < threshold:
        raise _refused(f"{len(points)} points and {len(shares)} shares do not reach the threshold of {threshold}")
    (secret,) = rebuild_many(used, np.asarray(shares[:threshold])[None])
    if secret is None:
        raise _refused("The shares are not shares of 32 bytes")
    return secret


def rebuild_many(points: npt.NDArray[np.uint64], shares: FieldShares) -> list[bytes | None]:
    """The secrets of many clients at once, each from as many shares: points [v, t], shares [v, t, 9].

    None where the shares are not those of 32 bytes. Raises errors.ArgumentValueError (``secagg_shares``) as `rebuild`.
    """
    ordered = np.sort(points, axis=1)
    if bool((ordered[:, :1] == 0).any()) or bool((ordered[:, 1:] == ordered[:, :-1]).any()):
        raise _refused("Each share must have its own number, starting at 1")
    if bool((ordered >= _P).any()) or bool((shares >= _P).any()):
        raise _refused(f"A share and its number must be below {PRIME}")
    limbs = np.zeros((points.shape[0], LIMBS), np.uint64)
    weights = _weights_at_zero(points)
    for index in range(points.shape[1]):
        limbs = (limbs + weights[:, index, None] * shares[:, index].astype(np.uint64)) % _P
    return [_join_limbs(row) for row in limbs.tolist()]


def random_elements(count: int, entropy: Entropy = urandom) -> npt.NDArray[np.uint64]:
    """Uniform field elements: 32-bit little-endian words, of which those from 2**31 + 11 up are rejected."""
    found = np.empty(0, np.uint64)
    while found.size < count:
        # Every second word is kept; a few more make a second draw rare.
        words = np.frombuffer(draw(entropy, 8 * (count - found.size) + 256), "<u4")
        found = np.concatenate([found, words[words < PRIME].astype(np.uint64)])
    return found[:count]


def _weights_at_zero(points: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Lagrange's coefficients at 0 for each row of points: the product over j ≠ i of x_j / (x_j - x_i)."""
    rows, count = points.shape
    above, below = np.ones((rows, count), np.uint64), np.ones((rows, count), np.uint64)
    for j in range(count):
        other = points[:, j, None]
        difference = (other + _P - points) % _P
        difference[:, j] = 1
        factor = np.broadcast_to(other, (rows, count)).copy()
        factor[:, j] = 1
        above, below = above * factor % _P, below * difference % _P
    return above * _inverse(below) % _P


def _inverse(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """1 / value by Fermat's little theorem: value ** (p - 2)."""
    result, power = np.ones_like(values), values
    for bit in range(PRIME.bit_length()):
        if (PRIME - 2) >> bit & 1:
            result = result * power % _P
        power = power * power % _P
    return result


def _join_limbs(limbs: list[int]) -> bytes | None:
    if any(limb >> _LIMB_BITS for limb in limbs) or limbs[-1] >> 8:
        return None
    number = sum(limb << _LIMB_BITS * index for index, limb in enumerate(limbs))
    return number.to_bytes(SECRET_BYTES, "little")


def _refused(message: str) -> errors.ArgumentValueError:
    return errors.ArgumentValueError(f"{message}.", code="secagg_shares")
