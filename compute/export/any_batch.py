"""One file for batches of any size, out of a graph of static shapes.

ONNX Runtime takes a batch of any size where no constant of the file depends on that size. Graphs have static shapes, so
the model of one row is mapped over batches of three sizes, each is written, and the three files are compared. They are
the same but for constants: a constant that differs is ``a·n + b`` of the batch size n, or a tensor that is the same all
along axes of such lengths. Those are computed in the file from the shape of its first input. Whatever differs otherwise
is refused by name.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from coterie.compute.array import Array
from coterie.compute.batching import vmap
from coterie.compute.ir import Graph, NDArray
from coterie.compute.replay import apply
from coterie.compute.trace import TensorSpec, trace_named
from coterie.errors import GraphRefused

_AXIS = "batch"
_TRIALS = ((13, 17, 19), (37, 41, 43))  # primes, so that few sizes of a model are multiples of them by chance
_SIZE = "batch_size"


def open_batch(graph: Graph, write: Callable[[Graph], bytes]) -> bytes:
    """The file of a model for batches of any size.

    graph: the model of one row; the first axis of each input and output is of length 1. write: makes a file of a graph.
    Guarantees: each row is answered as the model of one row answers it, whatever else is in the batch; the first axis
    of every input and output is called "batch".
    Raises GraphRefused (code ``batch_fixed``) for a model whose file depends on the batch size in another way.
    """
    _require_one_row(graph)
    refused: GraphRefused | None = None
    for sizes in _TRIALS:
        files = [ModelProto.FromString(write(_mapped(graph, size))) for size in sizes]
        try:
            return _joined(files, sizes)
        except GraphRefused as error:  # sizes of the model may be multiples of the batch's by chance: others are tried
            refused = error
    raise _refused("no size fits") if refused is None else refused


def _require_one_row(graph: Graph) -> None:
    for kind, values in (("input", graph.inputs), ("output", graph.outputs)):
        for name, value in values.items():
            if value.type.shape[:1] != (1,):
                raise _refused(
                    f"the {kind} {name!r} is {value.type}, and not of one row",
                    "Leave the size of the batch open; Experiment(infer_batch=1) makes a file of one row.",
                )


def _mapped(graph: Graph, size: int) -> Graph:
    """The model over so many rows at once."""
    specs = {name: TensorSpec((size, *value.type.shape[1:]), value.type.dtype) for name, value in graph.inputs.items()}

    def rows(*given: Array) -> list[Array]:
        return apply(graph, given)

    def answered(given: Mapping[str, Array]) -> dict[str, Array]:
        batches = [given[name].reshape((size, *value.type.shape)) for name, value in graph.inputs.items()]
        made: Sequence[Array] = vmap(rows)(*batches)
        flat = (each.reshape((size, *each.shape[2:])) for each in made)
        return dict(zip(graph.outputs, flat, strict=True))

    return trace_named(answered, specs)


def _joined(files: Sequence[ModelProto], sizes: Sequence[int]) -> bytes:
    """The one file that these are for these sizes."""
    first = files[0]
    for each in files[1:]:
        _require_alike(first.graph, each.graph)
    only_shapes = _only_shapes(first.graph)
    computed: list[NodeProto] = []
    kept: list[TensorProto] = []
    for tensors in zip(*(file.graph.initializer for file in files), strict=True):
        arrays = [numpy_helper.to_array(tensor) for tensor in tensors]
        name = tensors[0].name
        inferred = _inferred(arrays, sizes) if name in only_shapes else None
        if all(tensor == tensors[0] for tensor in tensors[1:]):
            kept.append(tensors[0])
        elif inferred is not None:
            kept.append(numpy_helper.from_array(inferred, name))
        else:
            nodes, more = _of_size(name, arrays, sizes)
            computed += nodes
            kept += more
    rows = helper.make_node("Shape", [first.graph.input[0].name], [_SIZE], name=_SIZE, start=0, end=1)
    body = [*([rows] if computed else []), *computed, *first.graph.node]
    del first.graph.initializer[:], first.graph.node[:]
    first.graph.initializer.extend(kept)
    first.graph.node.extend(body)
    for value in (*first.graph.input, *first.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = _AXIS
    return first.SerializeToString(deterministic=True)


def _require_alike(one: GraphProto, other: GraphProto) -> None:
    """Raise where two files differ in more than the values of constants and the sizes of inputs and outputs."""
    if len(one.node) != len(other.node) or len(one.initializer) != len(other.initializer):
        raise _refused("it has more operators for larger batches")
    for mine, theirs in zip(one.node, other.node, strict=True):
        if mine != theirs:
            told = f"an attribute of {mine.op_type} depends" if mine.op_type == theirs.op_type else "operators depend"
            raise _refused(f"{told} on the size of the batch")
    if _names(one.initializer) != _names(other.initializer):
        raise _refused("its constants depend on the size of the batch")


def _names(values: Iterable[Any]) -> list[str]:
    return [value.name for value in values]


def _only_shapes(graph: GraphProto) -> frozenset[str]:
    """Constants that nothing reads but Reshape, as the shape to make."""
    shapes = {node.input[1] for node in graph.node if node.op_type == "Reshape"}
    others = {name for node in graph.node for at, name in enumerate(node.input) if (node.op_type, at) != ("Reshape", 1)}
    return frozenset(shapes - others)


def _inferred(shapes: Sequence[NDArray], sizes: Sequence[int]) -> NDArray | None:
    """The shape with -1 for its one length that depends on the size of the batch; None where several do."""
    line = _line([shape.astype(np.float64) for shape in shapes], sizes)
    if line is None or np.count_nonzero(line[0]) != 1:
        return None
    return np.where(line[0] != 0, -1, line[1])


def _of_size(name: str, arrays: Sequence[NDArray], sizes: Sequence[int]) -> tuple[list[NodeProto], list[TensorProto]]:
    """Nodes that compute a constant which differs between sizes, and the constants that they need."""
    if len({array.shape for array in arrays}) == 1:
        line = _line([array.astype(np.float64) for array in arrays], sizes)
        if arrays[0].dtype != np.int64 or line is None:
            raise _refused("a constant depends on the size of the batch in no simple way")
        return _linear(name, name, *line)
    ranks = {array.ndim for array in arrays}
    shapes = [np.asarray(array.shape, np.float64) for array in arrays]
    line = _line(shapes, sizes) if len(ranks) == 1 else None
    axes = [] if line is None else [int(axis) for axis in np.flatnonzero(line[0])]
    thin = [_thin(array, axes) for array in arrays]
    if line is None or any(each is None or not _same(each, thin[0]) for each in thin) or thin[0] is None:
        raise _refused("a constant has other numbers for each row of a batch")
    nodes, constants = _linear(f"{name}_shape", f"{name}_shape", *line)
    nodes.append(helper.make_node("Expand", [f"{name}_row", f"{name}_shape"], [name], name=f"{name}_expanded"))
    return nodes, [*constants, numpy_helper.from_array(thin[0], f"{name}_row")]


def _line(values: Sequence[NDArray], sizes: Sequence[int]) -> tuple[NDArray, NDArray] | None:
    """Whole numbers (a, b) with which each of the values is a·n + b for its size n; None where there are none."""
    slope = (values[1] - values[0]) / (sizes[1] - sizes[0])
    rest = values[0] - slope * sizes[0]
    fits = all(np.array_equal(slope * size + rest, value) for size, value in zip(sizes, values, strict=True))
    return (slope.astype(np.int64), rest.astype(np.int64)) if fits and np.array_equal(slope, np.round(slope)) else None


def _linear(name: str, stem: str, slope: NDArray, rest: NDArray) -> tuple[list[NodeProto], list[TensorProto]]:
    nodes = [
        helper.make_node("Mul", [_SIZE, f"{stem}_per_row"], [f"{stem}_of_rows"], name=f"{stem}_of_rows"),
        helper.make_node("Add", [f"{stem}_of_rows", f"{stem}_fixed"], [name], name=f"{stem}_sum"),
    ]
    return nodes, [numpy_helper.from_array(slope, f"{stem}_per_row"), numpy_helper.from_array(rest, f"{stem}_fixed")]


def _thin(array: NDArray, axes: Sequence[int]) -> NDArray | None:
    """The array with one element along these axes; None where it is not the same all along them."""
    row = array
    for axis in axes:
        row = np.take(row, [0], axis=axis)
    return row if np.array_equal(np.broadcast_to(row, array.shape), array) else None


def _same(one: NDArray, other: NDArray | None) -> bool:
    return other is not None and one.dtype == other.dtype and np.array_equal(one, other)


def _refused(what: str, hint: str = "Export it for one size of batch, with batch='fixed'.") -> GraphRefused:
    return GraphRefused(f"This model cannot be written for batches of any size: {what}.", hint=hint, code="batch_fixed")
