"""Reading an inference graph that is to be quantised, and writing it again."""

from collections.abc import Iterable
from typing import Any, cast

import onnx
from onnx import ModelProto, checker

from coterie.compute.runtime.session import first_line
from coterie.errors import GraphRefused

_LEAST_OPSET = 13
"""From here on QuantizeLinear and DequantizeLinear know scales by channel."""
_OTHER_FLOATS = (onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16)


def read_model(model: bytes) -> ModelProto:
    """The graph. Raises GraphRefused for bytes that are none, an opset below 13, weights outside the file or in another
    precision than float32, graphs inside of nodes, and graphs that are quantised already.
    """
    try:
        proto = ModelProto.FromString(model)
        cast(Any, checker).check_model(proto)
    except Exception as error:  # protobuf and the checker raise several classes
        raise GraphRefused(f"The bytes are not an ONNX graph: {first_line(error)}") from error
    if not _is_text(proto):
        raise GraphRefused("The bytes are not an ONNX graph: a name in it is not UTF-8.")
    opset = max((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    if opset < _LEAST_OPSET:
        raise GraphRefused(
            f"The graph has opset {opset}; quantised files need {_LEAST_OPSET} or later.",
            hint="Export it with a later opset.",
        )
    for tensor in proto.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise GraphRefused(
                f"The weight {tensor.name!r} lies in another file.", hint="Save the model as one file first."
            )
        if tensor.data_type in _OTHER_FLOATS:
            raise GraphRefused(
                f"The weight {tensor.name!r} is {onnx.TensorProto.DataType.Name(tensor.data_type)}, not FLOAT.",
                hint="Start from the model in float32.",
            )
    for node in proto.graph.node:
        if any(held.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for held in node.attribute):
            raise GraphRefused(
                f"The graph holds {node.op_type} ({node.name or node.output[0]}), a graph of its own inside.",
                hint="Export it for the target 'portable', which writes loops out.",
            )
        if node.op_type in ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"):
            raise GraphRefused(
                f"The graph holds {node.op_type} ({node.name or node.output[0]}): it is quantised already.",
                hint="Start from the float model.",
            )
    return proto


def _is_text(message: Any) -> bool:
    """Whether every text in a message is one: protobuf gives what is not UTF-8 as bytes, and takes it nowhere."""
    for field, value in message.ListFields():
        single = isinstance(value, str | bytes) or hasattr(value, "ListFields")
        values: Iterable[Any] = (value,) if single else value
        if field.type == field.TYPE_STRING and any(isinstance(each, bytes) for each in values):
            return False
        if field.type == field.TYPE_MESSAGE and not all(_is_text(each) for each in values):
            return False
    return True


def attribute(node: Any, name: str, default: Any) -> Any:
    """An attribute of an ONNX node, or the default where it is absent."""
    for held in node.attribute:
        if held.name == name:
            return onnx.helper.get_attribute_value(held)
    return default


def fresh(proto: ModelProto, stem: str, taken: set[str]) -> str:
    """A name like ``stem`` that no tensor has; it is taken from then on."""
    name, count = stem, 0
    while name in taken:
        count += 1
        name = f"{stem}_{count}"
    taken.add(name)
    return name


def names_in(proto: ModelProto) -> set[str]:
    """All names of tensors and nodes."""
    graph = proto.graph
    found = {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    for node in graph.node:
        found.update((node.name, *node.input, *node.output))
    return found
