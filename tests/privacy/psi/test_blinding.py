"""Blinded ids: multiplying commutes, keys and jobs are apart, order is hidden, and bad points are refused."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import InputError
from coterie.privacy.psi.blinding import LOOKED_AT, TAG_BYTES, PsiKey, blind_ids, check_points, mix
from coterie.privacy.psi.exchange import OwnPoints
from coterie.privacy.psi.field import PRIME
from coterie.privacy.psi.hashing import POINT_BYTES, is_on_curve

JOB = bytes(range(32))
KEY, OTHER = PsiKey(b"k" * 32), PsiKey(b"o" * 32)
SMALL_ORDER = (
    0,
    1,
    PRIME - 1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)


def point(u: int) -> bytes:
    return u.to_bytes(POINT_BYTES, "little")


def parts(packed: bytes, width: int) -> list[bytes]:
    return [packed[place : place + width] for place in range(0, len(packed), width)]


def test_a_point_that_both_have_multiplied_is_the_same_whoever_was_first() -> None:
    ids = [b"one", b"two", b"three"]
    tags = mix(OTHER, JOB, blind_ids(KEY, ids))
    assert tags == mix(KEY, JOB, blind_ids(OTHER, ids))
    assert len({*parts(tags, TAG_BYTES)}) == len(ids)


def test_keys_are_fresh_and_stay_out_of_texts() -> None:
    one, other = PsiKey.generate(), PsiKey.generate()
    assert one.private != other.private and len(one.private) == 32
    assert one.private.hex() not in repr(one) and repr(one.private) not in repr(one)
    assert blind_ids(one, [b"x"]) != blind_ids(other, [b"x"])


def test_tags_of_two_jobs_have_nothing_in_common() -> None:
    points = blind_ids(KEY, [b"x"])
    assert mix(OTHER, JOB, points) != mix(OTHER, bytes(32), points)


def test_what_is_shown_does_not_depend_on_the_order_of_rows() -> None:
    ids = [b"a", b"b", b"c", b"d"]
    shown = {b"".join(OwnPoints.blinded(KEY, [*each]).buckets()) for each in permutations(ids)}
    assert len(shown) == 1
    own = OwnPoints.blinded(KEY, ids)
    packed = b"".join(own.buckets())
    rows: list[int] = own.order.tolist()
    assert [blind_ids(KEY, [ids[row]]) for row in rows] == parts(packed, POINT_BYTES)


@pytest.mark.parametrize("u", SMALL_ORDER)
def test_a_point_of_small_order_is_refused(u: int) -> None:
    good = blind_ids(OTHER, [b"x"])
    for points in (point(u), good + point(u), good * LOOKED_AT + point(u)):
        with pytest.raises(InputError) as refused:
            mix(KEY, JOB, points)
        assert refused.value.reason == "psi_points"


@pytest.mark.parametrize("u", [PRIME, PRIME + 1, PRIME + 9, 2**255 - 1, 2**255, 2**255 + 9, 2**256 - 1])
def test_another_spelling_of_a_point_is_refused(u: int) -> None:
    with pytest.raises(InputError, match="canonical") as refused:
        check_points(blind_ids(OTHER, [b"x"]) + point(u))
    assert refused.value.reason == "psi_points"


def test_the_largest_point_that_is_written_right_is_taken() -> None:
    largest = next(u for u in range(PRIME - 2, 0, -1) if is_on_curve(point(u)))
    check_points(point(largest))


def test_a_point_of_the_twist_is_refused() -> None:
    twist = next(u for u in range(2, 100) if not is_on_curve(point(u)))
    with pytest.raises(InputError, match="not on the curve") as refused:
        check_points(blind_ids(OTHER, [b"x"]) + point(twist))
    assert refused.value.reason == "psi_points"


@given(length=st.integers(1, 200).filter(lambda n: n % POINT_BYTES))
def test_half_a_point_is_refused(length: int) -> None:
    with pytest.raises(InputError, match="no whole number of points"):
        check_points(bytes(length))
