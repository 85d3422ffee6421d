"""How the numbers of a cut are written: what comes back, in how many bytes, and what is refused."""

from typing import Any

import numpy as np
import pytest

from coterie.errors import InputError
from coterie.protocol.conversion import from_json, to_json
from coterie.protocol.cut import CutPolicy, EmbeddingNoise, GradientNoise, RandomisedLabels
from coterie.protocol.cut_tensors import bytes_of, form_of, read, types_of, written
from coterie.randomness import seed_of, uniforms

FORMS = ("float32", "float16", *(f"int{bits}" for bits in range(1, 9)), "topk:0.25", "topk:1")


def some(rows: int, width: int) -> Any:
    """Numbers of a batch."""
    return np.random.Generator(np.random.PCG64(5)).normal(size=(rows, width)).astype(np.float32)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("shape", [(7, 3), (1, 1), (5, 300), (4, 2, 3)])
def test_what_is_written_has_the_types_and_bytes_that_are_told(name: str, shape: tuple[int, ...]) -> None:
    values = some(shape[0], int(np.prod(shape[1:]))).reshape(shape)
    sent = written(name, "embedding", values, None)
    assert {key: (each.dtype.name, each.shape) for key, each in sent.items()} == types_of(name, "embedding", shape)
    assert sum(each.nbytes for each in sent.values()) == bytes_of(name, shape)
    back = read(name, "embedding", sent, shape)
    assert back.shape == shape and back.dtype == np.float32


def test_no_number_is_further_off_than_its_form_says() -> None:
    values = some(40, 6)
    spread = float(values.max() - values.min())
    for bits in range(1, 9):
        back = read(f"int{bits}", "k", written(f"int{bits}", "k", values, None), values.shape)
        step = spread / (2**bits - 1)
        assert np.abs(back - values).max() <= step / 2 * (1 + 1e-5)
        assert len(np.unique(back)) <= 2**bits
        # The ends of the range are levels themselves.
        assert back.max() == values.max() and back.min() == values.min()
    for name in ("float32", "topk:1"):
        np.testing.assert_array_equal(read(name, "k", written(name, "k", values, None), values.shape), values)
    half = read("float16", "k", written("float16", "k", values, None), values.shape)
    np.testing.assert_array_equal(half, values.astype(np.float16).astype(np.float32))


def test_bytes_fall_with_the_bits() -> None:
    shape = (64, 16)
    sizes = [bytes_of(name, shape) for name in ("float32", "float16", "int8", "int4", "int2", "int1")]
    assert sizes == [4096, 2048, 1032, 520, 264, 136]
    assert bytes_of("topk:0.25", shape) == 64 * 4 * (4 + 1)


@pytest.mark.parametrize("bits", [1, 3])
def test_rounding_at_random_is_right_on_average(bits: int) -> None:
    values, name, turns = some(8, 4), f"int{bits}", 4000
    total = np.zeros(values.shape)
    for turn in range(turns):
        seed = seed_of("rounding", str(turn))
        total += read(name, "k", written(name, "k", values, lambda count, s=seed: uniforms(s, 0, count)), values.shape)
    step = float(values.max() - values.min()) / (2**bits - 1)
    # Five standard errors of the mean of numbers at most a step apart.
    assert np.abs(total / turns - values).max() < 5 * step / 2 / turns**0.5


def test_the_largest_of_each_row_are_kept_with_their_places() -> None:
    values = np.array([[1, -3, 2, 3], [0, 0, 0, 0]], np.float32)
    sent = written("topk:0.5", "k", values, None)
    assert sent["k/places"].tolist() == [[1, 3], [0, 1]] and sent["k/places"].dtype == np.uint8
    np.testing.assert_array_equal(read("topk:0.5", "k", sent, values.shape), [[0, -3, 0, 3], [0, 0, 0, 0]])
    # Of 0.29 · 100 the float is above 29.
    assert types_of("topk:0.29", "k", (1, 100))["k"] == ("float32", (1, 29))
    assert types_of("topk:0.5", "k", (1, 300))["k/places"][0] == "uint16"
    assert types_of("topk:0.5", "k", (1, 70_000))["k/places"][0] == "int32"


def test_equal_numbers_have_one_level() -> None:
    values = np.full((3, 2), 0.1, np.float32)
    np.testing.assert_array_equal(read("int4", "k", written("int4", "k", values, None), values.shape), values)


LEVELS: dict[str, Any] = {"k": np.zeros(3, np.uint8), "k/range": np.array([0, 1], np.float32)}
PLACES: dict[str, Any] = {"k": np.ones((1, 2), np.float32), "k/places": np.array([[0, 1]], np.uint8)}


@pytest.mark.parametrize(
    ("name", "shape", "tensors"),
    [
        ("int8", (3, 1), {**LEVELS, "k/range": np.array([1, 0], np.float32)}),
        ("int8", (3, 1), {**LEVELS, "k/range": np.array([0, np.inf], np.float32)}),
        ("int8", (3, 1), {**LEVELS, "k/range": np.array([np.nan, 1], np.float32)}),
        ("int4", (5, 1), {**LEVELS, "k": np.array([0, 0, 0xF0], np.uint8)}),
        ("topk:0.5", (1, 4), {**PLACES, "k/places": np.array([[1, 1]], np.uint8)}),
        ("topk:0.5", (1, 4), {**PLACES, "k/places": np.array([[2, 1]], np.uint8)}),
        ("topk:0.5", (1, 4), {**PLACES, "k/places": np.array([[0, 4]], np.uint8)}),
        ("topk:0.5", (1, 4), {**PLACES, "k/places": np.array([[-1, 1]], np.int32)}),
    ],
)
def test_tensors_that_nobody_writes_are_refused(name: str, shape: tuple[int, ...], tensors: dict[str, Any]) -> None:
    with pytest.raises(InputError) as refused:
        read(name, "k", tensors, shape)
    assert refused.value.reason == "malformed"


def test_what_float16_cannot_hold_is_refused() -> None:
    assert np.isfinite(written("float16", "k", np.full((1, 1), 65519.0), None)["k"]).all()
    with pytest.raises(InputError) as refused:
        written("float16", "k", np.full((1, 1), -65520.0), None)
    assert refused.value.reason == "out_of_range"


@pytest.mark.parametrize(
    "name", ["", "int0", "int9", "int10", "INT8", "int8 ", "topk", "topk:0", "topk:0.0", "topk:1.5", "bfloat16"]
)
def test_a_form_that_is_not_in_the_table_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="one of float32"):
        form_of(name)
    with pytest.raises(InputError) as refused:
        CutPolicy(compression=name)
    assert refused.value.reason == "message_invalid"


@pytest.mark.parametrize(
    "make",
    [
        lambda: EmbeddingNoise(clip=0.0, deviation=1.0),
        lambda: EmbeddingNoise(clip=1.0, deviation=float("inf")),
        lambda: GradientNoise(kind="none"),  # pyright: ignore[reportArgumentType]
        lambda: GradientNoise(kind="gaussian", scale=-1.0),
        lambda: RandomisedLabels(epsilon=0.0),
    ],
)
def test_a_protection_that_cannot_be_is_refused(make: Any) -> None:
    with pytest.raises(InputError) as refused:
        make()
    assert refused.value.reason == "message_invalid"


def test_a_policy_is_its_json_and_says_nothing_where_nothing_is_done() -> None:
    assert to_json(CutPolicy()) == {} and CutPolicy().does_nothing
    whole = CutPolicy(
        compression="int4",
        embedding=EmbeddingNoise(clip=1.0, deviation=0.5),
        gradient=GradientNoise(kind="marvell"),
        label=RandomisedLabels(epsilon=2.0),
    )
    assert from_json(CutPolicy, to_json(whole), code="x") == whole and not whole.does_nothing
