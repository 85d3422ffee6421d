"""Arrays of ciphertexts: over processes as in one, packed, joined, and looked at on arrival."""

from collections.abc import Iterator
from os import urandom

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import errors
from coterie.privacy.he import fixed_point
from coterie.privacy.he.arithmetic import PURE, fast
from coterie.privacy.he.batches import CHUNK, CipherPool
from coterie.privacy.he.packing import SlotPacking, packing_for
from coterie.privacy.he.paillier import Decryption, with_public
from coterie.privacy.he.wire import check_ciphers, to_bytes, to_numbers
from tests.privacy.he.keys_kit import small_key

SEED = bytes(range(32))


@pytest.fixture(scope="module")
def pool() -> Iterator[CipherPool]:
    with CipherPool(small_key()) as pool:
        yield pool


def test_every_way_of_working_makes_the_same_ciphertexts(pool: CipherPool) -> None:
    numbers = list(range(-20, 2 * CHUNK))
    expected = pool.encrypt(numbers, SEED)
    assert pool.decrypt(expected) == numbers
    packing = SlotPacking(64, 6)
    joined = pool.join(expected, packing, 1, SEED)
    groups = np.arange(len(numbers))[:, None] % np.array([3, 5])
    sums = pool.sum_groups(expected, groups, [3, 6])
    for other in (CipherPool(small_key(), processes=2), CipherPool(small_key(), arithmetic=PURE)):
        with other:
            assert np.array_equal(other.encrypt(numbers, SEED), expected)
            assert np.array_equal(other.join(expected, packing, 1, SEED), joined)
            found = other.sum_groups(expected, groups, [3, 6])
            assert all(np.array_equal(a, b) for a, b in zip(found, sums, strict=True))
            assert other.decrypt(expected) == numbers
    with CipherPool(small_key().public) as everybody:
        assert np.array_equal(everybody.encrypt(numbers, SEED), expected)
        with pytest.raises(errors.ArgumentValueError, match="does not decrypt"):
            everybody.decrypt(expected)


def test_another_seed_makes_others_and_no_two_in_a_batch_share_their_randomness(pool: CipherPool) -> None:
    numbers = [5] * (2 * CHUNK + 3)
    first, second = pool.encrypt(numbers, SEED), pool.encrypt(numbers, urandom(32))
    assert len({row.tobytes() for row in (*first, *second)}) == 2 * len(numbers)


def test_groups_hold_their_sums_and_an_empty_one_nothing(pool: CipherPool) -> None:
    numbers = [3, -4, 10, 11, -100]
    groups = np.array([[0, 1], [0, 0], [2, 1], [2, 1], [0, 0]])
    first, second = pool.sum_groups(pool.encrypt(numbers, SEED), groups, [4, 2])
    assert pool.decrypt(first) == [-101, 0, 21, 0] and pool.decrypt(second) == [-104, 24]


def test_what_is_joined_is_blinded(pool: CipherPool) -> None:
    ciphers = pool.encrypt([1, 2, 3], SEED)
    packing = SlotPacking(40, 3)
    (joined,) = to_numbers(pool.join(ciphers, packing, 1, SEED), fast())
    plain = packing.join(with_public(small_key().public), to_numbers(ciphers, fast()), 1)
    assert joined != plain
    assert Decryption(small_key()).decrypt(joined) == Decryption(small_key()).decrypt(plain) == packing.pack([1, 2, 3])


SLOTS = st.lists(st.integers(-(2**39) + 1, 2**39 - 1), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(SLOTS)
def test_packed_numbers_come_back(numbers: list[int]) -> None:
    packing = SlotPacking(40, 12)
    assert packing.unpack(packing.pack(numbers), len(numbers)) == numbers


@settings(max_examples=20, deadline=None)
@given(rows=st.lists(st.tuples(*[st.integers(-(2**30), 2**30)] * 3), min_size=2, max_size=3))
def test_sums_and_joins_of_packed_numbers_are_those_of_each_slot(
    pool: CipherPool, rows: list[tuple[int, int, int]]
) -> None:
    packing = packing_for(small_key().public, 2**33)
    ciphers = pool.encrypt([packing.pack(row) for row in rows], SEED)
    (total,) = pool.sum_groups(ciphers, np.zeros((len(rows), 1), int), [1])
    expected = [sum(row[i] for row in rows) for i in range(3)]
    assert packing.unpack(pool.decrypt(total)[0], 3) == expected
    joined = pool.join(np.concatenate([total, ciphers]), packing, 3, SEED)
    assert len(joined) == 1
    flat = [*expected, *(number for row in rows for number in row)]
    assert packing.unpack(pool.decrypt(joined)[0], len(flat)) == flat


def test_slots_that_cannot_hold_are_refused() -> None:
    packing = packing_for(small_key().public, 1000)
    assert packing.width == 11 and packing.slots == 510 // 11
    for wrong in ([1025], [-1024], [1] * (packing.slots + 1)):
        with pytest.raises(errors.ArgumentValueError) as caught:
            packing.pack(wrong)
        assert caught.value.reason == "plaintext_range"
    with pytest.raises(errors.ArgumentValueError):
        packing.unpack(packing.pack([1, 2, 3]), 2)
    with pytest.raises(errors.ArgumentValueError):
        packing_for(small_key().public, 2**512)
    with pytest.raises(errors.ArgumentValueError):
        packing.join(with_public(small_key().public), [2] * 24, 2)


def test_ciphertexts_that_cannot_be_some_are_refused_without_their_values() -> None:
    key = small_key()
    good = with_public(key.public).encrypt(1, urandom)
    told = "registry's histograms of tree 3"
    for bad in (0, key.public.square, 2 ** (8 * key.public.width) - 1, key.p, 3 * key.public.modulus):
        with pytest.raises(errors.InputError, match="tree 3: ciphertext 1") as caught:
            check_ciphers(to_bytes([good, bad, good], key.public), key.public, told, fast())
        assert caught.value.reason == "ciphertext_range" and str(bad) not in str(caught.value)
    fine = to_bytes([good, good], key.public)
    assert check_ciphers(fine, key.public, told, fast()) is fine
    for wrong in (fine[:, :-1], fine.astype(np.int32), fine.reshape(-1)):
        with pytest.raises(errors.InputError, match="are no ciphertexts") as caught:
            check_ciphers(wrong, key.public, told, fast())
        assert caught.value.reason == "ciphertext_range"


def test_a_pool_needs_a_process() -> None:
    with pytest.raises(errors.ArgumentValueError) as caught:
        CipherPool(small_key(), processes=0)
    assert caught.value.reason == "processes"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_fixed_point_is_within_half_a_step_and_adds_exactly(values: list[float]) -> None:
    encoded = fixed_point.encode(np.array(values), 32)
    assert np.abs(fixed_point.decode(encoded.tolist(), 32) - np.array(values)).max() <= 2.0**-33
    assert int(encoded.sum()) == sum(encoded.tolist()) == sum(reversed(encoded.tolist()))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**31])
def test_fixed_point_refuses_what_has_no_place(value: float) -> None:
    with pytest.raises(errors.ArgumentValueError) as caught:
        fixed_point.encode(np.array([0.5, value]), 31)
    assert caught.value.reason == "plaintext_range"


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.integers(0, 3), st.data())
def test_rows_combine_to_what_their_numbers_do(rows: int, columns: int, data: st.DataObject) -> None:
    def whole(lowest: int, highest: int, shape: tuple[int, int]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        count = shape[0] * shape[1]
        drawn = data.draw(st.lists(st.integers(lowest, highest), min_size=count, max_size=count))
        return np.array(drawn, np.int64).reshape(shape)

    numbers, weights, factors = (
        whole(-50, 50, (rows, 3)),
        whole(0, 9000, (rows, 3)),
        whole(-9000, 9000, (rows, columns)),
    )
    with CipherPool(small_key()) as pool:
        found = pool.combine_rows(pool.encrypt(numbers.reshape(-1).tolist(), SEED), weights, factors)
        expected = (factors.T @ (numbers * weights).sum(axis=1)).tolist()
        assert pool.decrypt(found) == expected
        more = list(range(columns))
        shifted = pool.blind(pool.add(found, found), more, SEED)
        assert pool.decrypt(shifted) == [2 * total + n for total, n in zip(expected, more, strict=True)]


def test_combined_rows_are_the_same_over_processes() -> None:
    rows, key = CHUNK + 3, small_key().public
    weights, factors = np.full((rows, 2), 3), np.arange(2 * rows).reshape(rows, 2)
    with CipherPool(key) as one, CipherPool(key, processes=2) as two, CipherPool(key, arithmetic=PURE) as pure:
        ciphers = one.encrypt(list(range(2 * rows)), SEED)
        expected = one.combine_rows(ciphers, weights, factors)
        for other in (two, pure):
            assert np.array_equal(other.combine_rows(ciphers, weights, factors), expected)
            assert np.array_equal(other.blind(expected, [1, 2], SEED), one.blind(expected, [1, 2], SEED))
