"""A foreign ONNX file as plain values, checked as far as that can be done before it runs."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import onnx
from onnx import ModelProto, helper, inliner, numpy_helper

from coterie.compute.ir import FLOATS, NDArray
from coterie.compute.onnx.importer.table import KNOWN_INPUTS, STATISTICS, TRANSLATIONS
from coterie.compute.onnx.weights import MESSAGE_BYTES
from coterie.compute.primitives.basic import ONNX_DTYPES
from coterie.errors import GraphRefused, StorageError

OLDEST, NEWEST = 13, 21
_MOST_NODES, _DEEPEST = 1_000_000, 100  # of functions that are written out, and of calls inside one another
Result = TypeVar("Result")
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
        _refuse_endless(model)
        model = _sound("Its functions do not fit together", lambda: inliner.inline_local_functions(model))
    graph = model.graph
    _refuse_unknown(graph.node)
    steps = tuple(_step(index, node) for index, node in enumerate(graph.node))
    held = {tensor.name: _array(tensor, tensor.name) for tensor in graph.initializer}
    if len(graph.sparse_initializer):
        raise _refused("It holds sparse weights.", "Export them as dense tensors.")
    _check(model)  # last: it looks for the files of weights that lie elsewhere, which have been refused by now
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


def _sound(what: str, call: Callable[[], Result]) -> Result:
    """The result of a call into onnx, which raises many classes on damaged files."""
    try:
        return call()
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise _refused(f"{what}: {reason[:500].rstrip('.')}.", "Export it again.") from error


def _check(model: ModelProto) -> None:
    """Raises GraphRefused unless nodes follow what they read and have the operands and attributes of their operator.
    What the file says of the types of results is not read, and dropped: exporters leave some out.
    """
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.CopyFrom(helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, ()))
    if model.ByteSize() <= MESSAGE_BYTES:
        _sound("It is damaged", lambda: cast(Any, onnx.checker).check_model(model))


def _parsed(source: str | PathLike[str] | bytes) -> ModelProto:
    try:
        if not isinstance(source, bytes):
            return onnx.load(str(Path(source)))  # pyright: ignore[reportUnknownMemberType]
        model = ModelProto.FromString(source)
    except OSError as error:
        raise StorageError(f"The ONNX file cannot be read: {error}") from error
    except Exception as error:  # protobuf raises several classes
        raise _refused(f"It is not an ONNX file: {error}", "Give the path or the bytes of an .onnx file.") from error
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
        value = _sound("It is damaged", partial(helper.get_attribute_value, attribute))
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        elif isinstance(value, onnx.TensorProto):
            value = _array(value, f"{node.op_type} {attribute.name}")
        attributes[attribute.name] = value
    outputs = list(node.output)
    while outputs and not outputs[-1] and node.op_type != "Split":  # which counts those that nobody reads
        outputs.pop()
    return Step(node.op_type, node.name or f"#{index}", tuple(node.input), tuple(outputs), attributes)


def _refuse_unknown(nodes: Iterable[Any]) -> None:
    for index, node in enumerate(nodes):
        ours = node.domain in ("", "ai.onnx")
        if not ours or node.op_type not in TRANSLATIONS:
            name = node.op_type if ours else f"{node.domain}.{node.op_type}"
            where = node.name or f"#{index}"
            hint = "Rewrite that part of the model with operators of coterie.compute.onnx.importer.table"
            if node.op_type in ("If", "Loop", "Scan"):
                hint = "Export without control flow: trace the model on an example"
            raise _refused(
                f"The node {where!r} is a {name}, which is not translated.", f"{hint}.", operator=name, node=where
            )


def _refuse_endless(model: ModelProto) -> None:
    """Functions that call functions can stand for more nodes than fit into memory."""
    bodies = {(function.domain, function.name): function.node for function in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size(nodes: Iterable[Any], above: frozenset[tuple[str, str]]) -> int:
        total = 0
        for node in nodes:
            called = (node.domain, node.op_type)
            if called not in bodies:
                total += 1
                continue
            if called in above or len(above) > _DEEPEST:
                raise _refused(f"Its function {node.op_type!r} calls itself.", "Export without functions.")
            if called not in sizes:
                sizes[called] = size(bodies[called], above | {called})
            total += sizes[called]
        return total

    if (count := size(model.graph.node, frozenset())) > _MOST_NODES:
        raise _refused(f"Written out, its functions are {count} nodes.", f"At most {_MOST_NODES} are imported.")


def _array(tensor: Any, name: str) -> NDArray:
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        # Reading it here would open any file of the working directory that the graph names.
        raise _refused(
            f"Its weights lie in another file, those of {name!r} at least.",
            "Give the path of the file instead of its bytes.",
        )
    if tensor.data_type not in _DTYPES:
        kinds = onnx.TensorProto.DataType
        known = tensor.data_type in kinds.values()
        kind = kinds.Name(tensor.data_type).lower() if known else f"number {tensor.data_type}"
        raise _refused(f"The tensor {name!r} is of dtype {kind}, which coterie does not have.", "Export in float32.")
    return _sound(f"The tensor {name!r} is damaged", lambda: np.asarray(numpy_helper.to_array(tensor)))


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
