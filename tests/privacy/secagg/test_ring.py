"""Packed vectors are the codecs' packing, exact for every width, and refused when nobody could have packed them."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import errors
from coterie.privacy.secagg import ring
from coterie.privacy.secagg.ring import Segment, VectorSpec
from coterie.protocol.codecs import packing

SEGMENTS = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 32)), min_size=1, max_size=5).map(
    lambda sizes: VectorSpec(tuple(Segment(f"s{i}", length, bits) for i, (length, bits) in enumerate(sizes)))
)


def some_vector(length: int) -> ring.RingVector:
    return np.frombuffer(os.urandom(4 * length), np.uint32).copy()


@given(SEGMENTS)
@settings(max_examples=120)
def test_packing_keeps_each_segments_lowest_bits(spec: VectorSpec) -> None:
    vector = some_vector(spec.length)
    packed = ring.pack(vector, spec)
    assert len(packed) == spec.packed_bytes
    assert spec.packed_bytes <= sum(segment.length * segment.bits / 8 + 5 for segment in spec.segments)
    assert np.array_equal(ring.unpack(packed, spec), ring.reduced(vector, spec))


@pytest.mark.parametrize("bits", range(1, 32))
@pytest.mark.parametrize("length", [1, 7, 32_767, 32_769])
def test_the_bytes_are_those_of_the_codecs(bits: int, length: int) -> None:
    vector = some_vector(length)
    spec = VectorSpec((Segment("all", length, bits),))
    assert ring.pack(vector, spec) == packing.pack(vector & np.uint32((1 << bits) - 1), bits)


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 13, 16, 21, 26, 31, 32])
def test_sums_of_packed_vectors_wrap_around(bits: int) -> None:
    spec = VectorSpec((Segment("all", 70_001, bits),))
    vectors = [some_vector(spec.length) for _ in range(5)]
    total = np.zeros(spec.length, np.uint32)
    for vector in vectors:
        ring.add_packed(total, memoryview(ring.pack(vector, spec)), spec)
    expected = sum((v.astype(np.uint64) for v in vectors), np.zeros(spec.length, np.uint64)) % np.uint64(1 << bits)
    assert np.array_equal(ring.reduced(total, spec), expected)


def test_a_refused_vector_leaves_the_sum_as_it_was() -> None:
    spec = VectorSpec((Segment("good", 10, 16), Segment("filled", 3, 1)))
    total = some_vector(13)
    before = total.copy()
    packed = ring.pack(some_vector(13), spec)
    cases = {"truncated": packed[:-1], "too_large": packed + b"\0", "malformed": packed[:-1] + bytes([packed[-1] | 8])}
    for reason, data in cases.items():
        with pytest.raises(errors.UpdateRefused) as caught:
            ring.add_packed(total, data, spec)
        assert caught.value.reason == reason
        assert np.array_equal(total, before)


@pytest.mark.parametrize(
    ("segments", "word"),
    [
        ((), "0"),
        (tuple(Segment(str(i), 1, 1) for i in range(257)), "257"),
        ((Segment("a", 1, 0),), "32 bits, not 0"),
        ((Segment("a", 1, 33),), "32 bits, not 33"),
        ((Segment("a", 1, 64),), "32 bits, not 64"),
        ((Segment("a", 0, 8),), "0 coordinates"),
        ((Segment("a", 1, 8), Segment("a", 1, 8)), "twice"),
        ((Segment("a", 1 << 34, 8), Segment("b", 1, 8)), "at most"),
    ],
    ids=("none", "many", "0 bits", "33 bits", "64 bits", "empty", "twice", "long"),
)
def test_impossible_vectors_are_refused(segments: tuple[Segment, ...], word: str) -> None:
    with pytest.raises(errors.ArgumentValueError, match=word) as caught:
        VectorSpec(segments)
    assert caught.value.reason == "secagg_vector"


def test_a_digest_names_every_segment_its_length_its_ring_and_their_order() -> None:
    base = VectorSpec((Segment("a", 3, 8), Segment("b", 4, 9)))
    others = [
        VectorSpec((Segment("b", 4, 9), Segment("a", 3, 8))),
        VectorSpec((Segment("a", 4, 8), Segment("b", 3, 9))),
        VectorSpec((Segment("a", 3, 9), Segment("b", 4, 8))),
        VectorSpec((Segment("c", 3, 8), Segment("b", 4, 9))),
        VectorSpec((Segment("a", 3, 8),)),
    ]
    assert len({base.digest, *(spec.digest for spec in others)}) == 6


@pytest.mark.parametrize(
    "wrong", [np.zeros(4, np.uint32), np.zeros(5, np.int64), np.zeros((5, 1), np.uint32)], ids=range(3)
)
def test_a_vector_of_another_shape_or_dtype_is_not_packed(
    wrong: np.ndarray[tuple[int, ...], np.dtype[np.uint32]],
) -> None:
    with pytest.raises(errors.ArgumentValueError) as caught:
        ring.pack(wrong, VectorSpec((Segment("a", 5, 8),)))
    assert caught.value.reason == "secagg_vector"
