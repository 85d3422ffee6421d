"""Ids as points of Curve25519: the encoding ``curve25519_XMD:SHA-512_ELL2_NU_`` of RFC 9380, of which only the
coordinate u is made.

A hash that is taken for a coordinate as it is lies on the curve for one id in two, and on its twist for the others.
No multiplication changes that, so whoever sees a blinded id would know one bit of it. An encoded id is always on the
curve; X25519 multiplies by a multiple of eight, the curve's cofactor, so that a blinded one is always in the one
subgroup of prime order, and tells no bit.

The encoding reaches about half of the curve's points. That is enough here: its image is dense, and every point of it
can be decoded to a uniform field element, which is what a proof in the random oracle model needs to programme it.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from coterie.privacy.psi.field import ARITHMETICS, PRIME, FieldArithmetic, inverses

POINT_BYTES: Final = 32
DOMAIN: Final = b"coterie/psi/v1/with-curve25519_XMD:SHA-512_ELL2_NU_"
"""The domain separation tag: no other use of the encoding has it (RFC 9380 section 3.1)."""
COEFFICIENT: Final = 486662
"""A of the curve v**2 = u**3 + A u**2 + u (RFC 7748 section 4.1)."""
_ELEMENT_BYTES: Final = 48
_PADDING: Final = bytes(128)


def field_elements(messages: Sequence[bytes], domain: bytes = DOMAIN) -> list[int]:
    """hash_to_field of each message with count 1 and expand_message_xmd over SHA-512 (RFC 9380 sections 5.2, 5.3.1)."""
    end = domain + bytes([len(domain)])
    start = hashlib.sha512(_PADDING)
    middle = _ELEMENT_BYTES.to_bytes(2, "big") + b"\0" + end
    last = b"\1" + end
    found: list[int] = []
    for message in messages:
        state = start.copy()
        state.update(message + middle)
        drawn = hashlib.sha512(state.digest() + last).digest()
        found.append(int.from_bytes(drawn[:_ELEMENT_BYTES], "big") % PRIME)
    return found


def coordinates(elements: Sequence[int], arithmetic: FieldArithmetic = ARITHMETICS[0]) -> list[Any]:
    """The coordinate u of map_to_curve_elligator2_curve25519 (RFC 9380 section 6.7.1) of each field element.

    Its exceptional case, a denominator of zero, needs a square root of -1/2, which this field does not have.
    """
    number, is_square = arithmetic.number, arithmetic.is_square
    denominators = [(number(each) ** 2 * 2 + 1) % PRIME for each in elements]
    found: list[Any] = []
    for inverse in inverses(denominators, arithmetic):
        u = -COEFFICIENT * inverse % PRIME
        found.append(u if is_square(_right_side(u)) else (-COEFFICIENT - u) % PRIME)
    return found


def hash_to_curve(messages: Sequence[bytes], arithmetic: FieldArithmetic = ARITHMETICS[0]) -> bytes:
    """The points of messages, one after the other: 32 bytes each, little-endian."""
    found = coordinates(field_elements(messages), arithmetic)
    return b"".join([int(u).to_bytes(POINT_BYTES, "little") for u in found])


def is_on_curve(point: bytes, arithmetic: FieldArithmetic = ARITHMETICS[0]) -> bool:
    """Whether a coordinate is one of the curve, and not of its twist."""
    return arithmetic.is_square(_right_side(arithmetic.number(int.from_bytes(point, "little"))))


def _right_side(u: Any) -> Any:
    return u * ((u + COEFFICIENT) * u % PRIME + 1) % PRIME
