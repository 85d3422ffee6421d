"""The codec laws over a table of codecs, and what is particular to the plain ones."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import errors
from coterie.protocol.codecs import FAMILIES, NO_STATE, Codec, Keys, Shape, choose, families, parse
from coterie.protocol.codecs.grid import Grid
from coterie.protocol.codecs.table import unfit, varying

KEYS = Keys.of(task="task_1", plan="plan-1", base="base-1", section="delta")
NAMES = (
    "float32", "float16", "bfloat16", "float64", "int8", "int8:channel", "int8+rice", "int8:channel+rice", "int8+ef",
    "topk:0.1", "topk:1", "topk:0.25+ef", "randk:0.5", "randk:0.01", "qsgd:2", "qsgd:4", "qsgd:8", "qsgd:3+rice",
    "terngrad", "terngrad+rice", "round:0.01", "round:1", "sign", "sign+ef", "eden:1", "eden:2", "eden:3", "eden:4",
    "eden:6", "eden:7", "eden:8",
    "eden:2:biased", "eden:4:biased+ef", "drive", "drive+ef", "rotate+grid:1", "rotate+grid:4",
    "rotate+grid:6", "rotate+grid:8:2.5", "rotate+grid:11", "rotate+grid:16", "powersgd:1", "powersgd:2+ef",
    "diff_sparse_quant", "diff_sparse_quant:0.9",
)  # fmt: skip
CODECS: dict[str, Codec] = {name: parse(name) for name in NAMES}
PLAIN = ("float32", "float16", "bfloat16", "float64")
names = st.sampled_from(NAMES)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """A few segments, some of them matrices; now and then longer than any codec's block."""
    rows = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    widths = [draw(st.integers(1, 9)) for _ in rows]
    if draw(st.integers(0, 9)) == 0:
        widths[-1] = draw(st.sampled_from([4096, 4100, 70_000])) // rows[-1]
    return Shape(tuple(r * w for r, w in zip(rows, widths, strict=True)), tuple(rows))


@st.composite
def vectors(draw: st.DrawFn) -> tuple[Shape, np.ndarray[Any, np.dtype[np.float32]]]:
    """A shape and a float32 vector that every codec can hold."""
    shape = draw(shapes())
    if shape.length > 200:
        generator = np.random.default_rng(draw(st.integers(0, 2**32)))
        return shape, generator.standard_normal(shape.length).astype(np.float32)
    numbers = st.floats(-60_000, 60_000, width=32)
    return shape, np.array(draw(st.lists(numbers, min_size=shape.length, max_size=shape.length)), np.float32)


def encoded(name: str, vector: Any, shape: Shape) -> bytes:
    return CODECS[name].encode(vector, KEYS, shape, NO_STATE)[0]


def decoded(name: str, payload: Any, shape: Shape) -> np.ndarray[Any, np.dtype[Any]]:
    return CODECS[name].decode(payload, KEYS, shape, 0, shape.length)


@settings(max_examples=300)
@given(names, vectors(), st.data())
def test_a_streamed_decode_equals_the_slice_of_a_full_one(name: str, given_vector: Any, data: st.DataObject) -> None:
    shape, vector = given_vector
    codec = CODECS[name]
    payload, state = codec.encode(vector, KEYS, shape, NO_STATE)
    assert codec.min_bytes(shape) <= len(payload) <= codec.max_bytes(shape)
    assert bool(state) <= codec.stateful and all(value.dtype == np.float32 for value in state.values())
    whole = decoded(name, payload, shape)
    assert whole.dtype == codec.dtype and whole.shape == vector.shape and np.isfinite(whole).all()
    start = data.draw(st.integers(0, vector.size))
    stop = data.draw(st.integers(start, vector.size))
    part = codec.decode(lambda low, high: payload[low:high], KEYS, shape, start, stop)
    assert part.tobytes() == whole[start:stop].tobytes()
    again, same = codec.encode(vector, KEYS, shape, NO_STATE)
    assert again == payload and all(same[key].tobytes() == value.tobytes() for key, value in state.items())


@given(st.sampled_from([*PLAIN, "int8", "int8:channel", "int8+rice", "topk:0.1", "topk:1"]), vectors())
def test_encoding_what_was_decoded_loses_nothing_more(name: str, given_vector: Any) -> None:
    shape, vector = given_vector
    once = decoded(name, encoded(name, vector, shape), shape)
    twice = decoded(name, encoded(name, once, shape), shape)
    np.testing.assert_allclose(twice, once, rtol=1e-6, atol=0)


@given(vectors())
def test_the_error_of_each_plain_codec_is_bounded_as_documented(given_vector: Any) -> None:
    shape, vector = given_vector

    def error(name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.abs(decoded(name, encoded(name, vector, shape), shape).astype(np.float64) - vector)

    magnitudes = np.abs(vector.astype(np.float64))
    assert not error("float32").any() and not error("float64").any() and not error("topk:1").any()
    assert (error("float16") <= np.maximum(magnitudes * 2.0**-11, 2.0**-25)).all()
    assert (error("bfloat16") <= np.maximum(magnitudes * 2.0**-8, 2.0**-133)).all()
    for name, runs in (("int8", [1] * len(shape.rows)), ("int8:channel", shape.rows)):
        largest = np.concatenate(
            [
                np.repeat(magnitudes[a:b].reshape(rows, -1).max(axis=1), (b - a) // rows)
                for (a, b), rows in zip(shape.bounds, runs, strict=True)
            ]
        )
        assert (error(name) <= 0.50002 * largest / 127 + 127 * 2.0**-149).all()
        assert (error(f"{name}+rice") == error(name)).all()


def test_int8_scales_each_segment_on_its_own() -> None:
    vector = np.array([127, -64, 0.5, 0, 1.27e-3, -0.635e-3], np.float32)
    payload = encoded("int8", vector, Shape.flat(4, 2))
    assert np.frombuffer(payload[:8], "<f4").tolist() == [1.0, np.float32(np.float32(1.27e-3) / np.float32(127))]
    assert np.frombuffer(payload[8:], np.int8).tolist() == [127, -64, 0, 0, 127, -64]


def test_int8_by_channel_scales_each_row_on_its_own() -> None:
    vector = np.array([127, -64, 1.27, 0.64, 5], np.float32)
    payload = encoded("int8:channel", vector, Shape((4, 1), (2, 1)))
    assert np.frombuffer(payload[12:], np.int8).tolist() == [127, -64, 127, 64, 127]


def test_int8_of_zeros_and_of_the_tiniest_numbers_is_zero() -> None:
    vector, shape = np.array([0, -0.0, 1e-45, -1e-45], np.float32), Shape.flat(2, 2)
    assert decoded("int8", encoded("int8", vector, shape), shape).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("name", NAMES)
def test_zeros_stay_zeros(name: str) -> None:
    shape = Shape((130, 6), (1, 2))
    decoded_zeros = decoded(name, encoded(name, np.zeros(136, np.float32), shape), shape)
    # A grid with a public norm has no point at 0: it is unbiased around it.
    bound = 8.0 if name == "rotate+grid:8:2.5" else 0.0
    assert np.abs(decoded_zeros).max() <= bound


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_encode_refuses_what_is_not_finite(name: str, bad: float) -> None:
    with pytest.raises(errors.UpdateRefused, match=r"Element 1 is .*; 1 of 3") as caught:
        encoded(name, np.array([0, bad, 2], np.float32), Shape.flat(3))
    assert caught.value.reason == "not_finite"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("vector", [np.zeros(2, np.float32), np.zeros((3, 1), np.float32), np.zeros(3, np.int32)])
def test_encode_refuses_another_length_or_kind(name: str, vector: Any) -> None:
    with pytest.raises(errors.UpdateRefused) as caught:
        encoded(name, vector, Shape.flat(3))
    assert caught.value.reason == "wrong_length"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("float16", 65520.0), ("float16", -1e30), ("int8", 3.4028234663852886e38), ("bfloat16", 3.4028234663852886e38),
        ("randk:0.5", 3e38),
        *((name, 1e39) for name in NAMES if name != "float64"),
        *((name, 2e15) for name in ("eden:4", "drive", "rotate+grid:4", "powersgd:1")),
    ],
)  # fmt: skip
def test_overflow_is_refused_and_never_saturated(name: str, value: float) -> None:
    with pytest.raises(errors.UpdateRefused) as caught:
        encoded(name, np.array([1.0, value]), Shape.flat(2))
    assert caught.value.reason == "out_of_range"


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("eden", "drive", "rotate", "powersgd"))])
def test_a_magnitude_whose_square_overflows_is_refused_without_a_warning_before(name: str) -> None:
    with np.errstate(over="raise", invalid="raise"), pytest.raises(errors.UpdateRefused) as caught:
        encoded(name, np.array([1.0, 1e37, -3e38], np.float32), Shape.flat(3))
    assert caught.value.reason == "out_of_range"


def test_float16_keeps_the_largest_number_it_has() -> None:
    payload = encoded("float16", np.array([65519.0, -65504.0], np.float32), Shape.flat(2))
    assert decoded("float16", payload, Shape.flat(2)).tolist() == [65504.0, -65504.0]


def test_bfloat16_rounds_to_nearest_and_ties_to_even() -> None:
    vector = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -1.003, 1e-40, 3.3e38], np.float32)
    payload = encoded("bfloat16", vector, Shape.flat(6))
    assert np.frombuffer(payload, "<u2")[:3].tolist() == [0x3F80, 0x3F80, 0x3F82]
    np.testing.assert_allclose(decoded("bfloat16", payload, Shape.flat(6)), vector, rtol=2**-8, atol=2.0**-133)


@given(st.lists(st.sampled_from(NAMES), min_size=2, max_size=2, unique=True))
def test_seeds_of_an_update_its_round_and_its_sections_differ(pair: list[str]) -> None:
    def keys(**change: str) -> Keys:
        return Keys.of(**{"task": "t", "plan": "p", "base": "b", "section": "s"} | change)

    assert keys(task="u").own != keys().own and keys(task="u").shared == keys().shared
    assert keys(plan="q").shared != keys().shared and keys(base="q").shared != keys().shared
    assert keys(section=pair[0]) != keys(section=pair[1])
    assert keys(task="ab", section="c") != keys(task="a", section="bc")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_found_and_spelt_once(name: str) -> None:
    codec = parse(name)
    assert codec.name == name and parse(name) is codec
    assert families(name) <= set(FAMILIES)
    assert unfit([name]) == (("float64 (for sums only)",) if name == "float64" else ())


@pytest.mark.parametrize(
    "name",
    [
        "", "gzip", "float33", "int8:row", "int8:", "topk", "topk:", "topk:0", "topk:1.5", "topk:nan", "topk:-1",
        "topk:0.10", "topk:1e-2", "randk:0", "qsgd:1", "qsgd:9", "qsgd:4.0", "terngrad:2", "round:0", "round:1e9",
        "eden", "eden:0", "eden:9", "eden:4:", "eden:4:unbiased", "rotate", "grid:4", "rotate+grid", "rotate+grid:17",
        "rotate+grid:4:0", "rotate+grid:4:inf", "powersgd:0", "diff_sparse_quant:0.4", "ef", "randk:0.5+ef",
        "qsgd:4+ef", "topk:0.1+ef+ef", "topk:0.1+rice", "int8+rice+rice", "int8+zip", "topk:0.1+", "+ef",
        "topk:0." + "1" * 70, "topk: 0.1", "eden:４",
    ],
)  # fmt: skip
def test_what_is_no_codec_is_refused(name: str) -> None:
    with pytest.raises(errors.InputError, match="There is no codec") as caught:
        parse(name)
    assert caught.value.reason == "unknown_codec" and len(unfit([name])) == 1


def test_a_client_takes_the_first_codec_whose_families_it_has_and_never_float64() -> None:
    assert choose(["zip", "int8", "float16"]) == "int8"
    assert choose(["int8", "float16"], have=["float16", "float32"]) == "float16"
    assert choose(["topk:0.1+ef", "topk:0.1"], have=["topk", "float32"]) == "topk:0.1"
    assert choose(["rotate+grid:4", "eden:4"], have=["rotate", "eden"]) == "eden:4"
    assert choose(["zip:4"]) == choose([]) == choose(["float64"]) == "float32"
    # A later coordinator may know parameters of a family that this client cannot make.
    assert choose(["eden:9", "qsgd:16+rice", "int8"]) == "int8"


@pytest.mark.parametrize("norm", ["1e-15", "0.5", "999999", "1e6", "2.5e6", "1e15"])
def test_a_public_norm_of_any_size_can_be_spelled(norm: str) -> None:
    assert parse(f"rotate+grid:4:{norm}").name == f"rotate+grid:4:{norm}"
    assert parse(f"rotate+grid:4:{norm}") == Grid(4, float(norm))


@pytest.mark.parametrize("name", NAMES)
def test_the_table_knows_whose_sizes_depend_on_the_vector(name: str) -> None:
    shape = Shape.flat(4096, 64)
    spikes = np.zeros(shape.length, np.float32)
    spikes[::1000] = 1.0
    draws = np.random.default_rng(1).standard_normal((3, shape.length)).astype(np.float32)
    sizes = {len(encoded(name, vector, shape)) for vector in (np.zeros_like(spikes), spikes, *draws, draws[0] * 1e3)}
    assert len(sizes) == 1 or varying([name]) == (name,)


def test_unknown_codecs_are_not_looked_at_for_their_sizes() -> None:
    told = ["none", "float32", "int8", "int8+rice", "topk:0.1", "qsgd:2", "qsgd:2+rice", "round:0.01", "eden:4", "sign"]
    assert varying(told) == ("int8+rice", "topk:0.1", "qsgd:2+rice", "round:0.01")
