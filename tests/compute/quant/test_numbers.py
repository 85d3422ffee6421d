"""Numbers as levels: the laws of linear quantisation, against ONNX Runtime's own, and of codebooks."""

from typing import Any, cast

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from coterie.compute.ir import NDArray
from coterie.compute.quant.affine import Affine, affine, asymmetric, symmetric
from coterie.compute.quant.codebook import kmeans
from coterie.errors import InputError

FORMS = {"symmetric": symmetric, "asymmetric": asymmetric}
NUMBERS = st.floats(-1e6, 1e6, width=32).map(lambda x: 0.0 if abs(x) < 1e-30 else x)


def tensor(values: list[float], columns: int) -> NDArray:
    return np.resize(np.asarray(values, np.float32), (max(len(values) // columns, 1), columns))


@pytest.mark.capability("G7")
@settings(max_examples=80)
@given(
    values=st.lists(NUMBERS, min_size=1, max_size=40),
    bits=st.integers(2, 8),
    form=st.sampled_from(sorted(FORMS)),
    axis=st.sampled_from([None, 0, 1, -1]),
)
def test_a_number_comes_back_within_half_a_level(values: list[float], bits: int, form: str, axis: int | None) -> None:
    x = tensor(values, 3)
    levels = FORMS[form](x, bits, axis)
    back = levels.round_trip(x)
    scale = np.broadcast_to(
        levels.scale if axis is None else levels.scale.reshape((-1, 1) if axis == 0 else (1, -1)), x.shape
    )
    assert (np.abs(back - x) <= scale * 0.5 + np.abs(x) * 2e-6).all()
    assert (levels.round_trip(back) == back).all(), "what stands for a level is its own level"
    assert (levels.round_trip(np.zeros_like(x)) == 0).all(), "0 is exact"
    order = np.argsort(x, axis=None)
    if axis is None:
        assert (np.diff(levels.quantise(x).reshape(-1)[order].astype(int)) >= 0).all(), "the order is kept"
    assert levels.low <= levels.quantise(x).min() and levels.quantise(x).max() <= levels.high
    if form == "symmetric":
        assert (levels.zero == 0).all() and (levels.quantise(-x) == -levels.quantise(x)).all()


@pytest.mark.capability("G7")
@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize("axis", [None, 0])
def test_the_arithmetic_is_that_of_the_runtime_bit_for_bit(form: str, axis: int | None) -> None:
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(16, 500)) * rng.uniform(0.1, 30, (16, 1))).astype(np.float32)
    levels = FORMS[form](x, 8, axis)
    # Halves between levels, where another way of rounding would show, and numbers outside of the range.
    wide = np.concatenate([x * 1.3, (np.arange(500) - 250 + 0.5) * levels.scale.reshape(-1, 1) * np.ones((16, 1))], 1)
    found = runtime(levels, wide.astype(np.float32))
    # A runtime's int8 has one level more below, which symmetric ranges leave unused.
    own = found[0] > -128
    assert own.mean() > 0.8
    np.testing.assert_array_equal(found[0][own], levels.quantise(wide.astype(np.float32))[own])
    np.testing.assert_array_equal(found[1][own], levels.round_trip(wide.astype(np.float32))[own])
    assert (levels.quantise(wide.astype(np.float32))[~own] == -127).all()


def runtime(levels: Affine, x: NDArray) -> list[NDArray]:
    along = {} if levels.axis is None else {"axis": levels.axis}
    parts = {"scale": levels.scale, "zero": levels.zero.astype(levels.dtype)}
    code = TensorProto.INT8 if levels.form == "symmetric" else TensorProto.UINT8
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], **cast(Any, along)),
            helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], **cast(Any, along)),
        ],
        "both ways",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [
            helper.make_tensor_value_info("q", code, x.shape),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape),
        ],
        [numpy_helper.from_array(value, name) for name, value in parts.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return cast(Any, onnxruntime).InferenceSession(model.SerializeToString()).run(None, {"x": x})


@pytest.mark.parametrize(("low", "high"), [(-1.0, 3.0), (0.0, 6.0), (-7.5, -2.0), (-0.25, 0.5)])
def test_scales_and_zeros_are_those_of_the_runtimes_own_tools(low: float, high: float) -> None:
    from onnxruntime.quantization import quant_utils  # pyright: ignore[reportMissingTypeStubs]

    tools = cast(Any, quant_utils)
    ends = [np.asarray(end, np.float32) for end in (min(low, 0.0), max(high, 0.0))]
    for form, bounds in (("asymmetric", (0, 255)), ("symmetric", (-127, 127))):
        mine = affine(np.asarray(low), np.asarray(high), form=cast(Any, form))
        zero, scale = tools.compute_scale_zp(
            *ends, *(np.asarray(bound, np.uint8 if form == "asymmetric" else np.int8) for bound in bounds),
            symmetric=form == "symmetric",
        )  # fmt: skip
        np.testing.assert_allclose(mine.scale, scale, rtol=1e-6)
        assert int(mine.zero) == int(zero)


@pytest.mark.capability("G8")
@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_scale_for_each_channel_errs_less_on_channels_of_different_size(form: str, bits: int) -> None:
    rng = np.random.default_rng(0)
    weight = (rng.normal(size=(8, 60)) * np.logspace(-3, 1, 8)[:, None]).astype(np.float32)

    def error(axis: int | None) -> NDArray:
        return np.square(FORMS[form](weight, bits, axis).round_trip(weight) - weight).mean(1)

    assert (error(0) <= error(None) + 1e-12).all() and error(0).sum() < error(None).sum()
    if bits == 8:
        assert (error(0)[:4] < 2e-2 * error(None)[:4]).all(), "small channels are lost under the scale of large ones"


@pytest.mark.capability("G7")
@settings(max_examples=60)
@given(values=st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=60), bits=st.integers(2, 4))
def test_a_codebook_errs_no_more_than_levels_at_equal_distances(values: list[float], bits: int) -> None:
    x = np.asarray(values, np.float32)
    book = kmeans(x, bits)
    even = np.linspace(x.min(), x.max(), 1 << bits, dtype=np.float64)
    nearest = even[np.abs(x[:, None] - even).argmin(1)]
    error = np.square(book.dequantise() - x.astype(np.float64)).sum()
    assert error <= np.square(nearest - x).sum() * (1 + 1e-5) + 1e-7
    assert len(book.centroids) <= 1 << bits and (np.diff(book.centroids) >= 0).all()
    every = np.abs(x[:, None].astype(np.float64) - book.centroids)
    assert (every.min(1) >= np.abs(book.dequantise() - x.astype(np.float64)) - 1e-9).all(), "each code is the nearest"


@pytest.mark.capability("G7")
def test_a_codebook_keeps_few_values_exactly_and_beats_a_line_where_weights_gather() -> None:
    few = np.array([[0.5, -2.0], [0.5, 7.25]], np.float32)
    np.testing.assert_array_equal(kmeans(few, 2).dequantise(), few)
    rng = np.random.default_rng(1)
    weights = (rng.normal(size=5000) ** 3).astype(np.float32)  # many small ones, a few large
    error = np.square(kmeans(weights, 4).dequantise() - weights).mean()
    assert error < 0.5 * np.square(asymmetric(weights, 4).round_trip(weights) - weights).mean()
    again = kmeans(weights.copy(), 4)
    assert again.centroids.tobytes() == kmeans(weights, 4).centroids.tobytes()


@pytest.mark.parametrize("make", [symmetric, asymmetric, kmeans])
@pytest.mark.parametrize(
    ("x", "named"),
    [
        (np.array([1.0, np.nan], np.float32), "NaN"),
        (np.array([1.0, np.inf], np.float32), "infinity"),
        (np.zeros((0, 3), np.float32), "at least one element"),
        (np.array([1, 2]), "floats"),
        ([1.0, 2.0], "list"),
    ],
)
def test_what_cannot_be_quantised_is_refused_by_name(make: Any, x: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        make(x)


def test_bits_axes_and_ranges_that_do_not_exist_are_refused() -> None:
    x = np.ones((2, 3), np.float32)
    for bits in (1, 9, 4.0, True):
        with pytest.raises(InputError, match="from 2 to 8"):
            symmetric(x, cast(Any, bits))
    with pytest.raises(InputError, match="no axis 2"):
        asymmetric(x, 8, 2)
    with pytest.raises(InputError, match="lower one first"):
        affine(np.asarray(2.0), np.asarray(1.0), form="asymmetric")


def test_weights_that_are_all_zero_or_tiny_have_levels_too() -> None:
    for value in (0.0, 1e-44, 1e-38):
        x = np.full((2, 3), value, np.float32)
        for make in FORMS.values():
            back = make(x, 8, 0).round_trip(x)
            assert np.isfinite(back).all() and np.abs(back - x).max() <= max(value, 1e-37)
