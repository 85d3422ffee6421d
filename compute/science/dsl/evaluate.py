"""An expression as array functions. Every part becomes an array whose axes have names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from string import ascii_letters

import numpy as np

from coterie.compute import numpy as xp
from coterie.compute.array import Array, as_array
from coterie.compute.science.dsl.expression import (
    Access,
    Axis,
    Expression,
    Index,
    Number,
    Pointwise,
    Reduction,
    Tensor,
)
from coterie.compute.source import user_source
from coterie.errors import InputError

_SLICES = 32  # windows are stacked slices up to so many, whose gradient is cheap; beyond, gathered


@dataclass(frozen=True, slots=True)
class _Named:
    """An array and the names of its axes."""

    array: Array
    axes: tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class _Context:
    arrays: Mapping[Tensor, Array]
    sizes: Mapping[Axis, int]


def evaluate(
    expression: Expression, arrays: Mapping[Tensor, Array], sizes: Mapping[Axis, int], order: Sequence[Axis]
) -> Array:
    """The expression's values with the axes in this order."""
    found = _value(expression, _Context(arrays, sizes))
    spread = _aligned(found, tuple(order))
    return xp.broadcast_to(spread, tuple(sizes[axis] for axis in order))


def _value(expression: Expression, context: _Context) -> _Named:
    match expression:
        case Number(value):
            return _Named(as_array(value), ())
        case Access():
            return _element(expression, context)
        case Pointwise():
            return _pointwise(expression, context)
        case Reduction(kind, axes, body):
            if kind == "sum" and len(factors := _factors(body)) > 1:
                return _contraction(factors, axes, context)
            inner = _value(body, context)
            reduce = {"sum": xp.sum, "max": xp.max, "min": xp.min}[kind]
            places = tuple(inner.axes.index(axis) for axis in axes)
            return _Named(reduce(inner.array, axis=places), tuple(a for a in inner.axes if a not in axes))
        case _:
            raise InputError(f"{user_source()}: {expression} is no expression of the notation.")


def _pointwise(expression: Pointwise, context: _Context) -> _Named:
    axes, operands = expression.free(), expression.operands
    # Numbers go as they are, and take the dtype of the array beside them.
    given = [o.value if isinstance(o, Number) else _aligned(_value(o, context), axes) for o in operands]
    return _Named(expression.function(*given), axes)


def _aligned(named: _Named, axes: tuple[Axis, ...]) -> Array:
    """The array with exactly these axes, of size 1 where it has none."""
    order = [axis for axis in axes if axis in named.axes]
    array = xp.permute_dims(named.array, tuple(named.axes.index(axis) for axis in order))
    sizes = dict(zip(order, array.shape, strict=True))
    return xp.reshape(array, tuple(sizes.get(axis, 1) for axis in axes))


def _factors(expression: Expression) -> list[Expression]:
    if isinstance(expression, Pointwise) and expression.name == "*":
        return [factor for operand in expression.operands for factor in _factors(operand)]
    return [expression]


def _contraction(factors: Sequence[Expression], over: Sequence[Axis], context: _Context) -> _Named:
    """The sum of a product: einsum, and the numbers of the product afterwards."""
    numbers = [factor.value for factor in factors if isinstance(factor, Number)]
    parts = [_value(factor, context) for factor in factors if not isinstance(factor, Number)]
    axes = tuple(dict.fromkeys(axis for part in parts for axis in part.axes))
    letters = dict(zip(axes, ascii_letters, strict=False))
    kept = tuple(axis for axis in axes if axis not in over)
    inputs = ",".join("".join(letters[axis] for axis in part.axes) for part in parts)
    result = xp.einsum(f"{inputs}->{''.join(letters[axis] for axis in kept)}", *(part.array for part in parts))
    return _Named(result * prod(numbers) if numbers else result, kept)


def _element(access: Access, context: _Context) -> _Named:
    """The tensor along the axes of its indices: as it is where each is one axis; else axes that share letters are made
    one, of which windows are taken.
    """
    array = context.arrays[access.tensor]
    plain = [axis for index in access.indices if (axis := index.alone) is not None]
    if len(plain) == len(set(plain)) and [context.sizes[axis] for axis in plain] == list(array.shape):
        return _Named(array, tuple(plain))
    indices = list(access.indices)  # of the first axes of the array; those behind have names
    named: tuple[Axis, ...] = ()
    while indices:
        group = _group(indices)
        rest = [at for at in range(len(indices)) if at not in group]
        # The axes of the group first, then the others, then those already named.
        done = list(range(len(indices), array.ndim))
        shape = array.shape
        array = xp.permute_dims(array, (*group, *rest, *done))
        index, extent = indices[group[0]], shape[group[0]]
        for at in group[1:]:
            index, extent = index * shape[at] + indices[at], extent * shape[at]
        behind = tuple(shape[at] for at in (*rest, *done))
        array = xp.reshape(array, (extent, *behind))
        windows, axes = _windows(array, index, context.sizes)
        # Named axes go to the end.
        front = len(axes)
        array = xp.permute_dims(windows, (*range(front, windows.ndim), *range(front)))
        named = (*named, *axes)
        indices = [indices[at] for at in rest]
    return _Named(array, named)


def _group(indices: Sequence[Index]) -> list[int]:
    """The first index and all that share an axis with it, directly or through others."""
    group, letters = [0], {axis for axis, _ in indices[0].terms}
    while more := [at for at in range(len(indices)) if at not in group and letters & {a for a, _ in indices[at].terms}]:
        group += more
        letters |= {axis for at in more for axis, _ in indices[at].terms}
    return group


def _windows(array: Array, index: Index, sizes: Mapping[Axis, int]) -> tuple[Array, tuple[Axis, ...]]:
    """array[index, ...] with one axis for each of the index, which stand first."""
    if not index.terms:
        return array[index.offset], ()
    axes = tuple(axis for axis, _ in sorted(index.terms, key=lambda term: sizes[term[0]]))
    factors = dict(index.terms)
    *small, large = axes
    counts = [sizes[axis] for axis in small]
    if factors[large] == 1 and prod(counts) <= _SLICES:
        starts = [
            index.offset + sum(factors[axis] * place for axis, place in zip(small, places, strict=True))
            for places in np.ndindex(*counts)
        ]
        slices = [array[start : start + sizes[large]] for start in starts]
        if not small:
            return slices[0], axes
        return xp.reshape(xp.stack(slices), (*counts, *slices[0].shape)), axes
    places = np.full([sizes[axis] for axis in axes], index.offset, np.int32)
    for at, axis in enumerate(axes):
        steps = np.arange(sizes[axis], dtype=np.int32) * factors[axis]
        places += steps.reshape([-1 if i == at else 1 for i in range(len(axes))])
    gathered = xp.take(array, Array(places.reshape(-1)), axis=0)
    return xp.reshape(gathered, (*places.shape, *array.shape[1:])), axes
