"""Shape rules and small array functions that several families share."""

from collections.abc import Sequence

import numpy as np

from coterie.compute.array_type import Array, bind
from coterie.compute.ir import Type
from coterie.errors import DTypeError, ShapeError


def broadcast_shapes(*types: Type) -> tuple[int, ...]:
    """The common shape under NumPy's rule. Raises ShapeError."""
    if len({type_.shape for type_ in types}) == 1:  # also of stacks of a while loop, whose size is not known
        return types[0].shape
    try:
        return np.broadcast_shapes(*(type_.shape for type_ in types))
    except ValueError:
        shapes = " and ".join(str(list(type_.shape)) for type_ in types)
        raise ShapeError(f"the shapes {shapes} do not broadcast.", hint=_broadcast_hint(types)) from None


def _broadcast_hint(types: Sequence[Type]) -> str:
    a, b = types[0].shape, types[-1].shape
    if a == b[::-1]:
        return "One of them looks transposed."
    if len(a) != len(b) and (a[: len(b)] == b or b[: len(a)] == a):
        return "Axes are matched from the right: add the missing axis with expand_dims(x, axis)."
    return "Axes are matched from the right and must be equal or 1: reshape one of them."


def same_dtype(*types: Type) -> str:
    """The one dtype of all operands. Raises DTypeError."""
    if len({type_.dtype for type_ in types}) > 1:
        raise DTypeError("the operands have different dtypes.", hint="Convert one of them with astype(x, dtype).")
    return types[0].dtype


def require_float(type_: Type) -> None:
    """Raises DTypeError unless the operand is a float."""
    if not type_.is_float:
        raise DTypeError("the operand must be a float.", hint='Convert it with astype(x, "float32").')


def require_rank(type_: Type, rank: int, meaning: str) -> None:
    """Raises ShapeError unless the operand has this rank. ``meaning`` names its axes."""
    if type_.rank != rank:
        raise ShapeError(
            f"{type_} has {type_.rank} axes instead of the {rank} of {meaning}.",
            hint=f"Reshape the operand to {meaning}.",
        )


def unbroadcast(g: Array, shape: tuple[int, ...]) -> Array:
    """Sum over exactly the axes along which an operand of this shape was broadcast: the gradient of broadcasting."""
    if g.shape == shape:
        return g
    extra = g.ndim - len(shape)
    axes = tuple(range(extra)) + tuple(extra + i for i, n in enumerate(shape) if n == 1 and g.shape[extra + i] != 1)
    return reshape(sum_over(g, axes), shape)


def reshape(x: Array, shape: tuple[int, ...]) -> Array:
    return x if x.shape == shape else bind("reshape", x, shape=shape)


def broadcast_to(x: Array, shape: tuple[int, ...]) -> Array:
    return x if x.shape == shape else bind("broadcast_to", x, shape=shape)


def transpose(x: Array, permutation: Sequence[int]) -> Array:
    return bind("transpose", x, permutation=tuple(permutation))


def swap_last(x: Array) -> Array:
    """Transpose the last two axes."""
    return transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def sum_over(x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
    return bind("sum", x, axes=axes, keepdims=keepdims) if axes else x


def cast(x: Array, dtype: str) -> Array:
    return x if x.type.dtype == dtype else bind("astype", x, dtype=dtype)


def equal_mask(a: Array, b: Array, dtype: str) -> Array:
    """1 where equal, else 0."""
    return cast(bind("equal", a, b), dtype)


def greater_mask(a: Array, b: Array, dtype: str) -> Array:
    """1 where a > b, else 0."""
    return cast(bind("greater", a, b), dtype)


def number(x: float, like: Array) -> Array:
    """A constant of rank 0 in the dtype of another array."""
    return Array(np.asarray(x, dtype=like.type.dtype))


def zeros(type_: Type) -> Array:
    """An array of zeros that is not written out."""
    zero = Array(np.zeros((), type_.dtype))
    return bind("broadcast_to", zero, shape=type_.shape) if type_.shape else zero


def carried(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a tensor in an ONNX file, where rank 0 is carried as [1]."""
    return shape or (1,)
