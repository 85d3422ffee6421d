"""The foreign graphs of the importer's tests: files of real exporters, and two by hand in the form of others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import onnx
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
from onnx import NodeProto, TensorProto, helper, numpy_helper

from coterie.compute.ir import NDArray

FIXTURES = Path(__file__).parent / "fixtures"
Draw = Callable[[np.random.Generator, int], NDArray]


class Given(NamedTuple):
    """source: path or bytes. draw: rows of input. weights: how many the author trained. score: what to train by."""

    source: Path | bytes
    draw: Draw
    weights: int
    score: str | None = None


def _built(
    given: str, nodes: list[NodeProto], shape: list[str | int], opset: int, held: list[TensorProto], name: str
) -> bytes:
    """A graph from one input to the last node's output, [batch, 4]."""
    inputs = [helper.make_tensor_value_info(given, TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, [shape[0], 4])]
    graph = helper.make_graph(nodes, name, inputs, outputs, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model)  # pyright: ignore[reportUnknownMemberType]
    return model.SerializeToString()


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
    return _built("input_1:0", nodes, ["unk__10", 7, 7, 2], 15, weights, "tf2onnx")


def from_jax() -> bytes:
    """An MLP in the form in which a jaxpr is written down: contractions, layer normalisation and GELU out of single
    operators, the parameters as constants among the nodes.
    """
    rng = np.random.default_rng(4)
    constants: list[NodeProto] = []
    nodes: list[NodeProto] = []

    def constant(name: str, value: Any) -> str:
        array = numpy_helper.from_array(np.asarray(value, np.float32))
        constants.append(helper.make_node("Constant", [], [name], value=array))
        return name

    def weight(name: str, *shape: int) -> str:
        return constant(f"params/{name}", rng.normal(size=shape))

    def op(operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(nodes)}"
        nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    x = op("Einsum", "x", weight("Dense_0/kernel", 6, 8), equation="bi,io->bo")
    x = op("Add", x, weight("Dense_0/bias", 8))
    centred = op("Sub", x, op("ReduceMean", x, axes=[-1]))
    variance = op("ReduceMean", op("Mul", centred, centred), axes=[-1])
    inverse = op("Reciprocal", op("Sqrt", op("Add", variance, constant("epsilon", [1e-6]))))
    x = op("Mul", op("Mul", centred, inverse), weight("LayerNorm_0/scale", 8))
    x = op("Add", x, weight("LayerNorm_0/bias", 8))
    cube = op("Mul", op("Mul", op("Mul", x, x), x), constant("cubic", 0.044715))
    gate = op("Add", op("Tanh", op("Mul", op("Add", x, cube), constant("factor", 0.7978846))), constant("one", 1.0))
    x = op("Mul", op("Mul", x, gate), constant("half", 0.5))
    op("Add", op("Einsum", x, weight("Dense_1/kernel", 8, 4), equation="bi,io->bo"), weight("Dense_1/bias", 4))
    return _built("x", [*constants, *nodes], ["b", 6], 17, [], "jax")


def floats(*shape: int) -> Draw:
    """Rows of normal numbers."""
    return lambda rng, count: rng.normal(size=(count, *shape)).astype(np.float32)


def ids(rng: np.random.Generator, count: int) -> NDArray:
    """Sequences of five ids."""
    return rng.integers(0, 11, (count, 5))


def _file(name: str) -> Path:
    return FIXTURES / f"{name}.onnx"


MODELS: dict[str, Given] = {
    "mlp_13": Given(_file("mlp_13"), floats(6), 6),
    "readings_17": Given(_file("readings_17"), floats(4), 4),
    "readings_21_dynamo": Given(_file("readings_21_dynamo"), floats(4), 4),
    "cnn_13": Given(_file("cnn_13"), floats(2, 8, 8), 9),
    "cnn_18_dynamo": Given(_file("cnn_18_dynamo"), floats(2, 8, 8), 9),
    "cnn_20": Given(_file("cnn_20"), floats(2, 9, 9), 10),
    "fresh_13": Given(_file("fresh_13"), floats(2, 8, 8), 7),
    "fresh_18_dynamo": Given(_file("fresh_18_dynamo"), floats(2, 8, 8), 7),
    "groups_17": Given(_file("groups_17"), floats(2, 8, 8), 8),
    "groups_21_dynamo": Given(_file("groups_21_dynamo"), floats(2, 8, 8), 8),
    "transformer_17": Given(_file("transformer_17"), ids, 18),
    "transformer_18_dynamo": Given(_file("transformer_18_dynamo"), ids, 17),
    "gru_17": Given(_file("gru_17"), floats(7, 5), 5),
    "gru_18_dynamo": Given(_file("gru_18_dynamo"), floats(7, 5), 5),
    "lstm_16": Given(_file("lstm_16"), floats(7, 5), 8),
    "rnn_19": Given(_file("rnn_19"), floats(7, 5), 5),
    "unet_18": Given(_file("unet_18"), floats(1, 12, 12), 10),
    "routed_17": Given(_file("routed_17"), floats(5), 4),
    "normalised_20_whole": Given(_file("normalised_20_whole"), floats(1, 6, 6), 5),
    "cells_20_whole": Given(_file("cells_20_whole"), floats(3, 5), 6),
    "tied_20_whole": Given(_file("tied_20_whole"), floats(4), 3),
    "copies_17": Given(_file("copies_17"), floats(4), 4),
    "copies_20_whole": Given(_file("copies_20_whole"), floats(4), 4),
    "sk_logistic_17": Given(_file("sk_logistic_17"), floats(5), 2, "LinearClassifier.scores"),
    "sk_text_13": Given(_file("sk_text_13"), floats(5), 2, "LinearClassifier.scores"),
    "sk_mlp_18": Given(_file("sk_mlp_18"), floats(5), 4, "add_result1"),
    "sk_ridge_15": Given(_file("sk_ridge_15"), floats(4), 2),
    "tensorflow": Given(from_tensorflow(), floats(7, 7, 2), 4, "logits"),
    "jax": Given(from_jax(), floats(6), 6),
}


def runtime(source: Path | bytes, x: NDArray) -> dict[str, NDArray]:
    """What bare ONNX Runtime computes from the file, by output; of maps from class to number, the numbers."""
    data = source if isinstance(source, bytes) else str(source)
    session = cast(Any, onnxruntime).InferenceSession(data, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    found: list[Any] = session.run(None, {session.get_inputs()[0].name: x})
    return {name: _numbers(value) for name, value in zip(names, found, strict=True)}


def _numbers(value: Any) -> NDArray:
    if not isinstance(value, list):
        return value
    return np.asarray([[*row.values()] for row in cast("list[dict[Any, float]]", value)])
