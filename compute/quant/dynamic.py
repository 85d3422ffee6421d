"""Quantisation without calibration: activations are measured anew in every call, by the runtime."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from onnx import ModelProto

from coterie.compute.quant.normal_form import in_normal_form
from coterie.compute.quant.reading import read_model
from coterie.errors import GraphRefused


def quantise_dynamic(model: bytes, *, per_channel: bool = True) -> bytes:
    """The float inference graph with int8 weights in its matrix products, whose other operand is quantised as it comes
    (``onnxruntime.quantization.quantize_dynamic``).

    No rows are needed, and every call pays for the measuring, so it suits models whose time goes into large products:
    transformers, recurrent networks. Convolutions stay in float32. The file holds DynamicQuantizeLinear and
    MatMulInteger, which few providers but the CPU's have.

    Raises GraphRefused for a graph that cannot be read or has no such product.
    """
    # Imported on first use: nothing else needs the tools of that package.
    from onnxruntime import quantization  # pyright: ignore[reportMissingTypeStubs]

    proto = in_normal_form(read_model(model))
    # What its preparation would do is done; without this note it warns that it is not.
    proto.metadata_props.add(key="onnx.quant.pre_process", value="coterie")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        cast(Any, quantization).quantize_dynamic(
            proto, path, op_types_to_quantize=["MatMul", "Gemm"], per_channel=per_channel
        )
        after = ModelProto.FromString(path.read_bytes())
    if not any(node.op_type == "MatMulInteger" for node in after.graph.node):
        raise GraphRefused(
            "The graph has no matrix product with a weight in the file.",
            hint="For convolutions calibrate: quant.quantise(model, batches).",
        )
    return after.SerializeToString(deterministic=True)
