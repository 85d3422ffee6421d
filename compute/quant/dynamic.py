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

    per_channel: a scale for each channel of a weight; stacks of matrices then stay in float32. Raises GraphRefused for
    a graph that cannot be read or has no such product.
    """
    # Imported on first use: nothing else needs the tools of that package.
    from onnxruntime import quantization  # pyright: ignore[reportMissingTypeStubs]

    proto = in_normal_form(read_model(model))
    nodes = proto.graph.node
    weighted = [site for site in sites(proto) if site.weight is not None and nodes[site.node].op_type in _PRODUCTS]
    if not weighted:
        raise GraphRefused(
            "The graph has no matrix product with a weight in the file.",
            hint="For convolutions calibrate: quant.quantise(model, batches).",
        )
    # The runtime's kernel takes a scale for each channel of a matrix, and of no stack of matrices.
    axes = {tensor.name: len(tensor.dims) for tensor in proto.graph.initializer}
    stacked = [site.node for site in weighted if per_channel and axes[nodes[site.node].input[1]] > 2]
    if len(stacked) == len(weighted):
        raise GraphRefused(
            "All weights of the graph's matrix products are stacks of matrices, which have no scale a channel.",
            hint="Quantise with one scale a tensor: per_channel=False, on the command line --per-tensor.",
        )
    for index in stacked:
        nodes[index].name = nodes[index].name or f"stacked {index}"
    key, value = _PREPARED
    proto.metadata_props.add(key=key, value=value)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        cast(Any, quantization).quantize_dynamic(
            proto,
            path,
            op_types_to_quantize=list(_PRODUCTS),
            per_channel=per_channel,
            nodes_to_exclude=[nodes[index].name for index in stacked],
        )
        after = ModelProto.FromString(path.read_bytes())
    notes = [note for note in after.metadata_props if note.key != key and not note.key.startswith("onnx.infer")]
    del after.metadata_props[:]
    after.metadata_props.extend(notes)
    return after.SerializeToString(deterministic=True)
