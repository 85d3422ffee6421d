"""Inputs of a graph that no node reads.

A plan's graphs may have some: what one method needs another leaves alone. OpenVINO's provider (1.24.1) then gives the
values of one input to another, without an error; so other providers than the CPU get graphs without such inputs.
"""

from typing import Any, cast

import onnx

from coterie.compute.runtime.tensors import TensorInfo


def without_unread_inputs(data: bytes) -> bytes:
    """The same serialised graph without the inputs that nothing in it reads; the same bytes where there are none."""
    model = cast(Any, onnx).load_from_string(data)
    read = _read(model.graph)
    unread = [value for value in model.graph.input if value.name not in read]
    if not unread:
        return data
    for value in unread:
        model.graph.input.remove(value)
    return model.SerializeToString(deterministic=True)


def inputs_of(data: bytes) -> tuple[TensorInfo, ...]:
    """All inputs of a serialised graph of static shapes, read or not, in the file's order."""
    found: list[TensorInfo] = []
    for value in cast(Any, onnx).load_from_string(data).graph.input:
        tensor = value.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
        found.append(TensorInfo(value.name, dtype, tuple(int(axis.dim_value) for axis in tensor.shape.dim)))
    return tuple(found)


def _read(graph: Any) -> set[str]:
    """Names that nodes read, those of the graphs inside of them too, and results that are inputs themselves."""
    names = {str(value.name) for value in graph.output}
    for node in graph.node:
        names.update(map(str, node.input))
        for attribute in node.attribute:
            if attribute.HasField("g"):
                names |= _read(attribute.g)
    return names
