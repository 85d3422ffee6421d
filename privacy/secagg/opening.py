"""Secrets from revealed shares: rebuilt, held to what their owners published, and wrong shares found.

A secret is known when it fits: a seed its commitment, a private key its public key. So of the shares that there are,
any `threshold` may be tried until they fit. A few wrong ones among many cost some tries, and are then known one by one.
Where too many are wrong nobody can say whose: the secret stays shut, and the attempt has no sum.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from coterie.privacy.secagg.shamir import FieldShares, rebuild_many

TRIES = 4096
"""Choices of shares that are tried before a secret is given up: enough for five wrong of 43 with a threshold of 27."""
_AT_ONCE = 256

Fits: TypeAlias = Callable[[bytes], bool]
"""Whether 32 bytes are the secret that was asked for."""


@dataclass(frozen=True)
class Sealed:
    """A secret to be opened: shares [m, 9] number `points`, and whether 32 bytes are it."""

    points: Sequence[int]
    shares: FieldShares = field(repr=False)
    fits: Fits


@dataclass(frozen=True)
class Recovered:
    """The secret, None where no choice of shares fits; and the numbers of the shares that do not fit it."""

    secret: bytes | None = field(repr=False)
    wrong: tuple[int, ...] = ()


def open_all(sealed: Mapping[int, Sealed], threshold: int) -> dict[int, Recovered]:
    """Every secret, by its place, all at once as long as no share is wrong. Each has `threshold` shares or more.

    Ends with the first that stays shut, for which all choices were tried: one is enough to have no sum, and many would
    cost a coordinator minutes that clients which lie take from it in one message.
    """
    if not sealed:
        return {}
    points = np.array([each.points[:threshold] for each in sealed.values()], np.uint64)
    shares = np.stack([each.shares[:threshold] for each in sealed.values()])
    found: dict[int, Recovered] = {}
    for (place, each), secret in zip(sealed.items(), rebuild_many(points, shares), strict=True):
        right = secret is not None and each.fits(secret)
        found[place] = Recovered(secret) if right else _search(each, threshold)
        if found[place].secret is None:
            break
    return found


def _search(sealed: Sealed, threshold: int) -> Recovered:
    """Other choices of shares, spread evenly, until one fits; then each share beside it is tried."""
    if len(sealed.points) == threshold:
        return Recovered(None)
    for first in range(0, TRIES, _AT_ONCE):
        chosen = np.stack([_choice(number, len(sealed.points), threshold) for number in range(first, first + _AT_ONCE)])
        for rows, secret in zip(chosen, _rebuilt(sealed, chosen), strict=True):
            if secret is not None and sealed.fits(secret):
                return Recovered(secret, _wrong_shares(sealed, rows, secret))
    return Recovered(None)


def _wrong_shares(sealed: Sealed, right: npt.NDArray[np.intp], secret: bytes) -> tuple[int, ...]:
    """The numbers of the shares that are not on the polynomial of the right ones: each put in place of one of them."""
    kept = frozenset(right.tolist())
    others = [index for index in range(len(sealed.points)) if index not in kept]
    chosen = np.repeat(right[None], len(others), axis=0)
    chosen[:, 0] = others
    rebuilt = _rebuilt(sealed, chosen)
    return tuple(sealed.points[index] for index, found in zip(others, rebuilt, strict=True) if found != secret)


def _rebuilt(sealed: Sealed, chosen: npt.NDArray[np.intp]) -> list[bytes | None]:
    return rebuild_many(np.array(sealed.points, np.uint64)[chosen], sealed.shares[chosen])


def _choice(number: int, count: int, threshold: int) -> npt.NDArray[np.intp]:
    """Choice `number` of `threshold` out of `count`: the first in the order of a hash, the same on every machine."""
    words = hashlib.shake_128(b"coterie/secagg/v1/choice\n" + number.to_bytes(4, "big")).digest(8 * count)
    return np.argsort(np.frombuffer(words, "<u8"), kind="stable")[:threshold]
