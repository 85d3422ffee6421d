"""Moving elements without computing: reshape, transpose, broadcast, slice, pad, concatenate."""

from collections.abc import Sequence
from math import prod

import numpy as np

from coterie.compute.array_type import Array, bind
from coterie.compute.ir import NDArray, Node, Type
from coterie.compute.primitives import batch, facts, rules
from coterie.compute.primitives.row import Batched, Call, Emitter, per_input, single
from coterie.errors import DTypeError, ShapeError

Shape = tuple[int, ...]


def _reshape_infer(x: Type, *, shape: Shape) -> Type:
    # -1 is the unknown size of a stack of a while loop: NumPy and ONNX read it from the data.
    if prod(shape) != x.size or shape.count(-1) != x.shape.count(-1) or any(n < -1 for n in shape):
        raise ShapeError(
            f"{x.size} elements do not make the shape {list(shape)} ({prod(shape)} elements).",
            hint="The number of elements must stay.",
        )
    return Type(x.dtype, shape)


def _reshape(x: NDArray, *, shape: Shape) -> NDArray:
    return x.reshape(shape)


def _reshape_gradient(call: Call, g: Array) -> Array:
    return rules.reshape(g, call.inputs[0].shape)


def _reshape_lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    return emit.op("Reshape", names[0], emit.integers(rules.carried(node.attributes["shape"])))


def _reshape_batch(call: Batched) -> Array:
    return rules.reshape(call.inputs[0], (call.size, *call.attributes["shape"]))


def _transpose_infer(x: Type, *, permutation: Shape) -> Type:
    if sorted(permutation) != list(range(x.rank)):
        raise ShapeError(f"{list(permutation)} is not an order of {x.rank} axes.", hint="Name every axis once.")
    return Type(x.dtype, tuple(x.shape[axis] for axis in permutation))


def _transpose(x: NDArray, *, permutation: Shape) -> NDArray:
    return np.transpose(x, permutation)


def _transpose_gradient(call: Call, g: Array) -> Array:
    permutation: Shape = call.attributes["permutation"]
    return rules.transpose(g, tuple(permutation.index(axis) for axis in range(len(permutation))))


def _transpose_lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    # One that moves nothing is not written: ONNX Runtime 1.24 takes it for a real one where it stands behind a Gemm.
    permutation = list(node.attributes["permutation"])
    return names[0] if permutation == sorted(permutation) else emit.op("Transpose", names[0], perm=permutation)


def _transpose_batch(call: Batched) -> Array:
    return rules.transpose(call.inputs[0], (0, *(axis + 1 for axis in call.attributes["permutation"])))


def _broadcast_infer(x: Type, *, shape: Shape) -> Type:
    if rules.broadcast_shapes(x, Type(x.dtype, shape)) != shape:
        raise ShapeError(
            f"{list(x.shape)} does not broadcast to {list(shape)}.",
            hint="Only axes of size 1 and missing leading axes can grow.",
        )
    return Type(x.dtype, shape)


def _broadcast(x: NDArray, *, shape: Shape) -> NDArray:
    return np.broadcast_to(x, shape)


def _broadcast_gradient(call: Call, g: Array) -> Array:
    return rules.unbroadcast(g, call.inputs[0].shape)


def _broadcast_lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    return emit.op("Expand", names[0], emit.integers(rules.carried(node.attributes["shape"])))


def _broadcast_batch(call: Batched) -> Array:
    x, shape = call.inputs[0], call.attributes["shape"]
    missing = (1,) * (len(shape) + 1 - x.ndim)
    return rules.broadcast_to(rules.reshape(x, (call.size, *missing, *x.shape[1:])), (call.size, *shape))


def _slice_infer(x: Type, *, starts: Shape, stops: Shape) -> Type:
    if not len(starts) == len(stops) == x.rank or any(
        not 0 <= a <= b <= n for a, b, n in zip(starts, stops, x.shape, strict=True)
    ):
        raise ShapeError(
            f"[{list(starts)} to {list(stops)}] is not a part of {list(x.shape)}.",
            hint="0 <= start <= stop <= size on every axis.",
        )
    return Type(x.dtype, tuple(stop - start for start, stop in zip(starts, stops, strict=True)))


def _slice(x: NDArray, *, starts: Shape, stops: Shape) -> NDArray:
    return x[tuple(slice(start, stop) for start, stop in zip(starts, stops, strict=True))]


def _slice_gradient(call: Call, g: Array) -> Array:
    starts: Shape = call.attributes["starts"]
    after = tuple(n - stop for n, stop in zip(call.inputs[0].shape, call.attributes["stops"], strict=True))
    return bind("pad", g, before=starts, after=after, value=0.0)


def _slice_lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    starts, stops, shape = node.attributes["starts"], node.attributes["stops"], node.inputs[0].type.shape
    axes = [axis for axis, n in enumerate(shape) if (starts[axis], stops[axis]) != (0, n)]
    if not axes:
        return names[0]
    return emit.op(
        "Slice",
        names[0],
        emit.integers([starts[a] for a in axes]),
        emit.integers([stops[a] for a in axes]),
        emit.integers(axes),
    )


def _slice_batch(call: Batched) -> Array:
    starts, stops = call.attributes["starts"], call.attributes["stops"]
    return bind("slice", call.inputs[0], starts=(0, *starts), stops=(call.size, *stops))


def _strided_infer(x: Type, *, starts: Shape, stops: Shape, steps: Shape) -> Type:
    within = _slice_infer(x, starts=starts, stops=stops)
    if len(steps) != x.rank or any(step < 1 for step in steps):
        raise ShapeError(f"steps {list(steps)} over {list(x.shape)}.", hint="Give one step >= 1 for each axis.")
    return Type(x.dtype, tuple(-(-n // step) for n, step in zip(within.shape, steps, strict=True)))


def _strided(x: NDArray, *, starts: Shape, stops: Shape, steps: Shape) -> NDArray:
    return x[tuple(map(slice, starts, stops, steps))]


def _strided_gradient(call: Call, g: Array) -> Array:
    starts, stops, steps = (call.attributes[name] for name in ("starts", "stops", "steps"))
    for axis, step in enumerate(steps):
        if step > 1:
            g = _spread(g, axis, step, stops[axis] - starts[axis])
    after = tuple(n - stop for n, stop in zip(call.inputs[0].shape, stops, strict=True))
    return bind("pad", g, before=starts, after=after, value=0.0)


def _spread(g: Array, axis: int, step: int, size: int) -> Array:
    """Zeros behind each element of an axis, so that they are ``step`` apart; ``size`` elements of that."""
    front, back = g.shape[:axis], g.shape[axis + 1 :]
    apart = rules.reshape(g, (*front, g.shape[axis], 1, *back))
    behind = tuple(step - 1 if place == axis + 1 else 0 for place in range(apart.ndim))
    apart = bind("pad", apart, before=(0,) * apart.ndim, after=behind, value=0.0)
    flat = rules.reshape(apart, (*front, g.shape[axis] * step, *back))
    return bind("slice", flat, starts=(0,) * flat.ndim, stops=(*front, size, *back))


def _strided_lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    starts, stops, steps = (node.attributes[name] for name in ("starts", "stops", "steps"))
    sizes = node.inputs[0].type.shape
    axes = [axis for axis, n in enumerate(sizes) if (starts[axis], stops[axis], steps[axis]) != (0, n, 1)]
    if not axes:
        return names[0]
    return emit.op(
        "Slice",
        names[0],
        *(emit.integers([which[a] for a in axes]) for which in (starts, stops, range(len(sizes)), steps)),
    )


def _strided_batch(call: Batched) -> Array:
    starts, stops, steps = (call.attributes[name] for name in ("starts", "stops", "steps"))
    return bind(call.name, call.inputs[0], starts=(0, *starts), stops=(call.size, *stops), steps=(1, *steps))


def _pad_infer(x: Type, *, before: Shape, after: Shape, value: float) -> Type:
    if not len(before) == len(after) == x.rank or any(n < 0 for n in before + after):
        raise ShapeError(
            f"cannot pad {list(x.shape)} by {list(before)} before and {list(after)} after.",
            hint="Give one count >= 0 for each axis.",
        )
    if x.dtype == "bool":
        raise DTypeError("padding of bool.", hint='Convert it with astype(x, "float32").')
    return Type(x.dtype, tuple(a + n + b for a, n, b in zip(before, x.shape, after, strict=True)))


def _pad(x: NDArray, *, before: Shape, after: Shape, value: float) -> NDArray:
    return np.pad(x, tuple(zip(before, after, strict=True)), constant_values=value) if before else x


def _pad_gradient(call: Call, g: Array) -> Array:
    before: Shape = call.attributes["before"]
    return bind(
        "slice", g, starts=before, stops=tuple(start + n for start, n in zip(before, call.inputs[0].shape, strict=True))
    )


def _pad_lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    if not node.attributes["before"]:
        return names[0]
    pads = emit.integers([*node.attributes["before"], *node.attributes["after"]])
    return emit.op(
        "Pad",
        names[0],
        pads,
        emit.constant(np.asarray(node.attributes["value"], node.output.type.dtype)),
        mode="constant",
    )


def _pad_batch(call: Batched) -> Array:
    before, after, value = (call.attributes[name] for name in ("before", "after", "value"))
    return bind("pad", call.inputs[0], before=(0, *before), after=(0, *after), value=value)


def _concat_infer(*types: Type, axis: int) -> Type:
    dtype, first = rules.same_dtype(*types), types[0].shape
    if not 0 <= axis < len(first):
        raise ShapeError(f"axis {axis} does not exist.", hint=f"The operands have {len(first)} axes.")
    for type_ in types:
        if type_.rank != len(first) or any(
            a != b for i, (a, b) in enumerate(zip(first, type_.shape, strict=True)) if i != axis
        ):
            raise ShapeError(
                f"the operands differ on another axis than {axis}.", hint=f"All but axis {axis} must be equal."
            )
    return Type(dtype, (*first[:axis], sum(type_.shape[axis] for type_ in types), *first[axis + 1 :]))


def _concat(*arrays: NDArray, axis: int) -> NDArray:
    return np.concatenate(arrays, axis=axis)


def _concat_gradient(index: int, call: Call, g: Array) -> Array:
    axis: int = call.attributes["axis"]
    start = sum(array.shape[axis] for array in call.inputs[:index])
    starts, stops = [0] * g.ndim, list(g.shape)
    starts[axis], stops[axis] = start, start + call.inputs[index].shape[axis]
    return bind("slice", g, starts=tuple(starts), stops=tuple(stops))


def _concat_lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    return emit.op("Concat", *names, axis=node.attributes["axis"])


def _concat_batch(call: Batched) -> Array:
    return bind("concat", *batch.all_mapped(call), axis=call.attributes["axis"] + 1)


ROWS = (
    single(
        name="reshape",
        infer=_reshape_infer,
        evaluate=_reshape,
        gradient=per_input(_reshape_gradient),
        batch=_reshape_batch,
        lower=_reshape_lower,
        facts=facts.moving(
            category="tensor", view=True, cheap=True, zero="all", half="follows", rounds=False, folds=True
        ),
    ),
    single(
        name="transpose",
        infer=_transpose_infer,
        evaluate=_transpose,
        gradient=per_input(_transpose_gradient),
        batch=_transpose_batch,
        lower=_transpose_lower,
        facts=facts.moving(
            category="tensor", view=False, cheap=True, zero="all", half="follows", rounds=False, folds=True
        ),
    ),
    single(
        name="broadcast_to",
        infer=_broadcast_infer,
        evaluate=_broadcast,
        gradient=per_input(_broadcast_gradient),
        batch=_broadcast_batch,
        lower=_broadcast_lower,
        facts=facts.moving(
            category="tensor", view=False, cheap=True, zero="no", half="follows", rounds=False, folds=False
        ),
    ),
    single(
        name="slice",
        infer=_slice_infer,
        evaluate=_slice,
        gradient=per_input(_slice_gradient),
        batch=_slice_batch,
        lower=_slice_lower,
        facts=facts.moving(
            category="tensor", view=False, cheap=True, zero="all", half="follows", rounds=False, folds=True
        ),
    ),
    single(
        name="strided_slice",
        infer=_strided_infer,
        evaluate=_strided,
        gradient=per_input(_strided_gradient),
        batch=_strided_batch,
        lower=_strided_lower,
        facts=facts.moving(
            category="tensor", view=False, cheap=True, zero="all", half="follows", rounds=False, folds=True
        ),
    ),
    single(
        name="pad",
        infer=_pad_infer,
        evaluate=_pad,
        gradient=per_input(_pad_gradient),
        batch=_pad_batch,
        lower=_pad_lower,
        facts=facts.moving(
            category="tensor", view=False, cheap=True, zero="all", half="follows", rounds=True, folds=True
        ),
    ),
    single(
        name="concat",
        infer=_concat_infer,
        evaluate=_concat,
        gradient=_concat_gradient,
        batch=_concat_batch,
        lower=_concat_lower,
        facts=facts.moving(
            category="tensor", view=False, cheap=False, zero="all", half="chooses", rounds=False, folds=True
        ),
    ),
)
