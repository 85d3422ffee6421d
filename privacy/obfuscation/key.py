"""From a password to the numbers that an obfuscated graph needs as an input.

The password and a salt give a secret by scrypt (RFC 7914), and the secret gives two streams by SHAKE-256 (FIPS 202):
the key, which is fed to the graph, and the choices of what is hidden how, which are made once and forgotten.
"""

from dataclasses import dataclass
from hashlib import scrypt, shake_256
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from coterie.errors import InputError

KEY = "key"
"""The name of the input: int64[length]."""
FORMAT, SALT, LENGTH = "coterie.obfuscation", "coterie.obfuscation.salt", "coterie.obfuscation.length"
VERSION = "1"
SALT_BYTES = 16
_LONGEST = 1 << 24
# 16 MiB and some 50 ms for each guess.
_COST = {"n": 1 << 14, "r": 8, "p": 1}


def secret_of(password: str, salt: bytes) -> bytes:
    """32 bytes. Raises InputError for a password that is empty or no text."""
    if not isinstance(cast(object, password), str) or not password:
        raise InputError(
            f"The password of an obfuscated model must be text and not empty, not {type(password).__name__}.",
            hint="Give a sentence that you keep, as a str.",
        )
    return scrypt(password.encode(), salt=salt, dklen=32, maxmem=1 << 26, **_COST)


def key_numbers(secret: bytes, length: int) -> NDArray[np.int64]:
    """The first numbers of the key, in 0 .. 2³² - 1; more of them begin with the same ones."""
    return np.frombuffer(shake_256(b"key" + secret).digest(4 * length), "<u4").astype(np.int64)


def password_key(model: bytes, password: str) -> NDArray[np.int64]:
    """What to feed an obfuscated model as its input ``key``.

    Any password gives a key of the right length: whether it is the right one shows in the output alone. Raises
    InputError for a model that ``obfuscate`` did not make, or an empty password.
    """
    try:
        said = {entry.key: entry.value for entry in ModelProto.FromString(model).metadata_props}
        if said.get(FORMAT) != VERSION:
            raise ValueError(f"version {said.get(FORMAT)!r}")
        salt, length = bytes.fromhex(said[SALT]), int(said[LENGTH])
        if not 0 < length <= _LONGEST or len(salt) != SALT_BYTES:
            raise ValueError("length or salt")
    except Exception as error:  # protobuf raises several classes
        raise InputError(
            "The model was not obfuscated in the format of this version.",
            hint="Give the bytes that obfuscate() returned.",
        ) from error
    return key_numbers(secret_of(password, salt), length)


@dataclass
class Pad:
    """Hands out the key's numbers in order.

    start: how many are used.
    """

    secret: bytes
    start: int = 0

    def take(self, count: int) -> tuple[int, NDArray[np.int64]]:
        """Where the next numbers begin, and what they are."""
        first = self.start
        self.start += count
        return first, key_numbers(self.secret, self.start)[first:]


class Choices:
    """A stream of choices that follow from the secret and cannot be told from the key."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._block = 0
        self._left: list[int] = []

    def below(self, bound: int) -> int:
        """A whole number in 0 .. bound - 1; of 2⁶⁴ numbers modulo a small bound, so even but for 2⁻⁴⁰."""
        if not self._left:
            data = shake_256(b"choices" + self._block.to_bytes(8, "big") + self._secret).digest(8 * 512)
            self._left = [int(number) for number in np.frombuffer(data, "<u8")]
            self._block += 1
        return self._left.pop() % bound

    def permutation(self, count: int) -> NDArray[np.int64]:
        """An order of 0 .. count - 1 (Fisher and Yates)."""
        order = np.arange(count)
        for place in range(count - 1, 0, -1):
            other = self.below(place + 1)
            order[[place, other]] = order[[other, place]]
        return order

    def some(self, items: list[Any], ratio: float) -> list[Any]:
        """A share of the items, at least one of them where there are any, in their order."""
        count = max(1, round(ratio * len(items))) if items else 0
        chosen = {int(place) for place in self.permutation(len(items))[:count]}
        return [item for place, item in enumerate(items) if place in chosen]
