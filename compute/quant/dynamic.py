"""Quantisation without calibration: activations are measured anew in every call, by the runtime."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from onnx import ModelProto

from coterie.compute.quant.normal_form import in_normal_form
from coterie.compute.quant.placement import sites
from coterie.compute.quant.reading import read_model
from coterie.errors import GraphRefused

_PRODUCTS = ("MatMul", "Gemm")
# Without this note the tool warns that its own preparation has not run; what that would do is done here.
_PREPARED = ("onnx.quant.pre_process", "onnxruntime.quant")


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
    weighted = [site for site in sites(proto) if site.weight is not None]
    if not any(proto.graph.node[site.node].op_type in _PRODUCTS for site in weighted):
        raise GraphRefused(
            "The graph has no matrix product with a weight in the file.",
            hint="For convolutions calibrate: quant.quantise(model, batches).",
        )
    key, value = _PREPARED
    proto.metadata_props.add(key=key, value=value)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        cast(Any, quantization).quantize_dynamic(
            proto, path, op_types_to_quantize=list(_PRODUCTS), per_channel=per_channel
        )
        after = ModelProto.FromString(path.read_bytes())
    notes = [note for note in after.metadata_props if note.key != key and not note.key.startswith("onnx.infer")]
    del after.metadata_props[:]
    after.metadata_props.extend(notes)
    return after.SerializeToString(deterministic=True)
