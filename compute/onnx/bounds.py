"""The tensors of a serialised graph, held against limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from onnx import TensorProto, TypeProto, ValueInfoProto

from coterie.compute.runtime.tensors import TensorInfo
from coterie.errors import GraphRefused

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


@dataclass(frozen=True, kw_only=True)
class GraphLimits:
    """How large a graph may be.

    graph_bytes: of the file. nodes, tensors: how many. runs: of nodes in one run of the graph, those inside of a loop
    counted at each of its steps. tensor_elements: of any one tensor, intermediate ones included. total_elements: of all
    tensors together, which bounds the memory of a run; those inside of a loop count at each step. rank: of any tensor.
    name_length: characters of any name.
    """

    graph_bytes: int = 64 * 2**20
    nodes: int = 20_000
    tensors: int = 40_000
    runs: int = 320_000
    tensor_elements: int = 2**28
    total_elements: int = 2**31
    rank: int = 8
    name_length: int = 256


LIMITS = GraphLimits()


def check_initialiser(tensor: TensorProto, limits: GraphLimits) -> None:
    """Raise GraphRefused unless an initialiser holds all of its numbers itself, of a known type and size."""
    where = f"Initialiser {quoted(tensor.name)}"
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


def elements_of(value: ValueInfoProto, limits: GraphLimits, *, what: str) -> int:
    """How many elements an input, an output or what a node makes has. Raises as ``described``."""
    return prod(described(value, limits, what=what).shape)


def described(value: ValueInfoProto, limits: GraphLimits, *, what: str) -> TensorInfo:
    """A value of a graph, by its stated type. Raises GraphRefused for one without a known type and static shape."""
    where = f"The {what} {quoted(value.name)}"
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


def nbytes(tensor: TensorProto) -> int:
    """Bytes of an initialiser."""
    return prod(tensor.dims) * ITEM_BYTES[tensor.data_type]


def quoted(name: str) -> str:
    """A name of the file in a message, cut where it is long."""
    return repr(name if len(name) <= 80 else name[:77] + "...")
