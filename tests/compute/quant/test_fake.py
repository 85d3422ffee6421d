"""Fake quantisation: the numbers of levels in every way of running, and gradients that pass straight through."""

from typing import Any

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
import pytest

from coterie.compute import TensorSpec, grad, jit, optimise, to_onnx, trace_named, vmap
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.ir import NDArray
from coterie.compute.quant import Affine, asymmetric, fake_quantise, symmetric
from coterie.errors import ShapeError

RNG = np.random.default_rng(5)
X = (RNG.normal(size=(6, 40)) * 2).astype(np.float32)
CASES = {
    f"{make.__name__} {bits} bits {'by channel' if axis == 0 else ''}": make(X * 0.6, bits, axis)
    for make in (symmetric, asymmetric)
    for bits in (2, 4, 8)
    for axis in (None, 0)
}


def parts(levels: Affine) -> tuple[NDArray, NDArray]:
    shape = () if levels.axis is None else (-1, 1)
    return levels.scale.reshape(shape), levels.zero.astype(np.float32).reshape(shape)


def faked(x: Any, levels: Affine) -> Array:
    return fake_quantise(x, *parts(levels), low=levels.low, high=levels.high)


@pytest.mark.capability("G10")
@pytest.mark.parametrize("case", CASES)
def test_it_is_both_ways_of_quantisation_bit_for_bit_in_every_way_of_running(case: str) -> None:
    levels = CASES[case]
    wanted = levels.round_trip(X)
    np.testing.assert_array_equal(faked(Array(X), levels).numpy(), wanted)

    def both_ways(x: Array) -> Array:
        return faked(x, levels)

    np.testing.assert_array_equal(jit(both_ways)(X).numpy(), wanted)
    graph = optimise(trace_named(lambda inputs: {"y": faked(inputs["x"], levels)}, {"x": TensorSpec(X.shape)}))
    session: Any = onnxruntime.InferenceSession(to_onnx(graph, name="fake"))
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], wanted)


@pytest.mark.capability("G10")
@pytest.mark.parametrize("case", CASES)
def test_gradients_pass_straight_through_inside_the_range_and_not_outside(case: str) -> None:
    levels = CASES[case]
    weights = RNG.normal(size=X.shape).astype(np.float32)

    def cost(x: Array, scale: Array) -> Array:
        zero = parts(levels)[1]
        return xp.sum(fake_quantise(x, scale, zero, low=levels.low, high=levels.high) * Array(weights))

    by_x, by_scale = grad(cost, (0, 1))(Array(X), Array(parts(levels)[0]))
    scale, zero = parts(levels)
    level = np.rint(X / scale) + zero
    inside = (level >= levels.low) & (level <= levels.high)
    assert 0 < inside.mean() < 1, "the case must show both"
    np.testing.assert_array_equal(by_x.numpy(), weights * inside)
    assert not by_scale.numpy().any(), "the scale is told, not learnt"


def test_mapping_over_rows_is_a_loop() -> None:
    scale, zero = np.float32(0.25), np.float32(0)

    def one(row: Array) -> Array:
        return fake_quantise(row, scale, zero, low=-7, high=7)

    rows = np.stack([one(Array(row)).numpy() for row in X])
    np.testing.assert_array_equal(vmap(one)(Array(X)).numpy(), rows)


def test_a_scale_that_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(ShapeError, match="do not fit"):
        fake_quantise(Array(X), np.ones((3, 1), np.float32), np.float32(0), low=0, high=3)
