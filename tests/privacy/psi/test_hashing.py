"""Ids become points of the curve as RFC 9380 says, and no blinded point tells a bit of its id."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from coterie.privacy.psi.blinding import PsiKey, blind_ids
from coterie.privacy.psi.field import ARITHMETICS, PRIME, FieldArithmetic, inverses
from coterie.privacy.psi.hashing import (
    COEFFICIENT,
    DOMAIN,
    POINT_BYTES,
    coordinates,
    field_elements,
    hash_to_curve,
    is_on_curve,
)

ANSWERS: Any = json.loads((Path(__file__).parent / "known_answers" / "rfc9380.json").read_text("ascii"))
IDS = [f"patient {number}".encode() for number in range(400)]
each_arithmetic = pytest.mark.parametrize("arithmetic", ARITHMETICS, ids=lambda each: each.name)


def eightfold(u: int) -> int:
    """The coordinate of eight times a point: three doublings (RFC 7748 section 5, over fractions)."""
    x, z = u, 1
    for _ in range(3):
        aa, bb = (x + z) ** 2 % PRIME, (x - z) ** 2 % PRIME
        e = (aa - bb) % PRIME
        x, z = aa * bb % PRIME, e * (aa + (COEFFICIENT - 2) // 4 * e) % PRIME
    return x * pow(z, -1, PRIME) % PRIME


@each_arithmetic
@pytest.mark.parametrize("case", ANSWERS["cases"], ids=range(len(ANSWERS["cases"])))
def test_the_answers_of_rfc_9380(case: Any, arithmetic: FieldArithmetic) -> None:
    (element,) = field_elements([case["message"].encode()], ANSWERS["domain"].encode())
    (u,) = coordinates([element], arithmetic)
    assert (element, int(u)) == (int(case["element"], 16), int(case["q"], 16))
    assert eightfold(int(u)) == int(case["p"], 16)


def test_the_domain_is_coteries_own() -> None:
    assert DOMAIN.startswith(b"coterie/psi/v1/")
    assert field_elements([b"x"]) != field_elements([b"x"], ANSWERS["domain"].encode())


@each_arithmetic
@given(elements=st.lists(st.integers(0, PRIME - 1), max_size=5))
def test_every_element_is_mapped_to_the_curve_and_all_arithmetics_agree(
    arithmetic: FieldArithmetic, elements: list[int]
) -> None:
    found = [int(u) for u in coordinates(elements, arithmetic)]
    assert found == [int(u) for u in coordinates(elements, ARITHMETICS[-1])]
    assert all(is_on_curve(u.to_bytes(POINT_BYTES, "little"), arithmetic) for u in found)


@each_arithmetic
@given(numbers=st.lists(st.integers(1, PRIME - 1), max_size=6))
def test_inverses_are_inverse(arithmetic: FieldArithmetic, numbers: list[int]) -> None:
    elements = [arithmetic.number(each) for each in numbers]
    assert [int(a * b % PRIME) for a, b in zip(elements, inverses(elements, arithmetic), strict=True)] == [1] * len(
        numbers
    )


@each_arithmetic
@given(root=st.integers(1, PRIME - 1))
def test_squares_are_told_from_others(arithmetic: FieldArithmetic, root: int) -> None:
    square = root * root % PRIME
    assert arithmetic.is_square(arithmetic.number(square))
    assert not arithmetic.is_square(arithmetic.number(2 * square % PRIME))  # 2 is no square of this field


def on_curve(points: bytes) -> list[bool]:
    return [is_on_curve(points[place : place + POINT_BYTES]) for place in range(0, len(points), POINT_BYTES)]


def order_of_two(points: bytes) -> list[bool]:
    """Whether each coordinate is a square: what the pairing with the point of order 2 tells of a point."""
    (arithmetic, *_) = ARITHMETICS
    return [
        arithmetic.is_square(arithmetic.number(int.from_bytes(points[place : place + POINT_BYTES], "little")))
        for place in range(0, len(points), POINT_BYTES)
    ]


def test_a_hash_taken_for_a_coordinate_leaks_a_bit_of_every_id_and_an_encoded_one_none() -> None:
    key = PsiKey.generate()
    exchange = X25519PrivateKey.from_private_bytes(key.private).exchange
    raw = b"".join(hashlib.sha256(each).digest()[:31] + b"\0" for each in IDS)
    blinded = b"".join(
        exchange(X25519PublicKey.from_public_bytes(raw[place : place + POINT_BYTES]))
        for place in range(0, len(raw), POINT_BYTES)
    )
    # The leak: which half of the ids one is in is seen of its blinded point, whatever the key.
    assert on_curve(raw) == on_curve(blinded)
    assert 0.3 < sum(on_curve(raw)) / len(IDS) < 0.7
    # It is not there: all are on the curve, and in the subgroup of prime order.
    ours = blind_ids(key, IDS)
    assert all(on_curve(ours)) and all(order_of_two(ours))
    assert not all(order_of_two(hash_to_curve(IDS)))  # so that what is looked at can fail
