"""Decoders and hostile payloads: whatever the bytes are, they decode or are refused by name, in bounded memory."""

import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import errors
from coterie.protocol.codecs import NO_STATE, Keys, Shape, parse, rice
from coterie.protocol.codecs.levels import Coded
from coterie.protocol.codecs.packing import pack, packed_size, unpack

KEYS = Keys.of(task="task_1", plan="plan-1", base="base-1", section="delta")
NAMES = (
    "float32", "float16", "bfloat16", "float64", "int8", "int8:channel", "int8+rice", "topk:0.1", "topk:0.01+ef",
    "randk:0.1", "qsgd:4", "qsgd:8+rice", "terngrad+rice", "round:1", "round:0.01", "sign", "eden:1", "eden:3",
    "eden:4", "drive", "rotate+grid:4", "rotate+grid:5:1", "powersgd:2+ef", "diff_sparse_quant",
)  # fmt: skip
CAUSES = ("truncated", "malformed", "not_finite")
SHAPES = (Shape.flat(1), Shape((12, 5), (4, 1)), Shape((4000, 300), (40, 1)))
names = st.sampled_from(NAMES)


@settings(max_examples=400)
@given(names, st.sampled_from(SHAPES), st.data())
def test_a_changed_cut_or_longer_payload_decodes_or_is_refused(name: str, shape: Shape, data: st.DataObject) -> None:
    vector = np.random.default_rng(0).standard_normal(shape.length).astype(np.float32)
    codec = parse(name)
    payload = bytearray(codec.encode(vector, KEYS, shape, NO_STATE)[0])
    for _ in range(data.draw(st.integers(1, 4))):
        # Half of the changes hit the first bytes, where sizes and scales are.
        at = data.draw(st.integers(0, min(len(payload) - 1, 15) if data.draw(st.booleans()) else len(payload) - 1))
        payload[at] = data.draw(st.integers(0, 255))
    stop = data.draw(st.integers(len(payload) // 2, len(payload)))
    more = data.draw(st.binary(max_size=20))
    start, end = sorted((data.draw(st.integers(0, shape.length)), data.draw(st.integers(0, shape.length))))
    for changed in (bytes(payload), bytes(payload[:stop]), bytes(payload) + more):
        try:
            assert codec.decode(changed, KEYS, shape, start, end).shape == (end - start,)
        except errors.UpdateRefused as error:
            assert error.reason in CAUSES


@given(names, st.binary(max_size=200), st.sampled_from(SHAPES))
def test_any_payload_decodes_or_is_refused(name: str, payload: bytes, shape: Shape) -> None:
    try:
        assert parse(name).decode(payload, KEYS, shape, 0, shape.length).size == shape.length
    except errors.UpdateRefused as error:
        assert error.reason in CAUSES


@pytest.mark.parametrize("name", NAMES)
def test_a_short_payload_is_truncated(name: str) -> None:
    codec, shape = parse(name), Shape((40, 4), (5, 1))
    payload, _ = codec.encode(np.ones(44, np.float32), KEYS, shape, NO_STATE)
    with pytest.raises(errors.UpdateRefused) as caught:
        codec.decode(payload[:-1], KEYS, shape, 0, 44)
    assert caught.value.reason in ("truncated", "malformed")
    with pytest.raises(errors.UpdateRefused) as caught:
        codec.decode(b"", KEYS, shape, 0, 44)
    assert caught.value.reason == "truncated"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("filling", [0x00, 0xFF, 0x55])
def test_what_decoding_takes_is_bounded_by_the_elements_asked_for(name: str, filling: int) -> None:
    """A payload of the largest size there can be, filled with one byte, for 2,000,000 elements; 1,000 are asked for."""
    codec, shape = parse(name), Shape.flat(2_000_000)
    payload = bytes([filling]) * codec.max_bytes(shape)
    codec.decode(
        codec.encode(np.ones(70_000, np.float32), KEYS, Shape.flat(70_000), NO_STATE)[0], KEYS, Shape.flat(70_000), 0, 1
    )
    tracemalloc.start()
    try:
        codec.decode(lambda low, high: payload[low:high], KEYS, shape, 1_000_000, 1_001_000)
    except errors.UpdateRefused as error:
        assert error.reason in CAUSES
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 4 << 20


def heads(*pairs: tuple[int, int]) -> bytes:
    return b"".join(struct.pack("<II", *pair) for pair in pairs)


@pytest.mark.parametrize(
    ("name", "shape", "payload", "code"),
    [
        # topk of 20 elements keeps two of them.
        ("topk:0.1", Shape.flat(20), heads((3, 4)) + bytes(30), "malformed"),
        ("topk:0.1", Shape.flat(20), heads((2, 1 << 31)) + bytes(30), "malformed"),
        ("topk:0.1", Shape.flat(20), heads((2, 2)) + b"\x00\x03" + bytes(7), "truncated"),
        ("topk:0.1", Shape.flat(20), heads((2, 2)) + b"\x00\x07" + bytes(8), "malformed"),
        ("topk:0.1", Shape.flat(20), heads((2, 2)) + b"\x11\x03" + bytes(8), "malformed"),
        ("topk:0.1", Shape.flat(20), heads((2, 5)) + b"\x00\x01\x00\x00\x10" + bytes(8), "malformed"),
        ("topk:0.1", Shape.flat(70_000), heads((6999, 0), (1, 0)), "malformed"),
        ("int8", Shape.flat(1), b"\x00\x00\x80\x3f\x80", "malformed"),
        ("int8", Shape.flat(1), b"\x00\x00\x80\xbf\x01", "malformed"),
        ("int8", Shape.flat(1), b"\x00\x00\x80\x7f\x01", "not_finite"),
        ("int8", Shape.flat(1), b"\x00\x00\xc0\x7f\x01", "not_finite"),
        ("int8+rice", Shape.flat(1), b"\x00\x00\x80\x3f" + b"\xff\xff", "malformed"),
        ("int8+rice", Shape.flat(1), b"\x00\x00\x80\x3f" + b"\x03\x00" + b"\x08\xff\x01", "malformed"),
        ("qsgd:2", Shape.flat(1), b"\x00\x00\x80\x3f" + b"\x03", "malformed"),
        ("terngrad", Shape.flat(1), b"\x00\x00\x80\x3f" + b"\x04", "malformed"),
        ("sign", Shape.flat(3), b"\x00\x00\x80\x3f" + b"\x08", "malformed"),
        ("sign", Shape.flat(3), b"\x00\x00\x80\xff" + b"\x00", "not_finite"),
        ("eden:1", Shape.flat(64), b"\x00\x00\x80\xbf" + bytes(8), "malformed"),
        ("rotate+grid:1", Shape.flat(64), b"\x00\x00\x80\x7f" + bytes(8), "not_finite"),
        ("powersgd:1", Shape((12,), (4,)), b"\x00\x00\x80\x7f" * 7, "not_finite"),
        ("diff_sparse_quant", Shape.flat(2), struct.pack("<dd", 1, 0) + b"\0", "malformed"),
        ("diff_sparse_quant", Shape.flat(2), struct.pack("<dd", 0, 1e300) + b"\0", "not_finite"),
    ],
)
def test_bytes_that_no_encoder_writes_are_refused(name: str, shape: Shape, payload: bytes, code: str) -> None:
    with pytest.raises(errors.UpdateRefused) as caught:
        parse(name).decode(payload, KEYS, shape, 0, shape.length)
    assert caught.value.reason == code


@given(st.integers(1, 31), st.lists(st.integers(0, 2**31 - 1), max_size=70))
def test_packing_keeps_numbers_and_nothing_else(width: int, numbers: list[int]) -> None:
    codes = np.array(numbers, np.uint32) & np.uint32((1 << width) - 1)
    data = pack(codes, width)
    assert len(data) == packed_size(codes.size, width)
    assert unpack(data, codes.size, width).tolist() == codes.tolist()


@given(st.integers(1, 20), st.lists(st.integers(0, 2**20 - 1), max_size=70), st.booleans())
def test_rice_codes_keep_numbers_within_their_bounds(width: int, numbers: list[int], small: bool) -> None:
    codes = np.array(numbers, np.uint32) & np.uint32(3 if small else (1 << width) - 1) & np.uint32((1 << width) - 1)
    data = rice.encode(codes, width)
    assert rice.least_bytes(codes.size) <= len(data) <= rice.most_bytes(codes.size, width)
    assert rice.decode(data, codes.size, width).tolist() == codes.tolist()
    # The least parameter of the fewest bytes, so that every encoder writes the same.
    sizes = [packed_size(codes.size, k) + (int((codes >> k).sum()) + codes.size + 7) // 8 for k in range(width + 1)]
    assert (data[0], len(data)) == (sizes.index(min(sizes)), 1 + min(sizes))


def test_one_element_of_a_long_row_is_decoded_by_itself() -> None:
    read: list[int] = []
    payload = bytes(4 * (2 + 100_000))

    def reader(start: int, stop: int) -> bytes:
        read.append(stop - start)
        return payload[start:stop]

    shape = Shape((200_000,), (2,))
    assert parse("powersgd:1").decode(reader, KEYS, shape, 99_999, 100_001).tolist() == [0, 0]
    assert sum(read) <= 16


@given(st.integers(-(2**20), 2**20))
def test_zigzag_goes_there_and_back(level: int) -> None:
    numbers = rice.zigzag(np.array([level], np.int32))
    assert int(numbers[0]) == (2 * level if level >= 0 else -2 * level - 1)
    assert rice.unzigzag(numbers).tolist() == [level]


def test_entropy_coding_gains_where_levels_are_small() -> None:
    levels: Any = np.round(np.random.default_rng(0).standard_normal(50_000)).astype(np.int32)
    packing = Coded(8)
    payload = packing.pack(levels)
    assert packing.min_bytes(levels.size) <= len(payload) < 0.3 * levels.size
    assert packing.unpack(payload, 0, levels.size, 4000, 9000).tolist() == levels[4000:9000].tolist()
