"""Graphs of other exporters become functions: the runtime's outputs, true gradients, and training (A15)."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
import pytest
from onnx import TensorProto, helper, numpy_helper

from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.autodiff import grad, value_and_grad
from coterie.compute.ir import NDArray
from coterie.compute.jit import jit
from coterie.compute.nn import losses
from coterie.compute.onnx import load
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.trace import TensorSpec, trace
from coterie.errors import GraphRefused

FIXTURES = Path(__file__).parent / "fixtures"
RNG = np.random.default_rng(2)


def from_tensorflow() -> bytes:
    """A small CNN in the form of tf2onnx: images [batch, H, W, C], transposes around windows, names of variables."""
    rng = np.random.default_rng(3)

    def tensor(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(rng.normal(size=shape).astype(np.float32) * 0.5, name)

    scope = "StatefulPartitionedCall/sequential"
    kernel, offset = f"{scope}/conv2d/Conv2D/ReadVariableOp:0", f"{scope}/conv2d/BiasAdd/ReadVariableOp:0"
    dense, bias = f"{scope}/dense/MatMul/ReadVariableOp:0", f"{scope}/dense/BiasAdd/ReadVariableOp:0"
    nodes = [
        helper.make_node("Transpose", ["input_1:0"], ["in"], "Conv2D__6", perm=[0, 3, 1, 2]),
        helper.make_node(
            "Conv", ["in", kernel, offset], ["conv"], f"{scope}/conv2d/BiasAdd", auto_pad="SAME_UPPER", strides=[2, 2]
        ),
        helper.make_node("Relu", ["conv"], ["relu"], f"{scope}/conv2d/Relu"),
        helper.make_node(
            "AveragePool", ["relu"], ["pool"], f"{scope}/pool/AvgPool", kernel_shape=[2, 2], strides=[2, 2]
        ),
        helper.make_node("Transpose", ["pool"], ["last"], f"{scope}/pool/AvgPool__8", perm=[0, 2, 3, 1]),
        helper.make_node("Reshape", ["last", "const_fold_opt__9"], ["flat"], f"{scope}/flatten/Reshape"),
        helper.make_node("MatMul", ["flat", dense], ["product"], f"{scope}/dense/MatMul"),
        helper.make_node("Add", ["product", bias], ["logits"], f"{scope}/dense/BiasAdd"),
        helper.make_node("Softmax", ["logits"], ["Identity:0"], f"{scope}/dense/Softmax", axis=-1),
    ]
    flat = numpy_helper.from_array(np.asarray([-1, 12]), "const_fold_opt__9")
    weights = [tensor(kernel, 3, 2, 3, 3), tensor(offset, 3), tensor(dense, 12, 4), tensor(bias, 4), flat]
    inputs = [helper.make_tensor_value_info("input_1:0", TensorProto.FLOAT, ["unk__10", 7, 7, 2])]
    outputs = [helper.make_tensor_value_info("Identity:0", TensorProto.FLOAT, ["unk__11", 4])]
    graph = helper.make_graph(nodes, "tf2onnx", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
    onnx.checker.check_model(model)  # pyright: ignore[reportUnknownMemberType]
    return model.SerializeToString()


def images(n: int) -> NDArray:
    return RNG.normal(size=(n, 2, 8, 8)).astype(np.float32)


def ids(n: int) -> NDArray:
    return RNG.integers(0, 11, (n, 5))


MODELS: dict[str, tuple[Callable[[], Any], Callable[[int], NDArray], int]] = {
    "mlp_13": (lambda: FIXTURES / "mlp_13.onnx", lambda n: RNG.normal(size=(n, 6)).astype(np.float32), 6),
    "cnn_13": (lambda: FIXTURES / "cnn_13.onnx", images, 9),
    "cnn_18_dynamo": (lambda: FIXTURES / "cnn_18_dynamo.onnx", images, 9),
    "transformer_17": (lambda: FIXTURES / "transformer_17.onnx", ids, 18),
    "transformer_18_dynamo": (lambda: FIXTURES / "transformer_18_dynamo.onnx", ids, 17),
    "tensorflow": (from_tensorflow, lambda n: RNG.normal(size=(n, 7, 7, 2)).astype(np.float32), 4),
}


def runtime(source: Any, x: NDArray) -> NDArray:
    """What bare ONNX Runtime computes from the file."""
    data = source if isinstance(source, bytes) else str(source)
    session = cast(Any, onnxruntime).InferenceSession(data, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})[0]


@pytest.mark.capability("A15")
@pytest.mark.parametrize("name", MODELS)
def test_an_imported_graph_computes_what_the_runtime_does(name: str) -> None:
    make, data, weights = MODELS[name]
    source = make()
    model = load(source)
    assert len(model.parameters) == weights
    for batch in (1, 4):
        x = data(batch)
        expected = runtime(source, x)
        np.testing.assert_allclose(model(model.parameters, x).numpy(), expected, rtol=1e-5, atol=1e-5)
        compiled = jit(model, fullgraph=True)(model.parameters, x)
        np.testing.assert_allclose(compiled.numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.capability("A15")
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_finite_differences(name: str) -> None:
    make, data, _ = MODELS[name]
    model = load(make()).astype("float64")  # so that the differences are true
    params = {key: Array(value) for key, value in model.parameters.items()}
    x = data(3)
    x = x.astype(np.float64) if x.dtype == np.float32 else x
    weight = cast("NDArray", RNG.normal(size=runtime(make(), data(3)).shape))

    def loss(params: dict[str, Array]) -> Array:
        return cnp.sum(model(params, x) * weight)

    told = grad(loss)(params)
    assert set(told) == set(params)
    for key, value in params.items():
        direction = RNG.normal(size=value.shape)
        step = 1e-6
        ends = [loss({**params, key: value + Array(sign * step * direction)}).item() for sign in (1, -1)]
        slope = float(np.sum(told[key].numpy() * direction))
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-4, abs=1e-7), key


@pytest.mark.parametrize("name", ["cnn_18_dynamo", "transformer_17", "tensorflow"])
def test_an_imported_model_trains_and_is_exported_again(name: str) -> None:
    make, data, _ = MODELS[name]
    model = load(make())
    x, labels = data(8), np.arange(8, dtype=np.int32) % 3

    def loss(params: dict[str, Array]) -> Array:
        outputs = model(params, x)
        logits = cnp.log(outputs) if name == "tensorflow" else outputs  # its last layer is a softmax
        return cnp.mean(losses.softmax_cross_entropy(logits, Array(labels)))

    @jit(fullgraph=True)
    def step(params: dict[str, Array]) -> Any:
        value, gradients = value_and_grad(loss)(params)
        return value, {key: value - 0.2 * gradients[key] for key, value in params.items()}

    params: Any = {key: Array(value) for key, value in model.parameters.items()}
    history: list[float] = []
    for _ in range(25):
        value, params = step(params)
        history.append(value.item())
    assert history[-1] < 0.8 * history[0]
    sizes = {size: 8 for given in model.inputs for size in given.sizes if isinstance(size, str)}
    traced = trace(partial(model, params), *model.specs(**sizes))
    exported = to_onnx(optimise(traced.graph), name="again")
    np.testing.assert_allclose(runtime(exported, x), model(params, x).numpy(), rtol=1e-4, atol=1e-5)


def test_weights_beside_the_file_are_read_by_path_only(tmp_path: Path) -> None:
    proto = onnx.load(str(FIXTURES / "mlp_13.onnx"))  # pyright: ignore[reportUnknownMemberType]
    path = tmp_path / "model.onnx"
    save = cast(Any, onnx).save_model
    save(proto, str(path), save_as_external_data=True, location="weights", size_threshold=0)
    assert (tmp_path / "weights").stat().st_size > 0
    whole = load(FIXTURES / "mlp_13.onnx")
    for name, array in load(path).parameters.items():
        np.testing.assert_array_equal(array, whole.parameters[name])
    with pytest.raises(GraphRefused, match="weights lie in another file"):
        load(path.read_bytes())


def test_an_open_size_is_given_by_name_or_by_the_call() -> None:
    model = load(FIXTURES / "cnn_13.onnx")
    assert model.inputs[0].sizes == ("batch", 2, 8, 8) and model.outputs == ("y",)
    assert model.specs(batch=8) == (TensorSpec((8, 2, 8, 8)),)
    assert load((FIXTURES / "cnn_13.onnx").read_bytes()).parameters.keys() == model.parameters.keys()
