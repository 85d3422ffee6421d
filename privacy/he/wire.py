"""Ciphertexts as bytes, ``[count, width]`` of uint8, each little-endian, and what is refused of them on arrival."""

from collections.abc import Iterable
from math import gcd
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coterie.errors import InputError
from coterie.privacy.he.arithmetic import Arithmetic
from coterie.privacy.he.keys import PaillierPublicKey

Ciphers: TypeAlias = NDArray[np.uint8]
"""Ciphertexts, ``[count, PaillierPublicKey.width]``."""


def to_bytes(ciphers: Iterable[int], key: PaillierPublicKey) -> Ciphers:
    """Ciphertexts as they are sent."""
    data = b"".join(int(cipher).to_bytes(key.width, "little") for cipher in ciphers)
    return np.frombuffer(data, np.uint8).reshape(-1, key.width)


def to_numbers(ciphers: Ciphers, arithmetic: Arithmetic) -> list[int]:
    """Ciphertexts as they are computed with."""
    number, width = arithmetic.number, ciphers.shape[1]
    data = ciphers.tobytes()
    return [number(int.from_bytes(data[at : at + width], "little")) for at in range(0, len(data), width)]


def check_ciphers(ciphers: NDArray[Any], key: PaillierPublicKey, told: str, arithmetic: Arithmetic) -> Ciphers:
    """Ciphertexts of a partner, after a look at each: below n², not 0, and without a common divisor with n.

    told: whose they are and of which step, as "registry's histograms of tree 3".
    Raises InputError (``ciphertext_range``) naming the first bad one by its place; nothing of its value.
    """
    if ciphers.dtype != np.uint8 or ciphers.ndim != 2 or ciphers.shape[1] != key.width:
        raise _refused(f"{told}: {list(ciphers.shape)} {ciphers.dtype} are no ciphertexts of a key of {key.bits} bits")
    square, modulus = arithmetic.number(key.square), arithmetic.number(key.modulus)
    numbers = to_numbers(ciphers, arithmetic)
    product = arithmetic.number(1)
    for index, number in enumerate(numbers):
        if not 0 < number < square:
            raise _refused(f"{told}: ciphertext {index} is out of range")
        product = product * number % modulus
    if gcd(int(product), key.modulus) != 1:
        index = next(index for index, number in enumerate(numbers) if gcd(int(number), key.modulus) != 1)
        raise _refused(f"{told}: ciphertext {index} has a common divisor with the key")
    return ciphers


def _refused(message: str) -> InputError:
    return InputError(
        f"{message}.", hint="Ask the partner which program it runs, and under which key.", code="ciphertext_range"
    )
