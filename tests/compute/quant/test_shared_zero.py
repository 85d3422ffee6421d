"""One zero for all channels of a convolution's weight: known cases, its laws, and the files that have it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, numpy_helper

from coterie.compute import jit, nn
from coterie.compute.array import Array
from coterie.compute.ir import NDArray
from coterie.compute.quant import QuantSettings, qat, quantise
from coterie.compute.quant.affine import Affine, affine, extremes
from coterie.compute.quant.shared_zero import affine_of_channels, shared_zero
from coterie.errors import InputError
from tests.compute.quant.graphs import small_cnn, stripes

ASYMMETRIC = QuantSettings(weights="asymmetric")
NUMBERS = st.floats(-1e6, 1e6, width=32).map(lambda x: 0.0 if abs(x) < 1e-30 else x)


def channels(values: list[float], count: int) -> NDArray:
    return np.resize(np.asarray(values, np.float32), (count, max(len(values) // count, 1)))


def levels_of(weight: NDArray, bits: int = 8) -> Affine:
    return affine_of_channels(*extremes(weight, 0), bits=bits, axis=0)


# Ranges of the channels, the zero, and scales, by hand. R and L are the largest shares below and above 0.
KNOWN: list[tuple[list[tuple[float, float]], float, list[float]]] = [
    ([(-1, 1)], 128, [2 / 255]),  # 127.5, to the even one
    ([(0, 255)], 0, [1]),
    ([(-255, 0)], 255, [1]),
    ([(-51, 204), (-5.1, 20.4)], 51, [1, 0.1]),  # shares alike: nothing is lost
    ([(-1, 1), (-1, 3)], 102, [1 / 102.5, 3 / 153.5]),  # R = 1/2, L = 3/4, ζ = 2/5
    ([(-255, 0), (0, 255)], 128, [255 / 128.5, 255 / 127.5]),  # the worst case: one bit
    ([(-51, 204), (0, 0)], 51, [1, 1]),  # a channel of zeros says nothing
    ([(0, 0), (0, 0)], 0, [1, 1]),
]


@pytest.mark.capability("G8")
@pytest.mark.parametrize(("ranges", "zero", "scales"), KNOWN)
def test_known_zeros(ranges: list[tuple[float, float]], zero: float, scales: list[float]) -> None:
    low, high = np.asarray(ranges, np.float32).T
    levels = affine_of_channels(low, high, axis=0)
    assert levels.zero.tolist() == [zero] * len(ranges) and (levels.form, levels.axis) == ("asymmetric", 0)
    np.testing.assert_allclose(levels.scale, scales, rtol=1e-6)


@pytest.mark.capability("G8")
@settings(max_examples=150)
@given(
    values=st.lists(NUMBERS, min_size=1, max_size=40), count=st.integers(1, 6), bits=st.sampled_from([2, 3, 4, 7, 8])
)
@example(values=[1e-3, -1.0, 1.0, 1.0], count=2, bits=2)
def test_every_number_of_every_channel_comes_back_within_half_a_level(
    values: list[float], count: int, bits: int
) -> None:
    weight = channels(values, count)
    levels = levels_of(weight, bits)
    assert len(set(levels.zero.tolist())) == 1 and 0 <= levels.zero[0] <= levels.high
    error = np.abs(levels.round_trip(weight) - weight)
    assert (error <= levels.scale[:, None] * 0.5 + np.abs(weight) * 2e-6).all()
    assert (levels.round_trip(np.zeros_like(weight)) == 0).all(), "0 is exact"


@pytest.mark.capability("G8")
@settings(max_examples=150)
@given(values=st.lists(NUMBERS, min_size=2, max_size=40), count=st.integers(1, 6), bits=st.sampled_from([2, 4, 8]))
def test_no_scale_is_above_the_bound_and_no_share_has_a_lower_one(values: list[float], count: int, bits: int) -> None:
    weight = channels(values, count)
    levels = levels_of(weight, bits)
    low, high = (np.asarray(end, np.float64) for end in (np.minimum(weight.min(1), 0), np.maximum(weight.max(1), 0)))
    wide = high > low
    if not wide.any():
        assert (levels.scale == 1).all()
        return
    finest, below = (high - low)[wide] / levels.high, (-low / np.where(wide, high - low, 1))[wide]
    bound = below.max() + (1 - below).max()
    assert 1 <= bound <= 2 and (levels.scale[wide] <= bound * finest * (1 + 1e-5)).all()
    assert (levels.scale[wide] >= finest * (1 - 1e-5)).all()
    shares = np.linspace(0.001, 0.999, 999)[:, None]
    assert np.maximum(below / shares, (1 - below) / (1 - shares)).max(1).min() >= bound - 1e-9


@settings(max_examples=60)
@given(values=st.lists(NUMBERS, min_size=1, max_size=20), bits=st.sampled_from([2, 4, 8]))
def test_one_channel_has_the_levels_that_it_has_alone(values: list[float], bits: int) -> None:
    low, high = extremes(channels(values, 1), 0)
    shared, own = affine_of_channels(low, high, bits=bits, axis=0), affine(low, high, bits=bits, form="asymmetric")
    np.testing.assert_allclose(shared.scale, own.scale, rtol=1e-6)
    assert abs(int(shared.zero[0]) - int(own.zero[0])) <= 1, "apart where rounding is at a half"


def test_training_has_the_bits_of_the_file() -> None:
    rng = np.random.default_rng(0)

    @jit
    def traced(low: Array, high: Array) -> tuple[Array, Array]:
        return shared_zero(low, high, 255)

    for _ in range(20):
        weight = (rng.normal(rng.normal(), 1, (8, 9)) * np.exp(rng.normal(0, 3, (8, 1)))).astype(np.float32)
        low, high = np.minimum(weight.min(1), 0), np.maximum(weight.max(1), 0)
        scale, zero = traced(Array(low), Array(high))
        levels = levels_of(weight)
        np.testing.assert_array_equal(scale.numpy(), levels.scale)
        np.testing.assert_array_equal(zero.numpy(), levels.zero)


def test_a_layer_in_training_computes_with_the_levels_of_the_file() -> None:
    layer = nn.Conv2d(2, 5, 3, bias=False)
    params = layer.init(1)
    weight = params["weight"] + np.linspace(-0.1, 0.1, 5, dtype=np.float32)[:, None, None, None]
    x = np.random.default_rng(0).normal(size=(3, 2, 6, 6)).astype(np.float32)
    aware = qat(nn.Sequential(layer), QuantSettings(weights="asymmetric", activations=None))
    found = aware({"0.weight": Array(weight)}, Array(x)).numpy()
    np.testing.assert_array_equal(
        found, layer({"weight": Array(levels_of(weight).round_trip(weight))}, Array(x)).numpy()
    )


@pytest.mark.capability("G7")
@pytest.mark.parametrize("activations", ["asymmetric", "symmetric", None])
def test_convolutions_of_a_file_have_one_zero_and_products_their_own(activations: Any) -> None:
    model, _, _ = small_cnn(100)
    chosen = QuantSettings(weights="asymmetric", activations=activations)
    graph = ModelProto.FromString(quantise(model, [{"x": stripes(100, 2)["x"]}], chosen)).graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    zeros: dict[str, list[int]] = {"Conv": [], "Gemm": []}
    made = {node.output[0]: node for node in graph.node}
    for node in graph.node:
        if node.op_type in zeros:
            zero = constants[made[node.input[1]].input[2]]
            assert zero.dtype == np.int8 and zero.ndim == 1
            zeros[node.op_type].append(len(set(zero.tolist())))
    assert zeros["Conv"] == [1, 1] and min(zeros["Gemm"]) > 1


def test_ranges_that_cannot_be_are_refused() -> None:
    one = np.ones(2, np.float32)
    with pytest.raises(InputError, match="lower one first"):
        affine_of_channels(2 * one, one, axis=0)
    with pytest.raises(InputError, match="two finite numbers"):
        affine_of_channels(one, np.inf * one, axis=0)
    with pytest.raises(InputError, match="from 2 to 8"):
        affine_of_channels(-one, one, bits=9, axis=0)
