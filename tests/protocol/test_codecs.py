"""The codec laws over the whole table, and each codec's own error bound and refusals."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie import errors
from coterie.protocol.codecs import NO_STATE, Keys, Shape, choose, parse

KEYS = Keys.of(task="task_1", plan="plan-1", base="base-1", section="delta")
CODECS = {name: parse(name) for name in ("float32", "float16", "int8", "float64")}
names = st.sampled_from(sorted(CODECS))
segment_lists = st.lists(st.integers(1, 7), min_size=1, max_size=5)


@st.composite
def vectors(draw: st.DrawFn) -> tuple[list[int], np.ndarray[Any, np.dtype[np.float32]]]:
    """Segments and a float32 vector that every codec can hold."""
    segments = draw(segment_lists)
    numbers = st.floats(-60_000, 60_000, width=32)
    return segments, np.array(draw(st.lists(numbers, min_size=sum(segments), max_size=sum(segments))), np.float32)


@given(names, vectors(), st.data())
def test_a_streamed_decode_equals_the_slice_of_a_full_one(name: str, given_vector: Any, data: st.DataObject) -> None:
    segments, vector = given_vector
    codec = CODECS[name]
    payload = codec.encode(vector, KEYS, Shape.flat(*segments), NO_STATE)[0]
    assert codec.min_bytes(Shape.flat(*segments)) <= len(payload) <= codec.max_bytes(Shape.flat(*segments))
    whole = codec.decode(payload, KEYS, Shape.flat(*segments), 0, vector.size)
    assert whole.dtype == codec.dtype and whole.shape == vector.shape and np.isfinite(whole).all()
    start = data.draw(st.integers(0, vector.size))
    stop = data.draw(st.integers(start, vector.size))
    part = codec.decode(lambda low, high: payload[low:high], KEYS, Shape.flat(*segments), start, stop)
    assert part.tobytes() == whole[start:stop].tobytes()
    assert codec.encode(vector, KEYS, Shape.flat(*segments), NO_STATE)[0] == payload


@given(names, vectors())
def test_encoding_what_was_decoded_loses_nothing_more(name: str, given_vector: Any) -> None:
    segments, vector = given_vector
    codec = CODECS[name]
    once = codec.decode(
        codec.encode(vector, KEYS, Shape.flat(*segments), NO_STATE)[0], KEYS, Shape.flat(*segments), 0, vector.size
    )
    twice = codec.decode(
        codec.encode(once, KEYS, Shape.flat(*segments), NO_STATE)[0], KEYS, Shape.flat(*segments), 0, vector.size
    )
    np.testing.assert_allclose(twice, once, rtol=1e-6, atol=0)


@given(vectors())
def test_the_error_of_each_codec_is_bounded_as_documented(given_vector: Any) -> None:
    segments, vector = given_vector

    def error(name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        codec = CODECS[name]
        decoded = codec.decode(
            codec.encode(vector, KEYS, Shape.flat(*segments), NO_STATE)[0], KEYS, Shape.flat(*segments), 0, vector.size
        )
        return np.abs(decoded.astype(np.float64) - vector)

    assert not error("float32").any() and not error("float64").any()
    assert (error("float16") <= np.maximum(np.abs(vector.astype(np.float64)) * 2.0**-11, 2.0**-25)).all()
    starts = np.cumsum([0, *segments])
    largest = np.repeat([np.abs(vector[a:b]).max() for a, b in zip(starts, starts[1:], strict=False)], segments)
    assert (error("int8") <= 0.50002 * largest.astype(np.float64) / 127 + 127 * 2.0**-149).all()


def test_int8_scales_each_segment_on_its_own() -> None:
    codec = CODECS["int8"]
    vector = np.array([127, -64, 0.5, 0, 1.27e-3, -0.635e-3], np.float32)
    payload = codec.encode(vector, KEYS, Shape.flat(4, 2), NO_STATE)[0]
    assert np.frombuffer(payload[:8], "<f4").tolist() == [1.0, np.float32(np.float32(1.27e-3) / np.float32(127))]
    assert np.frombuffer(payload[8:], np.int8).tolist() == [127, -64, 0, 0, 127, -64]


def test_int8_of_zeros_and_of_the_tiniest_numbers_is_zero() -> None:
    vector = np.array([0, -0.0, 1e-45, -1e-45], np.float32)
    codec = CODECS["int8"]
    assert codec.decode(
        codec.encode(vector, KEYS, Shape.flat(2, 2), NO_STATE)[0], KEYS, Shape.flat(2, 2), 0, 4
    ).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("name", sorted(CODECS))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_encode_refuses_what_is_not_finite(name: str, bad: float) -> None:
    with pytest.raises(errors.UpdateRefused, match=r"Element 1 is .*; 1 of 3") as caught:
        CODECS[name].encode(np.array([0, bad, 2], np.float32), KEYS, Shape.flat(3), NO_STATE)
    assert caught.value.reason == "not_finite"


@pytest.mark.parametrize("name", sorted(CODECS))
@pytest.mark.parametrize("vector", [np.zeros(2, np.float32), np.zeros((3, 1), np.float32), np.zeros(3, np.int32)])
def test_encode_refuses_another_length_or_kind(name: str, vector: Any) -> None:
    with pytest.raises(errors.UpdateRefused) as caught:
        CODECS[name].encode(vector, KEYS, Shape.flat(3), NO_STATE)
    assert caught.value.reason == "wrong_length"


@pytest.mark.parametrize(
    ("name", "value"),
    [("float16", 65520.0), ("float16", -1e30), ("int8", 3.4028234663852886e38), ("float32", 1e39), ("int8", 1e39)],
)
def test_overflow_is_refused_and_never_saturated(name: str, value: float) -> None:
    with pytest.raises(errors.UpdateRefused) as caught:
        CODECS[name].encode(np.array([1.0, value]), KEYS, Shape.flat(2), NO_STATE)
    assert caught.value.reason == "out_of_range"


def test_float16_keeps_the_largest_number_it_has() -> None:
    codec = CODECS["float16"]
    payload = codec.encode(np.array([65519.0, -65504.0], np.float32), KEYS, Shape.flat(2), NO_STATE)[0]
    assert codec.decode(payload, KEYS, Shape.flat(2), 0, 2).tolist() == [65504.0, -65504.0]


@pytest.mark.parametrize("name", sorted(CODECS))
def test_a_short_payload_is_truncated(name: str) -> None:
    codec = CODECS[name]
    payload = codec.encode(np.ones(4, np.float32), KEYS, Shape.flat(4), NO_STATE)[0]
    with pytest.raises(errors.UpdateRefused) as caught:
        codec.decode(payload[:-1], KEYS, Shape.flat(4), 0, 4)
    assert caught.value.reason == "truncated"


@pytest.mark.parametrize(
    ("scale", "level", "code"),
    [(np.nan, 1, "not_finite"), (np.inf, 1, "not_finite"), (-1.0, 1, "malformed"), (1.0, -128, "malformed")],
)
def test_int8_refuses_bytes_that_no_encoder_writes(scale: float, level: int, code: str) -> None:
    payload = np.array([scale], "<f4").tobytes() + np.array([level], np.int8).tobytes()
    with pytest.raises(errors.UpdateRefused) as caught:
        CODECS["int8"].decode(payload, KEYS, Shape.flat(1), 0, 1)
    assert caught.value.reason == code


@given(names, st.binary(max_size=64), segment_lists)
def test_any_payload_decodes_or_is_refused(name: str, payload: bytes, segments: list[int]) -> None:
    length = sum(segments)
    try:
        assert CODECS[name].decode(payload, KEYS, Shape.flat(*segments), 0, length).size == length
    except errors.UpdateRefused as error:
        assert error.reason in ("truncated", "malformed", "not_finite")


def test_codecs_are_found_by_name() -> None:
    assert parse("int8") is CODECS["int8"]
    with pytest.raises(errors.InputError, match="There is no codec") as caught:
        parse("gzip")
    assert caught.value.reason == "unknown_codec"


def test_a_client_takes_the_first_codec_it_has_and_never_float64() -> None:
    assert choose(["eden:4", "int8", "float16"]) == "int8"
    assert choose(["int8", "float16"], have=["float16", "float32"]) == "float16"
    assert choose(["eden:4"]) == choose([]) == choose(["float64"]) == "float32"
