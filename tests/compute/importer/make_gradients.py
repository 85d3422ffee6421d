"""Write gradients.npz: what onnx-ad, which differentiates ONNX files by rewriting them, says of gradients.

    pip install 'coterie[bench]' && python tests/compute/importer/make_gradients.py

For each file: an input ``FILE/x``, the factor of its output ``FILE/seed``, and for every weight the gradient of
sum(seed * output), ``FILE/weight/NAME``. coterie has no part in it.
"""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

HERE = Path(__file__).parent
BATCH = 3
# File → the shape of an example; ids below 11 where it is a shape of integers.
EXAMPLES: dict[str, tuple[tuple[int, ...], str]] = {
    "mlp_13": ((6,), "float32"),
    "cnn_20": ((2, 9, 9), "float32"),
    "transformer_17": ((5,), "int64"),
    "transformer_18_dynamo": ((5,), "int64"),
    "gru_17": ((7, 5), "float32"),
    "lstm_16": ((7, 5), "float32"),
    "rnn_19": ((7, 5), "float32"),
    "readings_21_dynamo": ((4,), "float32"),
    "sk_mlp_18": ((5,), "float32"),
    "unet_18": ((1, 12, 12), "float32"),
    "routed_17": ((5,), "float32"),
}


def with_weights_as_inputs(model: Any) -> tuple[Any, dict[str, Any]]:
    """The model with its float tensors of more than one number as inputs, and these by name."""
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    weights = {name: array for name, array in held.items() if array.dtype == np.float32 and array.size > 1}
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in weights]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    for name, array in weights.items():
        model.graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, array.shape))
    return model, weights


def gradients(name: str) -> dict[str, Any]:
    """The known answers of one file."""
    import onnx_ad

    shape, dtype = EXAMPLES[name]
    rng = np.random.default_rng(5)
    size = (BATCH, *shape)
    x = rng.normal(size=size).astype(np.float32) if dtype == "float32" else rng.integers(0, 11, size)
    model, weights = with_weights_as_inputs(onnx.load(str(HERE / "fixtures" / f"{name}.onnx")))
    given, output = model.graph.input[0], model.graph.output[-1]
    for value in (given, output):
        value.type.tensor_type.shape.dim[0].dim_value = BATCH
    plain: Any = onnxruntime.InferenceSession(model.SerializeToString())
    (y,) = plain.run([output.name], {given.name: x, **weights})
    seed = rng.normal(size=y.shape).astype(np.float32)
    backward = onnx_ad.reverse(model, inputs=list(weights), outputs=[output.name], layout="onnx")
    session: Any = onnxruntime.InferenceSession(backward.SerializeToString())
    (place,) = [value.name for value in session.get_inputs() if value.name not in (given.name, *weights)]
    names = [value.name for value in session.get_outputs()][-len(weights) :]
    found = session.run(names, {given.name: x, **weights, place: seed[..., None]})
    told = {f"{name}/weight/{key}": np.squeeze(array, -1) for key, array in zip(weights, found, strict=True)}
    return {f"{name}/x": x, f"{name}/seed": seed, **told}


if __name__ == "__main__":
    onnxruntime.set_default_logger_severity(3)
    answers: dict[str, Any] = {}
    for each in EXAMPLES:
        answers |= gradients(each)
    np.savez_compressed(HERE / "gradients.npz", **answers)
