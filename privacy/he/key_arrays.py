"""Keys as arrays of bytes: a public key as it is sent, a private key as its owner keeps it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.privacy.he.keys import PaillierPrivateKey, PaillierPublicKey
from coterie.protocol.arrays import ArraysByName

PUBLIC = {"modulus": ("uint8", 1), "base": ("uint8", 1)}
"""Names, dtypes and axes of a public key."""


def public_arrays(key: PaillierPublicKey) -> ArraysByName:
    """A public key as it is sent."""
    return {"modulus": number_array(key.modulus), "base": number_array(key.base)}


def public_key(arrays: ArraysByName) -> PaillierPublicKey:
    """The key of `public_arrays`, to be looked at (`keys.check_public_key`)."""
    return PaillierPublicKey(number_of(arrays["modulus"]), number_of(arrays["base"]))


def key_arrays(key: PaillierPrivateKey) -> ArraysByName:
    """A private key. They are kept in a folder of this user alone."""
    return {
        "private_p": number_array(key.p),
        "private_q": number_array(key.q),
        "private_base": number_array(key.public.base),
    }


def private_key(arrays: ArraysByName) -> PaillierPrivateKey:
    """The key of `key_arrays`."""
    p, q = number_of(arrays["private_p"]), number_of(arrays["private_q"])
    return PaillierPrivateKey(PaillierPublicKey(p * q, number_of(arrays["private_base"])), p, q)


def number_array(number: int) -> NDArray[np.uint8]:
    """A whole number as bytes, the lowest first."""
    return np.frombuffer(number.to_bytes((number.bit_length() + 7) // 8, "little"), np.uint8)


def number_of(array: NDArray[Any]) -> int:
    """The number of `number_array`."""
    return int.from_bytes(array.tobytes(), "little")
