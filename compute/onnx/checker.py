"""Whether a serialised graph is inside the portable, bounded subset that a device runs.

A graph from a coordinator is a program. This check is what a server and a device do before the first run, so it trusts
nothing in the bytes: whatever they are, the answer is a summary or GraphRefused, in time and memory bounded by
``GraphLimits``.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar, cast

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from coterie.compute.onnx.arguments import Tensors, mistake, work_space
from coterie.compute.onnx.operators import OPERATORS
from coterie.compute.runtime.tensors import TensorInfo
from coterie.errors import GraphRefused

Result = TypeVar("Result")

OPSETS = range(13, 19)
IR_VERSIONS = range(7, 11)
DOMAINS = ("", "ai.onnx")

_READS = 8  # operands and numbers in attributes, for each tensor that is allowed

DTYPES: Mapping[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.DOUBLE: "float64",
    TensorProto.FLOAT16: "float16",
    TensorProto.INT8: "int8",
    TensorProto.INT16: "int16",
    TensorProto.INT32: "int32",
    TensorProto.INT64: "int64",
    TensorProto.UINT8: "uint8",
    TensorProto.BOOL: "bool",
}
ITEM_BYTES: Mapping[int, int] = {
    TensorProto.FLOAT: 4,
    TensorProto.DOUBLE: 8,
    TensorProto.FLOAT16: 2,
    TensorProto.INT8: 1,
    TensorProto.INT16: 2,
    TensorProto.INT32: 4,
    TensorProto.INT64: 8,
    TensorProto.UINT8: 1,
    TensorProto.BOOL: 1,
}
# Anything with a graph, a tensor or a type inside is a way to hide a program or data.
ATTRIBUTE_TYPES = frozenset(
    {AttributeProto.FLOAT, AttributeProto.INT, AttributeProto.STRING, AttributeProto.FLOATS, AttributeProto.INTS}
)


@dataclass(frozen=True, kw_only=True)
class GraphLimits:
    """How large a graph may be.

    graph_bytes: of the file. nodes, tensors: how many. tensor_elements: of any one tensor, intermediate ones included.
    total_elements: of all tensors together, which bounds the memory of a run. rank: of any tensor. name_length:
    characters of any name.
    """

    graph_bytes: int = 64 * 2**20
    nodes: int = 20_000
    tensors: int = 40_000
    tensor_elements: int = 2**28
    total_elements: int = 2**31
    rank: int = 8
    name_length: int = 256


@dataclass(frozen=True, kw_only=True)
class GraphSummary:
    """What a checked graph is: its inputs and outputs in order, how often each operator occurs, versions, and the bytes
    of its initialisers.
    """

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    operators: Mapping[str, int]
    opset: int
    ir_version: int
    parameter_bytes: int


def check_graph(data: bytes, *, limits: GraphLimits = GraphLimits()) -> GraphSummary:
    """The summary of a serialised ONNX graph inside the portable subset.

    Guarantees of an accepted graph: one opset of the standard domain (13 to 18) and IR version 7 to 10; only operators
    of ``OPERATORS``, within their rules; no functions, subgraphs, sparse or external data, training information or
    custom domain; every tensor has a known dtype and a static shape within ``limits``; names are unique, nodes are in
    order of use, and every name that is read is defined.

    Raises GraphRefused, and nothing else, naming the node, tensor or operator and the limit.
    """
    model = _parse(data, limits)
    opset = _check_header(model)
    graph = model.graph
    _check_sizes(graph, limits)
    for tensor in graph.initializer:
        _check_initialiser(tensor, limits)
    _check_nodes(graph, limits)
    _check_names(graph, limits)
    inputs = tuple(_describe(value, limits, what="input") for value in graph.input)
    outputs = tuple(_describe(value, limits, what="output") for value in graph.output)
    _check_shapes(model, limits)
    return GraphSummary(
        inputs=inputs,
        outputs=outputs,
        operators=dict(sorted(Counter(node.op_type for node in graph.node).items())),
        opset=opset,
        ir_version=model.ir_version,
        parameter_bytes=sum(_nbytes(tensor) for tensor in graph.initializer),
    )


def _guarded(what: str, call: Callable[[], Result]) -> Result:
    """The result of a call into onnx, whose parsers and checkers raise many classes on hostile bytes; all of them mean
    the same here.
    """
    try:
        return call()
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise GraphRefused(f"{what}: {reason[:500]}") from error


def _parse(data: bytes, limits: GraphLimits) -> ModelProto:
    if len(data) > limits.graph_bytes:
        raise GraphRefused(f"The graph file has {len(data)} bytes; at most {limits.graph_bytes} are allowed.")
    return _guarded("The bytes are not an ONNX graph", lambda: ModelProto.FromString(data))


def _check_header(model: ModelProto) -> int:
    if model.ir_version not in IR_VERSIONS:
        raise GraphRefused(
            f"The graph has IR version {model.ir_version}; {IR_VERSIONS[0]} to {IR_VERSIONS[-1]} are allowed."
        )
    if model.functions:
        raise GraphRefused(f"The graph defines a function ({_quote(model.functions[0].name)}); inline it.")
    if model.training_info:
        raise GraphRefused("The graph carries training information; a step must be an ordinary graph.")
    imports = [(entry.domain, entry.version) for entry in model.opset_import]
    foreign = [domain for domain, _ in imports if domain not in DOMAINS]
    if foreign:
        raise GraphRefused(
            f"The graph imports the custom operator domain {_quote(foreign[0])}; only standard operators are allowed."
        )
    if len(imports) != 1 or imports[0][1] not in OPSETS:
        versions = ", ".join(str(version) for _, version in imports) or "none"
        raise GraphRefused(
            f"The graph imports opset {versions}; exactly one of {OPSETS[0]} to {OPSETS[-1]} is allowed."
        )
    return imports[0][1]


def _check_sizes(graph: GraphProto, limits: GraphLimits) -> None:
    if len(graph.node) > limits.nodes:
        raise GraphRefused(f"The graph has {len(graph.node)} nodes; at most {limits.nodes} are allowed.")
    tensors = len(graph.input) + len(graph.initializer) + sum(len(node.output) for node in graph.node)
    if tensors > limits.tensors or max(len(graph.output), len(graph.value_info)) > limits.tensors:
        raise GraphRefused(f"The graph has more than {limits.tensors} tensors.")
    reads = sum(len(node.input) + sum(len(a.ints) + len(a.floats) + 1 for a in node.attribute) for node in graph.node)
    if reads > _READS * limits.tensors:
        raise GraphRefused(
            f"The nodes have {reads} operands and numbers in attributes; at most {_READS * limits.tensors} are allowed."
        )
    if graph.sparse_initializer:
        raise GraphRefused("The graph holds sparse data; only dense tensors are allowed.")
    if graph.quantization_annotation:
        raise GraphRefused("The graph holds quantisation annotations, which are not allowed.")


def _check_initialiser(tensor: TensorProto, limits: GraphLimits) -> None:
    where = f"Initialiser {_quote(tensor.name)}"
    if tensor.data_location != TensorProto.DEFAULT or tensor.external_data:
        raise GraphRefused(f"{where} points to external data; a graph must be one file.")
    if tensor.HasField("segment"):
        raise GraphRefused(f"{where} is split in segments, which is not allowed.")
    item = ITEM_BYTES.get(tensor.data_type)
    if item is None:
        raise GraphRefused(f"{where} has the element type {tensor.data_type}, which is not allowed.")
    _check_shape(tuple(tensor.dims), limits, where=where)
    expected = prod(tensor.dims)
    fields = (
        tensor.float_data,
        tensor.int32_data,
        tensor.int64_data,
        tensor.double_data,
        tensor.uint64_data,
        tensor.string_data,
    )
    if tensor.raw_data or expected == 0:
        held, unit, wanted = len(tensor.raw_data) + sum(map(len, fields)), "bytes", expected * item
    else:
        held, unit, wanted = sum(map(len, fields)), "values", expected
    if held != wanted:
        raise GraphRefused(f"{where} of shape {list(tensor.dims)} must hold {wanted} {unit}, it holds {held}.")


def _check_nodes(graph: GraphProto, limits: GraphLimits) -> None:
    constants = {tensor.name: prod(tensor.dims) for tensor in graph.initializer}
    for index, node in enumerate(graph.node):
        _check_node(node, f"Node {index} ({_quote(node.name or node.op_type)})", constants, limits)


def _check_node(node: NodeProto, where: str, constants: Mapping[str, int], limits: GraphLimits) -> None:
    if node.domain not in DOMAINS or node.overload:
        raise GraphRefused(
            f"{where} uses the operator {_quote(node.op_type)} of the custom domain "
            f"{_quote(node.domain or node.overload)}.",
            operator=node.op_type,
        )
    rule = OPERATORS.get(node.op_type)
    if rule is None:
        raise GraphRefused(
            f"{where} uses the operator {_quote(node.op_type)}, which is not in the portable subset.",
            operator=node.op_type,
        )
    # MaxPool's second output, for one, is accepted at load and fails at run on some providers.
    if len(node.output) != rule.outputs:
        wanted = "one" if rule.outputs == 1 else str(rule.outputs)
        raise GraphRefused(f"{where} has {len(node.output)} outputs; it must have {wanted}.", operator=node.op_type)
    for attribute in node.attribute:
        if (
            attribute.type not in ATTRIBUTE_TYPES
            or attribute.ref_attr_name
            or attribute.HasField("g")
            or attribute.graphs
        ):
            raise GraphRefused(
                f"{where} has the attribute {_quote(attribute.name)} of a kind that is not allowed (a graph, a tensor "
                "or a reference)."
            )
        allowed = (rule.attributes or {}).get(attribute.name)
        value = attribute.s.decode("utf-8", "replace") if attribute.type == AttributeProto.STRING else attribute.i
        if allowed is not None and value not in allowed:
            raise GraphRefused(
                f"{where}: {node.op_type} with {attribute.name}={value!r} is not allowed.", operator=node.op_type
            )
    for position in rule.constants:
        name = node.input[position] if position < len(node.input) else ""
        if name and name not in constants:
            raise GraphRefused(
                f"{where}: input {position} of {node.op_type}, {_quote(name)}, must be an initialiser, so that shapes "
                "are static.",
                operator=node.op_type,
            )
        # Bounds and widths are two for each axis at most. More cost time in every node that reads them.
        if name and constants[name] > 2 * limits.rank:
            raise GraphRefused(
                f"{where}: input {position} of {node.op_type}, {_quote(name)}, has {constants[name]} elements; at most "
                f"{2 * limits.rank} are allowed.",
                operator=node.op_type,
            )


def _check_names(graph: GraphProto, limits: GraphLimits) -> None:
    defined: set[str] = set()

    def define(names: Iterable[str], what: str) -> None:
        for name in names:
            if not name or len(name) > limits.name_length:
                raise GraphRefused(
                    f"{what} has a name of {len(name)} characters; 1 to {limits.name_length} are allowed."
                )
            if name in defined:
                raise GraphRefused(f"The name {_quote(name)} is defined twice; {what.lower()} defines it again.")
            defined.add(name)

    define((value.name for value in graph.input), "An input")
    define((tensor.name for tensor in graph.initializer), "An initialiser")
    for index, node in enumerate(graph.node):
        for name in node.input:
            if name and name not in defined:
                raise GraphRefused(
                    f"Node {index} ({_quote(node.op_type)}) reads {_quote(name)}, which nothing before it defines."
                )
        define(node.output, f"Node {index} ({_quote(node.op_type)})")
    if not graph.output:
        raise GraphRefused("The graph has no output.")
    outputs = [value.name for value in graph.output]
    if len(set(outputs)) != len(outputs):
        raise GraphRefused("The graph lists an output twice.")
    for name in outputs:
        if name not in defined:
            raise GraphRefused(f"The graph's output {_quote(name)} is defined by nothing.")


def _check_shapes(model: ModelProto, limits: GraphLimits) -> None:
    """Infer every tensor's shape and hold it against the limits. Notes of the file's author on intermediate shapes are
    not believed: they are dropped first.
    """
    bare = ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]
    _guarded("The graph is not valid ONNX", lambda: cast(Any, onnx.checker).check_model(bare))
    inferred = _guarded(
        "The graph's shapes do not fit together",
        # Without data: shapes follow from initialisers alone, and a few nodes can make data for many gigabytes.
        lambda: onnx.shape_inference.infer_shapes(bare, check_type=True, strict_mode=True, data_prop=False),
    )
    known = {
        value.name: value
        for group in (inferred.graph.input, inferred.graph.output, inferred.graph.value_info)
        for value in group
    }
    total = sum(prod(tensor.dims) for tensor in inferred.graph.initializer)
    total += sum(_elements(value, limits, what="input") for value in inferred.graph.input)
    tensors = Tensors(inferred.graph, known)
    for index, node in enumerate(inferred.graph.node):
        for name in node.output:
            value = known.get(name)
            if value is None:
                raise GraphRefused(
                    f"Node {index} ({_quote(node.op_type)}): the shape of {_quote(name)} does not follow from the "
                    "graph; it must be static."
                )
            total += _elements(value, limits, what=f"output of node {index} ({_quote(node.op_type)})")
        total += _check_arguments(node, tensors, f"Node {index} ({_quote(node.name or node.op_type)})", limits)
    if total > limits.total_elements:
        raise GraphRefused(
            f"The graph's tensors hold {total} elements together; at most {limits.total_elements} are allowed."
        )


def _check_arguments(node: NodeProto, tensors: Tensors, where: str, limits: GraphLimits) -> int:
    """The elements that a node needs beside operands and results."""
    application = tensors.application(node)
    if wrong := _guarded(where, lambda: mistake(application)):
        raise GraphRefused(f"{where}: {node.op_type}: {wrong}.", operator=node.op_type)
    needed = work_space(application)
    if needed > limits.tensor_elements:
        raise GraphRefused(
            f"{where}: {node.op_type} needs {needed} elements of work space; at most {limits.tensor_elements} are "
            "allowed.",
            operator=node.op_type,
        )
    return needed


def _elements(value: ValueInfoProto, limits: GraphLimits, *, what: str) -> int:
    return prod(_describe(value, limits, what=what).shape)


def _describe(value: ValueInfoProto, limits: GraphLimits, *, what: str) -> TensorInfo:
    where = f"The {what} {_quote(value.name)}"
    kind: TypeProto = value.type
    if kind.WhichOneof("value") != "tensor_type" or not kind.tensor_type.HasField("shape"):
        raise GraphRefused(f"{where} must be a tensor with a shape.")
    dtype = DTYPES.get(kind.tensor_type.elem_type)
    if dtype is None:
        raise GraphRefused(f"{where} has the element type {kind.tensor_type.elem_type}, which is not allowed.")
    dimensions = kind.tensor_type.shape.dim
    if not all(dimension.HasField("dim_value") for dimension in dimensions):
        raise GraphRefused(f"{where} has a dimension that is not a fixed number; shapes must be static.")
    shape = tuple(int(dimension.dim_value) for dimension in dimensions)
    _check_shape(shape, limits, where=where)
    return TensorInfo(value.name, dtype, shape)


def _check_shape(shape: Sequence[int], limits: GraphLimits, *, where: str) -> None:
    if len(shape) > limits.rank:
        raise GraphRefused(f"{where} has rank {len(shape)}; at most {limits.rank} is allowed.")
    if any(size < 0 for size in shape):
        raise GraphRefused(f"{where} has a negative dimension: {list(shape)}.")
    if prod(shape) > limits.tensor_elements:
        raise GraphRefused(f"{where} of shape {list(shape)} has more than {limits.tensor_elements} elements.")


def _nbytes(tensor: TensorProto) -> int:
    return prod(tensor.dims) * ITEM_BYTES[tensor.data_type]


def _quote(name: str) -> str:
    return repr(name if len(name) <= 80 else name[:77] + "...")
