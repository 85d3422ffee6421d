"""A foreign ONNX file as plain values, checked as far as that can be done before it runs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import onnx
from onnx import ModelProto, helper, inliner, numpy_helper

from coterie.compute.ir import FLOATS, NDArray
from coterie.compute.onnx.importer.table import KNOWN_INPUTS, STATISTICS, TRANSLATIONS
from coterie.compute.primitives.basic import ONNX_DTYPES
from coterie.errors import GraphRefused, StorageError

OLDEST, NEWEST = 13, 21
Size: TypeAlias = int | str | None
_DTYPES = {code: name for name, code in ONNX_DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Step:
    """One node."""

    operator: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Input:
    """One input: dtype, and sizes, where a name or None stands for any size."""

    name: str
    dtype: str
    sizes: tuple[Size, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """What a file says. parameters: weights by name. statistics and constants: everything else that it holds."""

    opset: int
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    steps: tuple[Step, ...]
    parameters: Mapping[str, NDArray]
    constants: Mapping[str, NDArray]


def read(source: str | PathLike[str] | bytes) -> Foreign:
    """A file by path (with the weights that lie beside it), or its bytes. Raises StorageError when it cannot be read,
    GraphRefused when it is no ONNX graph, or of another operator set, or uses what is not translated.
    """
    model = _parsed(source)
    opset = _opset(model)
    if len(model.functions):
        model = inliner.inline_local_functions(model)
    graph = model.graph
    steps = tuple(_step(index, node) for index, node in enumerate(graph.node))
    _refuse_unknown(steps, graph.node)
    held = {tensor.name: _array(tensor, tensor.name) for tensor in graph.initializer}
    if len(graph.sparse_initializer):
        raise _refused("It holds sparse weights.", "Export them as dense tensors.")
    trained = _trained(steps, held)
    return Foreign(
        opset=opset,
        inputs=tuple(_input(value) for value in graph.input if value.name not in held),
        outputs=tuple(value.name for value in graph.output),
        steps=steps,
        parameters={name: array for name, array in held.items() if name in trained},
        constants={name: array for name, array in held.items() if name not in trained},
    )


def _refused(message: str, hint: str, **details: Any) -> GraphRefused:
    return GraphRefused(f"The ONNX graph cannot be imported. {message}", hint=hint, code="import_refused", **details)


def _parsed(source: str | PathLike[str] | bytes) -> ModelProto:
    try:
        if not isinstance(source, bytes):
            return onnx.load(str(Path(source)))  # pyright: ignore[reportUnknownMemberType]
        model = ModelProto.FromString(source)
    except OSError as error:
        raise StorageError(f"The ONNX file cannot be read: {error}") from error
    except Exception as error:  # protobuf raises several classes
        raise _refused(f"It is not an ONNX file: {error}", "Give the path or the bytes of an .onnx file.") from error
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in model.graph.initializer):
        raise _refused("Its weights lie in another file.", "Give the path of the file instead of its bytes.")
    return model


def _opset(model: ModelProto) -> int:
    versions = {entry.domain or "ai.onnx": int(entry.version) for entry in model.opset_import}
    version = versions.get("ai.onnx", 0)
    if not OLDEST <= version <= NEWEST:
        raise _refused(
            f"It is of operator set {version}; {OLDEST} to {NEWEST} are translated.",
            f"Export with an opset in that range, or convert with onnx.version_converter.convert_version(model, {17}).",
        )
    return version


def _step(index: int, node: Any) -> Step:
    attributes: dict[str, Any] = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            value = value.decode()
        elif isinstance(value, onnx.TensorProto):
            value = _array(value, f"{node.op_type} {attribute.name}")
        attributes[attribute.name] = value
    outputs = list(node.output)
    while outputs and not outputs[-1]:
        outputs.pop()
    return Step(node.op_type, node.name or f"#{index}", tuple(node.input), tuple(outputs), attributes)


def _refuse_unknown(steps: Iterable[Step], nodes: Iterable[Any]) -> None:
    for step, node in zip(steps, nodes, strict=True):
        ours = node.domain in ("", "ai.onnx")
        if not ours or step.operator not in TRANSLATIONS:
            name = step.operator if ours else f"{node.domain}.{step.operator}"
            hint = "Rewrite that part of the model with the operators of coterie.compute.onnx.importer.table"
            if step.operator in ("If", "Loop", "Scan"):
                hint = "Export without control flow: trace the model on an example"
            raise _refused(
                f"The node {step.name!r} is a {name}, which is not translated.",
                f"{hint}.",
                operator=name,
                node=step.name,
            )


def _array(tensor: Any, name: str) -> NDArray:
    if tensor.data_type not in _DTYPES:
        kind = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
        raise _refused(f"The tensor {name!r} is of dtype {kind}, which coterie does not have.", "Export in float32.")
    return np.asarray(numpy_helper.to_array(tensor))


def _input(value: Any) -> Input:
    tensor = value.type.tensor_type
    if tensor.elem_type not in _DTYPES or not tensor.HasField("shape"):
        raise _refused(
            f"The input {value.name!r} has no dtype that coterie has, or no shape.",
            "Export with example inputs of float32, int32 or int64.",
        )

    def size(dimension: Any) -> Size:
        return int(dimension.dim_value) if dimension.HasField("dim_value") else cast("str", dimension.dim_param) or None

    return Input(value.name, _DTYPES[tensor.elem_type], tuple(size(dimension) for dimension in tensor.shape.dim))


def _trained(steps: Iterable[Step], held: Mapping[str, NDArray]) -> set[str]:
    """Weights are float tensors of at least one axis that are read as data. Single numbers, sizes and running
    statistics are not.
    """
    weights = {name for name, array in held.items() if array.dtype.name in FLOATS and array.ndim}
    found: set[str] = set()
    for step in steps:
        others = (*KNOWN_INPUTS.get(step.operator, ()), *STATISTICS.get(step.operator, ()))
        found.update(name for index, name in enumerate(step.inputs) if name in weights and index not in others)
    return found
