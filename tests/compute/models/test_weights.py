"""Weights embedded in an inference graph."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from coterie.compute.onnx.checker import check_graph
from coterie.compute.onnx.weights import embed_weights
from coterie.compute.runtime.executable import Executable
from coterie.errors import GraphRefused, InputError


@pytest.fixture
def infer() -> bytes:
    def value(name: str, shape: list[int]):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "shared/w", "shared/b"], ["output"])],
        "infer",
        [value("shared/w", [3, 2]), value("x", [4, 3]), value("shared/b", [2])],
        [value("output", [4, 2])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def test_the_embedded_graph_runs_alone(infer: bytes):
    rng = np.random.default_rng(1)
    x, w, b = (rng.normal(size=shape).astype(np.float32) for shape in ((4, 3), (3, 2), (2,)))
    # A transposed view: what is written must be the values, not the memory.
    model = embed_weights(infer, {"shared/w": np.asfortranarray(w), "shared/b": b})
    alone = Executable(model)
    assert [tensor.name for tensor in alone.inputs] == ["x"]
    np.testing.assert_allclose(alone.run({"x": x})["output"], x @ w + b, rtol=1e-5)
    assert check_graph(model).parameter_bytes == 4 * 8


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ({"shared/none": np.zeros((3, 2), np.float32)}, "no input 'shared/none'; it has shared/w, x, shared/b"),
        ({"shared/w": np.zeros((2, 3), np.float32)}, r"must be float32\[3, 2\], got float32\[2, 3\]"),
        ({"shared/w": np.zeros((3, 2))}, r"must be float32\[3, 2\], got float64\[3, 2\]"),
    ],
)
def test_weights_that_do_not_fit_are_named(infer: bytes, weights: dict[str, np.ndarray], reason: str):
    with pytest.raises(InputError, match=reason):
        embed_weights(infer, weights)


def test_bytes_that_are_no_graph_are_refused():
    with pytest.raises(GraphRefused, match="not an ONNX graph"):
        embed_weights(b"\xff\xff", {})
