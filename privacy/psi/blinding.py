"""Points multiplied by a party's secret, and what two parties compare: X25519 (RFC 7748) from `cryptography`.

All is in packed bytes, 32 for a point and 16 for a tag, a batch at a time. Multiplying commutes: a point that both
parties have multiplied is the same whoever was first, so equal ids have equal tags, and only they.

Tags are truncated: that two different ids of parties with n and m ids have one tag anyway has a probability of at most
n · m / 2**128, below 2**-88 for a million each. (X25519 itself adds none: on coordinates of the subgroup it is a
bijection.)
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import urandom
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from numpy.typing import NDArray

from coterie import errors
from coterie.privacy.entropy import Entropy, draw
from coterie.privacy.psi.hashing import POINT_BYTES, hash_to_curve, is_on_curve

TAG_BYTES: Final = 16
BATCH: Final = 4096
"""Ids, or points, that are Python's objects at one time: the rest are packed bytes."""
LOOKED_AT: Final = 64
"""So many points of a batch are looked at closely; see `check_points`."""
_TAG_DOMAIN: Final = b"coterie/psi/v1/tag\n"
_FIRST: Final = 0xED


@dataclass(frozen=True)
class PsiKey:
    """A party's secret of one job: 32 bytes, of which X25519 makes a multiple of eight. Never used for another job."""

    private: bytes = field(repr=False)

    @staticmethod
    def generate(entropy: Entropy = urandom) -> "PsiKey":
        """A fresh one."""
        return PsiKey(draw(entropy, POINT_BYTES))


def blind_ids(key: PsiKey, ids: Sequence[bytes]) -> bytes:
    """The blinded points of ids, in their order."""
    batches = (ids[place : place + BATCH] for place in range(0, len(ids), BATCH))
    return b"".join(_multiplied(key, hash_to_curve(batch)) for batch in batches)


def mix(key: PsiKey, job: bytes, points: bytes) -> bytes:
    """The tags of points that the partner has blinded, in their order.

    job: what the tags are bound to; tags of different jobs never agree.
    Raises errors.InputError (``psi_points``) as `check_points` does, and for a point of small order.
    """
    check_points(points)
    size = BATCH * POINT_BYTES
    start = hashlib.sha256(_TAG_DOMAIN + job)
    return b"".join(
        _tags(_multiplied(key, points[place : place + size]), start) for place in range(0, len(points), size)
    )


def check_points(points: bytes) -> None:
    """Raise errors.InputError (``psi_points``) for points that no right program sends.

    Each must be in its one spelling, below 2**255 - 19. The first `LOOKED_AT` must also be on the curve: a program that
    takes a hash for a coordinate fails that with a probability of 1 - 2**-64. Points of the twist would tell the sender
    nothing (its cofactor is four, and the key a multiple of eight), so the rest need not be looked at.
    """
    if len(points) % POINT_BYTES:
        raise _refused(f"the message has {len(points)} bytes, which is no whole number of points")
    grid = np.frombuffer(points, np.uint8).reshape(-1, POINT_BYTES)
    large = (grid[:, 31] > 0x7F) | (
        (grid[:, 31] == 0x7F) & (grid[:, 1:31] == 0xFF).all(axis=1) & (grid[:, 0] >= _FIRST)
    )
    if large.any():
        raise _refused(f"point {int(large.argmax())} of the message is in no canonical form")
    for index in range(min(LOOKED_AT, len(grid))):
        if not is_on_curve(points[index * POINT_BYTES : (index + 1) * POINT_BYTES]):
            raise _refused(f"point {index} of the message is not on the curve")


def sorted_places(packed: bytes, width: int) -> NDArray[np.int64]:
    """The order in which items of ``width`` bytes rise. It depends on which items there are, and not on how they were
    ordered before.
    """
    words = np.frombuffer(packed, ">u8").reshape(-1, width // 8)
    columns: tuple[Any, ...] = tuple(words[:, column] for column in reversed(range(width // 8)))
    return np.lexsort(columns).astype(np.int64)


def reordered(packed: bytes, width: int, places: NDArray[np.int64]) -> bytes:
    """Items of ``width`` bytes in another order."""
    return np.frombuffer(packed, np.uint8).reshape(-1, width)[places].tobytes()


def _tags(mixed: bytes, start: Any) -> bytes:
    """The tags of points that both parties have multiplied. start: the hash of what comes before each."""
    found: list[bytes] = []
    for place in range(0, len(mixed), POINT_BYTES):
        state = start.copy()
        state.update(mixed[place : place + POINT_BYTES])
        found.append(state.digest()[:TAG_BYTES])
    return b"".join(found)


def _multiplied(key: PsiKey, points: bytes) -> bytes:
    exchange = X25519PrivateKey.from_private_bytes(key.private).exchange
    load = X25519PublicKey.from_public_bytes
    try:
        return b"".join(
            [exchange(load(points[place : place + POINT_BYTES])) for place in range(0, len(points), POINT_BYTES)]
        )
    except ValueError:
        # RFC 7748 section 6.1: the result is zero whatever the key is.
        raise _refused("one of them has small order") from None


def _refused(what: str) -> errors.InputError:
    return errors.InputError(
        f"The partner sent points that cannot be used: {what}.",
        hint="Ask the partner which program it runs: no right one makes such points. End the session.",
        code="psi_points",
    )
