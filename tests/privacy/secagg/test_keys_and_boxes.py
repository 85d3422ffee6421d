"""Common secrets are bound to all that they must be, and a box opens only whole, and only where it was meant to."""

import os
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from coterie import errors
from coterie.privacy.entropy import draw
from coterie.privacy.secagg import channel
from coterie.privacy.secagg.context import AttemptContext
from coterie.privacy.secagg.keys import KeyPair, RosterKey, agree, agree_each, expand, is_canonical, pair_info
from coterie.privacy.secagg.parameters import parameters

CONTEXT = AttemptContext(
    attempt="attempt-1",
    plan="aa" * 32,
    model="bb" * 32,
    spec="cc" * 32,
    parameters=parameters(100, corrupt=0.1, dropout=0.1, mode="consistent"),
    roster="dd" * 32,
)
OTHERS = {
    "attempt": replace(CONTEXT, attempt="attempt-2"),
    "plan": replace(CONTEXT, plan="ab" * 32),
    "model": replace(CONTEXT, model="ab" * 32),
    "spec": replace(CONTEXT, spec="ab" * 32),
    "roster": replace(CONTEXT, roster="ab" * 32),
    "threshold": replace(CONTEXT, parameters=replace(CONTEXT.parameters, threshold=2)),
    "mode": replace(CONTEXT, parameters=replace(CONTEXT.parameters, mode="semi_honest")),
    "clients": replace(CONTEXT, parameters=replace(CONTEXT.parameters, clients=101)),
    "neighbours": replace(CONTEXT, parameters=replace(CONTEXT.parameters, neighbours=4)),
    "corrupt": replace(CONTEXT, parameters=replace(CONTEXT.parameters, corrupt=0.05)),
    "dropout": replace(CONTEXT, parameters=replace(CONTEXT.parameters, dropout=0.05)),
}


@pytest.mark.parametrize("what", OTHERS)
def test_who_disagrees_about_anything_derives_another_secret_and_opens_no_box(what: str) -> None:
    one, other = KeyPair.generate(), KeyPair.generate()
    places = RosterKey(0, one.public), RosterKey(1, other.public)
    ours, theirs = (pair_info(context, "mask", *places) for context in (CONTEXT, OTHERS[what]))
    assert agree(one.private, other.public, ours) != agree(other.private, one.public, theirs)
    key = os.urandom(32)
    box = channel.seal(key, b"shares", channel.associated(CONTEXT, "shares", 0, 1))
    with pytest.raises(errors.InputError):
        channel.unseal(key, box, channel.associated(OTHERS[what], "shares", 0, 1))


def test_a_common_secret_has_no_order_but_a_purpose_places_and_keys() -> None:
    one, other, third = (KeyPair.generate() for _ in range(3))
    a, b = RosterKey(4, one.public), RosterKey(9, other.public)
    info = pair_info(CONTEXT, "mask", a, b)
    assert info == pair_info(CONTEXT, "mask", b, a)
    different = {
        pair_info(CONTEXT, "channel", a, b),
        pair_info(CONTEXT, "mask", RosterKey(5, one.public), b),
        pair_info(CONTEXT, "mask", a, RosterKey(9, third.public)),
        pair_info(CONTEXT, "mask", RosterKey(4, other.public), RosterKey(9, one.public)),
    }
    assert len(different | {info}) == 5


@given(st.lists(st.one_of(st.binary(max_size=6), st.integers(0, 2**32 - 1)), max_size=4))
@settings(max_examples=200)
def test_parts_of_one_kind_never_run_into_each_other(parts: list[bytes | int]) -> None:
    bound = CONTEXT.bind("x", *parts)
    for index, part in enumerate(parts):
        if isinstance(part, bytes) and part:
            moved = [*parts[:index], part[:-1], part[-1:], *parts[index + 1 :]]
            assert CONTEXT.bind("x", *moved) != bound
        longer = part + b"\0" if isinstance(part, bytes) else part ^ 1
        assert CONTEXT.bind("x", *parts[:index], longer, *parts[index + 1 :]) != bound


@pytest.mark.parametrize("part", [-1, 2**32])
def test_a_place_that_no_roster_has_is_no_part(part: int) -> None:
    with pytest.raises(OverflowError):
        CONTEXT.bind("x", part)


def test_secrets_with_many_are_those_with_each() -> None:
    own, others = KeyPair.generate(), [KeyPair.generate() for _ in range(4)]
    infos = [bytes([index]) for index in range(4)]
    found = agree_each(own.private, [(pair.public, info) for pair, info in zip(others, infos, strict=True)])
    assert found == [agree(pair.private, own.public, info) for pair, info in zip(others, infos, strict=True)]
    assert len(set(found)) == 4


def test_pairs_are_fresh_and_their_private_half_is_not_shown() -> None:
    one, other = KeyPair.generate(), KeyPair.generate()
    assert one.private != other.private and KeyPair.from_private(one.private) == one
    assert one.private.hex() not in repr(one) and repr(one.private) not in repr(one)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_keys_of_another_length_are_refused(size: int) -> None:
    pair = KeyPair.generate()
    for private, public in ((bytes(size), pair.public), (pair.private, bytes(size))):
        with pytest.raises(errors.ArgumentValueError) as caught:
            agree(private, public, b"")
        assert caught.value.reason == "secagg_key_invalid"


FIELD = 2**255 - 19


def doubled(u: int) -> int | None:
    """The coordinate of twice a point, on the curve and on its twist alike (RFC 7748 section 5); None at infinity."""
    below = 4 * u * (u * u + 486662 * u + 1) % FIELD
    return (u * u - 1) ** 2 * pow(below, -1, FIELD) % FIELD if below else None


def refused_coordinates() -> set[int]:
    """Of 0, 1, -1 and the halves of 1: what X25519 takes to zero. Halves of 1 are the roots of one quartic."""
    halves = {u for u in HALVES if doubled(u) == 1}
    return {0, 1, FIELD - 1} | halves


HALVES = tuple(
    int.from_bytes(bytes.fromhex(text), "little")
    for text in (
        "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
        "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    )
)


def test_coordinates_of_small_order_are_all_refused_in_every_spelling() -> None:
    small = refused_coordinates()
    assert len(small) == 5, "the curve's eight points of such order and the twist's four have five coordinates"
    assert {doubled(u) for u in small} <= small | {None}
    for u in small:
        for value in (u, u + FIELD, u + 2**255):
            if value < 2**256:
                assert not is_canonical(value.to_bytes(32, "little"))


@given(st.integers(0, 2**256 - 1))
@settings(max_examples=100)
def test_every_coordinate_has_one_spelling(value: int) -> None:
    u = value % FIELD
    assume(u not in refused_coordinates())
    assert is_canonical(u.to_bytes(32, "little"))
    spellings = [other for other in (u, u + FIELD, u + 2**255, u + FIELD + 2**255) if other < 2**256]
    assert [is_canonical(other.to_bytes(32, "little")) for other in spellings].count(True) == 1


@pytest.mark.parametrize("u", [FIELD - 2, FIELD, FIELD + 9, 2**255 - 1, 9 + 2**255])
def test_only_what_is_below_the_prime_with_bit_255_clear_is_a_key(u: int) -> None:
    assert is_canonical(u.to_bytes(32, "little")) is (u < FIELD)
    assert not is_canonical(u.to_bytes(33, "little")) and not is_canonical(b"")


def test_made_keys_are_canonical_and_flipped_ones_give_the_same_secret_to_who_ignores_it() -> None:
    one, other = KeyPair.generate(), KeyPair.generate()
    assert is_canonical(one.public) and is_canonical(other.public)
    flipped = other.public[:31] + bytes([other.public[31] ^ 0x80])
    private = X25519PrivateKey.from_private_bytes(one.private)
    raws = [private.exchange(X25519PublicKey.from_public_bytes(key)) for key in (other.public, flipped)]
    assert raws[0] == raws[1]
    with pytest.raises(errors.ArgumentValueError) as caught:
        agree(one.private, flipped, b"")
    assert caught.value.reason == "secagg_key_invalid"


@pytest.mark.parametrize("length", [0, 8161])
def test_hkdf_refuses_what_it_cannot_expand(length: int) -> None:
    with pytest.raises(errors.ArgumentValueError):
        expand(bytes(32), b"", length)


def test_a_source_of_entropy_that_runs_dry_makes_no_key() -> None:
    with pytest.raises(errors.InternalError):
        KeyPair.generate(lambda count: bytes(count // 2))
    assert draw(lambda count: bytes(count), 7) == bytes(7)


def test_every_flipped_bit_of_a_box_is_found() -> None:
    key, data = os.urandom(32), channel.associated(CONTEXT, "shares", 3, 8)
    plaintext = os.urandom(72)
    box = channel.seal(key, plaintext, data)
    assert len(box) == channel.NONCE_BYTES + len(plaintext) + 16
    assert channel.unseal(key, box, data) == plaintext
    for bit in range(8 * len(box)):
        changed = bytearray(box)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(errors.InputError) as caught:
            channel.unseal(key, bytes(changed), data)
        assert caught.value.reason == "secagg_box"


@pytest.mark.parametrize(
    "data",
    [
        channel.associated(CONTEXT, "shares", 8, 3),
        channel.associated(CONTEXT, "shares", 3, 9),
        channel.associated(CONTEXT, "share", 3, 8),
        b"",
    ],
    ids=("turned round", "another recipient", "another phase", "nothing"),
)
def test_a_box_does_not_open_elsewhere(data: bytes) -> None:
    key = os.urandom(32)
    box = channel.seal(key, b"secret", channel.associated(CONTEXT, "shares", 3, 8))
    with pytest.raises(errors.InputError):
        channel.unseal(key, box, data)
    with pytest.raises(errors.InputError):
        channel.unseal(os.urandom(32), box, channel.associated(CONTEXT, "shares", 3, 8))


@pytest.mark.parametrize("size", [0, 5, 12, 27])
def test_a_box_too_short_for_its_tag_does_not_open(size: int) -> None:
    with pytest.raises(errors.InputError) as caught:
        channel.unseal(bytes(32), bytes(size), b"")
    assert caught.value.reason == "secagg_box"


def test_two_boxes_of_one_thing_are_different() -> None:
    key = os.urandom(32)
    assert channel.seal(key, b"same", b"") != channel.seal(key, b"same", b"")
