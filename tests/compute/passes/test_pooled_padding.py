"""A padding by 0 before a pooling is computed as written, whatever the runtime's optimiser would make of it."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
import pytest

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.control.functions import scan
from coterie.compute.interpret import interpret
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes.pooled_padding import keep_paddings
from coterie.compute.trace import TensorSpec, trace_named

ORT = cast(Any, onnxruntime)
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_ALL")
X = -1 - np.abs(np.random.default_rng(0).normal(size=(2, 3, 4, 4))).astype(np.float32)


def padded(x: Array, wide: int = 1) -> Array:
    return cnp.pad(x, ((0, 0), (0, 0), (wide, wide), (0, wide)))


def in_a_loop(x: Array) -> Array:
    return scan(lambda carry, row: (carry, ops.max_pool2d(padded(row[None]), 2)[0]), x[0], x)[1]


CASES: Mapping[str, Callable[[Array], Array]] = {
    "a maximum": lambda x: ops.max_pool2d(padded(x), 2),
    "a maximum that pads too": lambda x: ops.max_pool2d(padded(x), 3, 1, 1),
    "a padding as wide as the window": lambda x: ops.max_pool2d(padded(x, 2), 2),
    "an average over such a padding": lambda x: ops.avg_pool2d(padded(x, 2), 2),
    "in another dtype": lambda x: ops.max_pool2d(cnp.astype(padded(x), "float64"), 2),
    "in a loop": in_a_loop,
}


@pytest.mark.parametrize("target", ["portable", "cpu"])
@pytest.mark.parametrize("case", CASES)
def test_images_below_0_keep_the_0_of_their_border(case: str, target: Any) -> None:
    graph = trace_named(lambda given: {"y": CASES[case](given["x"])}, {"x": TensorSpec(X.shape, "float32")})
    expected = interpret(graph, {"x": X})["y"]
    assert (expected == 0).any() or case.startswith("an average")
    file = to_onnx(graph, name="padded", target=target)
    for level in LEVELS:
        options = ORT.SessionOptions()
        options.graph_optimization_level = getattr(ORT.GraphOptimizationLevel, level)
        session = ORT.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(session.run(None, {"x": X})[0], expected, rtol=1e-6)


def test_other_paddings_are_left_alone() -> None:
    kernel = np.ones((1, 3, 2, 2), np.float32)
    graph = trace_named(
        lambda given: {
            "convolved": ops.conv2d(padded(given["x"]), kernel),
            "by one": ops.max_pool2d(cnp.pad(given["x"], ((0, 0), (0, 0), (1, 1), (1, 1)), value=1.0), 2),
        },
        {"x": TensorSpec(X.shape, "float32")},
    )
    assert keep_paddings(graph) is graph
