"""Split a function's arrays over several compiled copies of it that run at the same time."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import wraps
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from coterie.compute import tree
from coterie.compute.array import Array, as_array
from coterie.compute.interactive.jit import jit
from coterie.compute.ir import NDArray
from coterie.compute.recorder import RECORDER
from coterie.compute.signature import in_order, require_function
from coterie.compute.source import user_source
from coterie.compute.trace import is_array
from coterie.errors import InputError, ShapeError, TraceError

Axes: TypeAlias = int | None | tuple[int | None, ...]
Collective: TypeAlias = Literal["sum", "mean"] | int
"""How the results of all shards become one: their sum, their mean, or joined along an axis."""


def shard(
    fn: Callable[..., Any], *, shards: int, in_axes: Axes = 0, out: Collective | tuple[Collective, ...]
) -> Callable[..., Any]:
    """``fn`` on ``shards`` equal parts of its arguments, each part in a compiled copy of its own and a thread of its
    own; between them only NumPy collectives.

    in_axes: the axis along which an argument (every array of its tree) is cut, None where every shard gets it whole;
    one for all arguments or a tuple with one for each. out: what makes one result of the parts, for every array of the
    result, or a tuple with one for each element of the tuple that ``fn`` returns.

    It is the user who says that this is right: rows of a loss's batch with "mean" for loss and gradients, columns of a
    matrix with axis 1 joined again, the summed axis of a product with "sum". Then 1, 2 and 4 shards agree to rounding.
    Sums are made in float64, in the order of the shards, so results do not depend on which thread is done first.

    Raises InputError for axes that do not fit the arguments, ShapeError for a size that ``shards`` does not divide,
    TraceError inside a trace, where there are no threads to run in.
    """
    if not isinstance(cast(object, shards), int) or shards < 1:
        raise InputError(f"shard: shards must be a whole number of at least 1, got {shards!r}.")
    for how in out if isinstance(out, tuple) else (out,):
        if how not in ("sum", "mean") and (not isinstance(cast(object, how), int) or isinstance(how, bool)):
            raise InputError(f"shard: there is no collective {how!r}.", hint='Use "sum", "mean" or an axis.')
    require_function("shard", fn)
    copies = [jit(fn) for _ in range(shards)]

    @wraps(fn)
    def sharded(*positional: Any, **named: Any) -> Any:
        arguments = in_order(fn, positional, named)
        if RECORDER.get() is not None:
            raise TraceError(
                f"{user_source()}: a sharded function runs in threads and cannot be part of a trace.",
                hint="Shard the outermost function: shard(jit(...)) or shard(grad(...)).",
            )
        axes = _axes(in_axes, len(arguments))
        parts = [
            [_part(x, axis, shards, index) for x, axis in zip(arguments, axes, strict=True)] for index in range(shards)
        ]
        with ThreadPoolExecutor(max_workers=shards) as pool:
            # Each in a copy of the caller's context, so that the switch of modes holds there too.
            runs = [pool.submit(copy_context().run, copy, *part) for copy, part in zip(copies, parts, strict=True)]
            results = [run.result() for run in runs]
        return _joined(results, out)

    return sharded


def _axes(in_axes: Axes, count: int) -> tuple[int | None, ...]:
    axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * count
    if len(axes) != count:
        raise InputError(f"{user_source()}: shard: in_axes has {len(axes)} axes for {count} arguments.")
    if all(axis is None for axis in axes):
        raise InputError(f"{user_source()}: shard: no argument is cut.", hint="Give an axis for at least one of them.")
    return axes


def _part(argument: Any, axis: int | None, shards: int, index: int) -> Any:
    """The part of an argument that one shard gets."""

    def cut(leaf: Any) -> Any:
        if axis is None or not is_array(leaf):
            return leaf
        data = as_array(leaf).numpy()
        if not -data.ndim <= axis < data.ndim:
            raise InputError(f"{user_source()}: shard: there is no axis {axis} in {as_array(leaf).type}.")
        size = data.shape[axis]
        if size % shards:
            fitting = [n for n in range(1, size + 1) if size % n == 0]
            raise ShapeError(
                f"{user_source()}: shard: axis {axis} of {as_array(leaf).type} has {size} elements, which {shards} "
                "shards do not divide.",
                hint=f"Use one of {', '.join(map(str, fitting[:12]))} shards, or pad the axis.",
            )
        width = size // shards
        place = [slice(None)] * data.ndim
        place[axis] = slice(index * width, (index + 1) * width)
        return Array(np.ascontiguousarray(data[tuple(place)]))

    return tree.map_tree(cut, argument)


def _joined(results: Sequence[Any], out: Collective | tuple[Collective, ...]) -> Any:
    first = results[0]
    if not isinstance(out, tuple):
        return tree.map_tree(lambda *leaves: Array(_collect(leaves, out)), *results)
    if not isinstance(first, tuple) or len(cast("tuple[Any, ...]", first)) != len(out):
        raise InputError(
            f"{user_source()}: shard: out has {len(out)} collectives, but the function does not return a tuple of so "
            "many."
        )
    return tuple(_joined([result[index] for result in results], how) for index, how in enumerate(out))


def _collect(leaves: Sequence[Any], how: Collective) -> NDArray:
    arrays = [as_array(leaf).numpy() for leaf in leaves]
    like = arrays[0]
    if isinstance(how, int):
        if not -like.ndim <= how < like.ndim:
            raise InputError(f"{user_source()}: shard: a result {as_array(leaves[0]).type} has no axis {how} to join.")
        return np.concatenate(arrays, axis=how)
    floating = like.dtype.kind == "f"
    if how == "mean" and not floating:
        raise InputError(f"{user_source()}: shard: the mean of {as_array(leaves[0]).type} is no such array.")
    total = np.sum(arrays, axis=0, dtype=np.float64 if floating else like.dtype)
    return np.asarray(total / len(arrays) if how == "mean" else total, like.dtype)
