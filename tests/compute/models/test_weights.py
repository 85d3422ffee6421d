"""Weights embedded in an inference graph, or in a file beside it."""

import hashlib
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
import pytest
from onnx import TensorProto, helper

from coterie.compute import onnx as own
from coterie.compute.onnx.checker import check_graph
from coterie.compute.onnx.weights import DIGEST, embed_weights, weights_beside
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


def saved_beside(infer: bytes, folder: Path) -> tuple[Path, Path, dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    weights = {"shared/w": rng.normal(size=(3, 2)).astype(np.float32), "shared/b": np.ones(2, np.float32)}
    # A transposed view: what is written must be the values, not the memory.
    parts = weights_beside(
        infer, {**weights, "shared/w": np.asfortranarray(weights["shared/w"])}, {"note": "two files"}
    )
    model, beside = folder / "model.onnx", folder / parts.name
    model.write_bytes(parts.model)
    beside.write_bytes(b"".join(parts.chunks()))
    return model, beside, weights


def test_weights_beside_a_model_are_read_by_the_runtime_and_by_coterie(infer: bytes, tmp_path: Path):
    model, beside, weights = saved_beside(infer, tmp_path)
    x = np.random.default_rng(2).normal(size=(4, 3)).astype(np.float32)
    expected = x @ weights["shared/w"] + weights["shared/b"]
    session = cast(Any, onnxruntime).InferenceSession(str(model), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-5)
    loaded = own.load(model)
    np.testing.assert_allclose(loaded(loaded.parameters, x).numpy(), expected, rtol=1e-5)
    assert beside.stat().st_size == 2 * 4096  # each tensor begins at a page
    stated = {entry.key: entry.value for entry in cast(Any, onnx).load(str(model)).metadata_props}
    assert stated == {"note": "two files", DIGEST: hashlib.sha256(beside.read_bytes()).hexdigest()}
    assert stated[DIGEST][:16] in beside.name


def test_weights_beside_a_model_that_were_changed_are_refused_by_name(infer: bytes, tmp_path: Path):
    model, beside, _ = saved_beside(infer, tmp_path)
    data = bytearray(beside.read_bytes())
    data[5] ^= 1
    beside.write_bytes(data)
    with pytest.raises(GraphRefused, match=f"{beside.name}' does not hold the weights") as caught:
        own.load(model)
    assert "save the model anew" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ({"shared/none": np.zeros((3, 2), np.float32)}, "no input 'shared/none'; it has shared/w, x, shared/b"),
        ({"shared/w": np.zeros((2, 3), np.float32)}, r"must be float32\[3, 2\], got float32\[2, 3\]"),
        ({"shared/w": np.zeros((3, 2))}, r"must be float32\[3, 2\], got float64\[3, 2\]"),
    ],
)
def test_weights_that_do_not_fit_are_named(infer: bytes, weights: dict[str, np.ndarray], reason: str):
    for write in (embed_weights, weights_beside):
        with pytest.raises(InputError, match=reason):
            write(infer, weights)


def test_bytes_that_are_no_graph_are_refused():
    with pytest.raises(GraphRefused, match="not an ONNX graph"):
        embed_weights(b"\xff\xff", {})
