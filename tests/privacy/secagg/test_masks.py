"""Masks cancel exactly, ranges done apart are the whole, and a masked vector looks like noise."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
from attempt_kit import mask_words
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import errors
from coterie.privacy.secagg import ring, unmask
from coterie.privacy.secagg.fields import TILE
from coterie.privacy.secagg.masking import masked
from coterie.privacy.secagg.masks import MaskSeed, add_masks


def some_masks(count: int) -> list[MaskSeed]:
    return [MaskSeed(os.urandom(32), 1 if index % 3 else -1) for index in range(count)]


def some_vector(length: int) -> ring.RingVector:
    return np.frombuffer(os.urandom(4 * length), np.uint32).copy()


@given(st.integers(0, 70), st.integers(0, 40), st.integers(0, 1 << 33))
@settings(max_examples=80)
def test_any_range_is_that_of_the_whole(low: int, length: int, start: int) -> None:
    seed = bytes(range(32))
    whole = mask_words(seed, start, start + 128)
    assert np.array_equal(mask_words(seed, start + low, start + low + length), whole[low : low + length])


@pytest.mark.parametrize("length", [1, 5, TILE - 1, TILE, TILE + 1, 2 * TILE + 3])
def test_masks_are_added_with_their_signs_and_the_opposites_cancel_them(length: int) -> None:
    vector, chosen = some_vector(length), some_masks(5)
    masked = vector.copy()
    add_masks(masked, chosen)
    expected = vector.copy()
    for mask in chosen:
        words = mask_words(mask.seed, 0, length)
        expected = expected + words if mask.sign == 1 else expected - words
    assert np.array_equal(masked, expected)
    assert not np.array_equal(masked, vector)
    add_masks(masked, [mask.opposite for mask in chosen])
    assert np.array_equal(masked, vector)


@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 7, 9, TILE - 1, TILE + 9]), st.integers(1, 32)), min_size=1, max_size=4)
)
@settings(max_examples=40)
def test_a_masked_vector_is_the_packed_sum_of_vector_and_masks(sizes: list[tuple[int, int]]) -> None:
    spec = ring.VectorSpec(tuple(ring.Segment(f"s{i}", length, bits) for i, (length, bits) in enumerate(sizes)))
    vector, chosen = ring.reduced(some_vector(spec.length), spec), some_masks(4)
    before = vector.copy()
    expected = vector.copy()
    add_masks(expected, chosen)
    assert masked(vector, spec, chosen) == ring.pack(expected, spec)
    assert np.array_equal(vector, before)


def test_a_number_outside_its_ring_is_not_masked() -> None:
    spec = ring.VectorSpec((ring.Segment("wide", 3, 32), ring.Segment("narrow", 3, 5)))
    vector = np.array([2**32 - 1, 0, 1, 31, 0, 32], np.uint32)
    with pytest.raises(errors.ArgumentValueError, match="narrow") as caught:
        masked(vector, spec, some_masks(2))
    assert caught.value.reason == "secagg_vector"
    with pytest.raises(errors.ArgumentValueError):
        masked(vector[:5], spec, some_masks(2))


def test_different_seeds_and_places_give_unrelated_words() -> None:
    one, other = os.urandom(32), os.urandom(32)
    words = np.concatenate([mask_words(one, 0, 4096), mask_words(other, 0, 4096), mask_words(one, 4096, 8192)])
    assert np.unique(words).size > words.size - 50  # of 12 288 random words about 0.02 pairs are the same


def test_a_seed_stays_out_of_the_repr() -> None:
    seed = os.urandom(32)
    shown = repr(MaskSeed(seed, 1))
    assert seed.hex() not in shown and repr(seed) not in shown


def test_a_ring_of_clients_sums_to_the_sum() -> None:
    """Six clients, every pair with a mask, each with its own: the sum of the packed vectors, less the own masks, is
    exact in every segment's ring, overflow included.
    """
    spec = ring.VectorSpec((ring.Segment("delta", 1000, 26), ring.Segment("bits", 9, 1), ring.Segment("full", 70, 32)))
    vectors = [some_vector(spec.length) for _ in range(6)]
    pair = {(i, j): os.urandom(32) for i in range(6) for j in range(i)}
    own = [MaskSeed(os.urandom(32), 1) for _ in range(6)]
    total = np.zeros(spec.length, np.uint32)
    for i, vector in enumerate(vectors):
        masked = vector.copy()
        pairs = [MaskSeed(pair[max(i, j), min(i, j)], 1 if i < j else -1) for j in range(6) if j != i]
        add_masks(masked, [own[i], *pairs])
        ring.add_packed(total, ring.pack(masked, spec), spec)
    unmask.remove(total, own)
    expected = sum((v.astype(object) for v in vectors), np.zeros(spec.length, object))
    for segment, place in zip(spec.segments, spec.places().values(), strict=True):
        assert (ring.reduced(total, spec)[place].astype(object) == expected[place] % segment.modulus).all()


@pytest.fixture(scope="module")
def workers() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize(
    ("length", "shards"), [(1, 4), (15, 2), (16, 2), (17, 2), (100_003, 2), (100_003, 7), (200_000, 3)]
)
def test_shards_in_processes_are_bit_for_bit_the_whole(workers: Executor, length: int, shards: int) -> None:
    vector, chosen = some_vector(length), some_masks(7)
    alone = vector.copy()
    unmask.remove(alone, chosen)
    sharded = vector.copy()
    unmask.remove(sharded, chosen, workers, shards)
    assert np.array_equal(alone, sharded)
    add_masks(alone, chosen)
    assert np.array_equal(alone, vector)


class Broken(Executor):
    """Does the first task, and fails in the second."""

    def __init__(self) -> None:
        self.done = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.done += 1
        future: Future[Any] = Future()
        if self.done == 1:
            future.set_result(fn(*args, **kwargs))
        else:
            future.set_exception(ZeroDivisionError())
        return future


def test_a_sum_is_as_it_was_if_a_worker_fails() -> None:
    vector = some_vector(100)
    before = vector.copy()
    with pytest.raises(ZeroDivisionError):
        unmask.remove(vector, some_masks(2), Broken(), 2)
    assert np.array_equal(vector, before)


@given(st.integers(0, 500), st.integers(1, 40))
def test_ranges_cover_a_vector_once(length: int, shards: int) -> None:
    found = unmask.split(length, shards)
    assert len(found) <= shards and all(low < high for low, high in found)
    assert [index for low, high in found for index in range(low, high)] == list(range(length))


@pytest.mark.parametrize("bits", [1, 7, 13, 16, 21, 26, 32])
def test_a_masked_vector_looks_uniform(bits: int) -> None:
    """Of a vector of zeros, by the bytes and by the bits on the wire: chi-square, passed by true noise but for 1e-6."""
    spec = ring.VectorSpec((ring.Segment("all", 1 << 19, bits),))
    vector = np.zeros(spec.length, np.uint32)
    add_masks(vector, [MaskSeed(os.urandom(32), 1)])
    packed = np.frombuffer(ring.pack(vector, spec), np.uint8)
    expected = packed.size / 256
    bytes_found = np.bincount(packed, minlength=256)
    assert ((bytes_found - expected) ** 2 / expected).sum() < 378  # 255 degrees of freedom
    ones = np.unpackbits(packed.reshape(-1, 1), axis=1).sum(axis=0, dtype=np.int64)
    # The number of ones in each of the eight places is binomial: beyond 5.4 deviations with a chance of 6e-8.
    assert np.abs(ones - packed.size / 2).max() < 5.4 * np.sqrt(packed.size / 4)


def test_an_unmasked_vector_does_not_look_uniform() -> None:
    """The statistic above is one that can fail: the same vector with a mask of too few bits."""
    spec = ring.VectorSpec((ring.Segment("all", 1 << 19, 16),))
    packed = np.frombuffer(ring.pack(mask_words(os.urandom(32), 0, 1 << 19) & np.uint32(0x7FFF), spec), np.uint8)
    expected = packed.size / 256
    assert ((np.bincount(packed, minlength=256) - expected) ** 2 / expected).sum() > 378
