"""Elements at positions that are data: slices (gather), single elements (gather_along), and sums into slices
(scatter_add), which is the gradient of the second.

The gradient of gather is a product with a one-hot matrix, which every provider can do; its cost grows with the size of
the table. scatter_add costs what it touches, on the providers that have ScatterElements.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from coterie.compute.array_type import Array, bind
from coterie.compute.ir import NDArray, Node, Type
from coterie.compute.primitives import batch, facts, rules
from coterie.compute.primitives.basic import ONNX_DTYPES
from coterie.compute.primitives.row import Batched, Call, Emitter, per_input, single
from coterie.compute.source import user_source
from coterie.errors import DTypeError, InputError, ShapeError


def _check_indices(x: Type, indices: Type, axis: int) -> None:
    if indices.dtype not in ("int32", "int64"):
        raise DTypeError("the indices must be int32 or int64.", hint='Convert them with astype(ids, "int32").')
    if not 0 <= axis < x.rank:
        raise ShapeError(f"axis {axis} does not exist.", hint=f"The operand has {x.rank} axes.")


def _check_range(name: str, indices: NDArray, axis: int, size: int) -> None:
    if indices.size and not -size <= indices.min() <= indices.max() < size:
        found = f"{indices.min()} to {indices.max()}"
        raise InputError(
            f"{user_source()}: {name}: the indices {found} leave axis {axis} of size {size}.",
            hint="Check the ids against the size of the table.",
        )


def check_known(name: str, x: Array, indices: Array, axis: int) -> None:
    """Raises InputError for known indices of a traced array that leave its axis. Later it may be too late: a graph of
    the gradient alone need not read the elements, and then nothing looks at the indices.
    """
    if x.recorder is not None and indices.recorder is None and indices.dtype.kind == "i":
        _check_range(name, indices.numpy(), axis, x.shape[axis])


def _from_start(indices: Array, count: int) -> Array:
    """Indices that count from the end made to count from the start."""
    return indices + count * rules.greater_mask(rules.number(0, indices), indices, indices.type.dtype)


def _in_one_table(indices: Array, count: int) -> Array:
    """The indices [examples, ...] of a table of ``count`` rows for each example as indices of all tables under one
    another. An index outside its own table must not reach into the next one: it is sent beyond them all, where it is
    refused.
    """
    size = indices.shape[0]
    last, beyond = Array(np.asarray(count - 1, indices.dtype)), Array(np.asarray(size * count, indices.dtype))
    inside, zero = _from_start(indices, count), rules.number(0, indices)
    outside = rules.greater_mask(inside, last, "float32") + rules.greater_mask(zero, inside, "float32")
    first = Array((np.arange(size) * count).astype(indices.dtype).reshape(size, *(1,) * (indices.ndim - 1)))
    return bind("where", bind("greater", outside, rules.number(0.0, outside)), beyond, inside + first)


def _gather_infer(x: Type, indices: Type, *, axis: int) -> Type:
    _check_indices(x, indices, axis)
    return Type(x.dtype, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def _gather(x: NDArray, indices: NDArray, *, axis: int) -> NDArray:
    _check_range("gather", indices, axis, x.shape[axis])
    return np.take(x, indices, axis=axis)


def _gather_gradient(call: Call, g: Array) -> Array:
    """Sum the cotangents of equal indices: a product with the transposed one-hot matrix. It runs on every provider.
    Indices that are known and differ, as those of x[::2], need no sum.
    """
    x, indices = call.inputs
    axis: int = call.attributes["axis"]
    if indices.recorder is None:
        _check_range("gather", indices.numpy(), axis, x.shape[axis])
    if indices.recorder is None and np.unique(indices.numpy() % x.shape[axis]).size == indices.size:
        return _put_back(g, indices.numpy().reshape(-1) % x.shape[axis], x.shape, axis)
    if indices.recorder is None and indices.size * x.shape[axis] > _KNOWN_PRODUCT:
        return _gathered_back(g, indices.numpy().reshape(-1) % x.shape[axis], x.shape, axis)
    count, rest = x.shape[axis], x.shape[:axis] + x.shape[axis + 1 :]
    steps = Array(np.arange(count, dtype=indices.type.dtype))
    one_hot = rules.equal_mask(_from_start(rules.reshape(indices, (indices.size, 1)), count), steps, g.type.dtype)
    front = tuple(range(axis, axis + indices.ndim))
    rows = rules.transpose(g, front + tuple(i for i in range(g.ndim) if i not in front))
    table = bind("matmul", rules.swap_last(one_hot), rules.reshape(rows, (indices.size, prod(rest))))
    order = (*range(1, axis + 1), 0, *range(axis + 1, x.ndim))
    return rules.transpose(rules.reshape(table, (count, *rest)), order)


# Elements of a one-hot matrix that are kept as a constant at most, where indices are known.
_KNOWN_PRODUCT = 1 << 16


def _gathered_back(g: Array, places: NDArray, shape: tuple[int, ...], axis: int) -> Array:
    """The sums of the slices of g of equal places. Places that are named about equally often are summed together, one
    row of slices for each, filled up with a slice of zeros: at most twice the slices of g, in few steps.
    """
    rows = rules.reshape(g, (*shape[:axis], places.size, *shape[axis + 1 :]))
    before = (0,) * len(shape)
    filled = bind("pad", rows, before=before, after=(*before[:axis], 1, *before[axis + 1 :]), value=0.0)
    named, group, times = np.unique(places, return_inverse=True, return_counts=True)
    order = np.argsort(group, kind="stable")
    starts = np.cumsum(times) - times
    sizes = np.ceil(np.log2(times)).astype(np.int64)
    sums: list[Array] = []
    targets: list[NDArray] = []
    for size in np.unique(sizes):
        members = np.flatnonzero(sizes == size)
        most = int(times[members].max())
        column = np.arange(most)
        inside = column < times[members, None]
        source = np.where(inside, order[np.where(inside, starts[members, None] + column, 0)], places.size)
        picked = bind("gather", filled, Array(source.reshape(-1).astype(places.dtype)), axis=axis)
        apart = rules.reshape(picked, (*shape[:axis], members.size, most, *shape[axis + 1 :]))
        sums.append(rules.sum_over(apart, (axis + 1,)))
        targets.append(named[members])
    total = sums[0] if len(sums) == 1 else bind("concat", *sums, axis=axis)
    return _put_back(total, np.concatenate(targets), shape, axis)


def _put_back(g: Array, places: NDArray, shape: tuple[int, ...], axis: int) -> Array:
    """The slices of g at these places, which differ, and zeros at all others."""
    rows = rules.reshape(g, (*shape[:axis], places.size, *shape[axis + 1 :]))
    source = np.full(shape[axis], places.size, places.dtype)
    source[places] = np.arange(places.size)
    if places.size < shape[axis]:  # one slice of zeros, from which all others are taken
        before = (0,) * len(shape)
        rows = bind("pad", rows, before=before, after=(*before[:axis], 1, *before[axis + 1 :]), value=0.0)
    return bind("gather", rows, Array(source), axis=axis)


def _gather_lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    out = emit.op("Gather", *names, axis=node.attributes["axis"])
    if node.inputs[1].type.shape and node.output.type.shape:
        return out
    return emit.op("Reshape", out, emit.integers(rules.carried(node.output.type.shape)))


def _gather_batch(call: Batched) -> Array:
    x, indices = call.inputs
    axis: int = call.attributes["axis"]
    if not call.mapped[1]:
        return bind("gather", x, indices, axis=axis + 1)
    if not call.mapped[0]:
        out = bind("gather", x, indices, axis=axis)
        return rules.transpose(out, (axis, *(i for i in range(out.ndim) if i != axis)))
    order = (0, axis + 1, *(i for i in range(1, x.ndim) if i != axis + 1))
    flat = _in_one_table(indices, x.shape[axis + 1])
    rows = bind("gather", batch.folded(rules.transpose(x, order)), flat, axis=0)
    inner = indices.ndim
    return rules.transpose(rows, (0, *range(inner, inner + axis), *range(1, inner), *range(inner + axis, rows.ndim)))


def _along_infer(x: Type, indices: Type, *, axis: int) -> Type:
    _check_indices(x, indices, axis)
    if (*x.shape[:axis], *x.shape[axis + 1 :]) != (*indices.shape[:axis], *indices.shape[axis + 1 :]):
        raise ShapeError(
            f"the indices {list(indices.shape)} differ from {list(x.shape)} on another axis than {axis}.",
            hint=f"All axes but {axis} must be equal: broadcast_to one of them, or use take for whole slices.",
        )
    return Type(x.dtype, indices.shape)


def _along(x: NDArray, indices: NDArray, *, axis: int) -> NDArray:
    _check_range("gather_along", indices, axis, x.shape[axis])
    return np.take_along_axis(x, indices, axis=axis)


def _along_gradient(call: Call, g: Array) -> Array:
    """Sum the cotangents of equal positions, counted in row-major order over the whole operand."""
    x, indices = call.inputs
    axis: int = call.attributes["axis"]
    dtype = "int32" if x.size <= np.iinfo(np.int32).max else "int64"
    positions = np.arange(x.size).reshape(x.shape).take([0], axis=axis)
    flat = _from_start(rules.cast(indices, dtype), x.shape[axis]) * prod(x.shape[axis + 1 :])
    flat = flat + Array(positions.astype(dtype))
    total = bind("scatter_add", rules.zeros(Type(g.type.dtype, (x.size,))), _flat(flat), _flat(g))
    return rules.reshape(total, x.shape)


def _flat(x: Array) -> Array:
    return rules.reshape(x, (x.size,))


def _along_batch(call: Batched) -> Array:
    return bind("gather_along", *batch.all_mapped(call), axis=call.attributes["axis"] + 1)


def _along_lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    return emit.op("GatherElements", *names, axis=node.attributes["axis"])


def _scatter_infer(x: Type, indices: Type, updates: Type) -> Type:
    rules.same_dtype(x, updates)
    if x.dtype == "bool":
        raise DTypeError("sums of bool.", hint='Convert it with astype(x, "int32").')
    _check_indices(x, indices, 0)
    wanted = (*indices.shape, *x.shape[1:])
    if updates.shape != wanted:
        raise ShapeError(
            f"the updates {updates} are not one slice {list(x.shape[1:])} for each of the indices "
            f"{list(indices.shape)}.",
            hint=f"Give updates of shape {list(wanted)}.",
        )
    return x


def _scatter(x: NDArray, indices: NDArray, updates: NDArray) -> NDArray:
    _check_range("scatter_add", indices, 0, x.shape[0])
    out = x.copy()
    np.add.at(out, indices, updates)
    return out


def _scatter_gradient(call: Call, g: Array) -> Array:
    return bind("gather", g, call.inputs[1], axis=0)


def _scatter_batch(call: Batched) -> Array:
    x, indices, updates = batch.all_mapped(call)
    total = bind("scatter_add", batch.folded(x), _in_one_table(indices, x.shape[1]), updates)
    return batch.unfolded(total, call.size)


def _scatter_lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    # ScatterElements, which wants an index for every element, and not ScatterND, which wants one for every slice: with
    # several threads the CPU's ScatterND loses updates of slices that are named twice (ONNX Runtime 1.31).
    x, indices, _ = (value.type for value in node.inputs)
    count, width = indices.size, prod(x.shape[1:])
    operands, half = list(names), x.dtype == "float16"
    if half:  # the CPU cannot add half precision in place; the sum is the better for it
        operands[0], operands[2] = (emit.op("Cast", name, to=ONNX_DTYPES["float32"]) for name in (names[0], names[2]))
    for index, shape in enumerate(((x.shape[0], width), (count, 1), (count, width))):
        if node.inputs[index].type.shape != shape:
            operands[index] = emit.op("Reshape", operands[index], emit.integers(shape))
    if width > 1:
        operands[1] = emit.op("Expand", operands[1], emit.integers((count, width)))
    out = emit.op("ScatterElements", *operands, axis=0, reduction="add")
    out = emit.op("Cast", out, to=ONNX_DTYPES["float16"]) if half else out
    return out if x.rank == 2 else emit.op("Reshape", out, emit.integers(x.shape))


ROWS = (
    single(
        name="gather",
        infer=_gather_infer,
        evaluate=_gather,
        gradient=per_input(_gather_gradient, None),
        batch=_gather_batch,
        lower=_gather_lower,
        facts=facts.moving(
            category="tensor", view=False, cheap=False, zero="no", half="chooses", rounds=True, folds=True
        ),
    ),
    single(
        name="gather_along",
        infer=_along_infer,
        evaluate=_along,
        gradient=per_input(_along_gradient, None),
        batch=_along_batch,
        lower=_along_lower,
        facts=facts.moving(
            category="tensor", view=False, cheap=False, zero="no", half="follows", rounds=True, folds=True
        ),
    ),
    single(
        name="scatter_add",
        infer=_scatter_infer,
        evaluate=_scatter,
        gradient=per_input(lambda call, g: g, None, _scatter_gradient),
        batch=_scatter_batch,
        lower=_scatter_lower,
        facts=facts.computing(
            category="tensor",
            flops=facts.read,
            cheap=False,
            zero="no",
            nonnegative=False,
            half="single",
            derivative=False,
        ),
    ),
)
