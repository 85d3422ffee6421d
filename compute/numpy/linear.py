"""Products of vectors, matrices and stacks of matrices."""

from collections.abc import Sequence
from math import prod

from coterie.compute.array_type import Array, ArrayLike, bind, promote, refuse
from coterie.compute.ir import NARROW
from coterie.compute.numpy.manipulation import axis_of, expand_dims, permute_dims, reshape
from coterie.compute.numpy.reduction import sum as sum_
from coterie.compute.source import operation
from coterie.errors import DTypeError, ShapeError

Axes = int | tuple[Sequence[int], Sequence[int]]


def _numbers(name: str, a: ArrayLike, b: ArrayLike) -> tuple[Array, Array]:
    left, right = promote(name, a, b)
    if left.type.dtype == "bool":
        refuse(DTypeError, name, (left, right), "products of bool.", 'Convert them with astype(x, "float32").')
    return left, right


@operation
def matmul(a: ArrayLike, b: ArrayLike) -> Array:
    """The matrix product; a vector is a row on the left and a column on the right; further axes are stacks. Integers
    are multiplied and added element by element.
    """
    left, right = _numbers("matmul", a, b)
    if not left.shape or not right.shape:
        refuse(ShapeError, "matmul", (left, right), "an operand of rank 0.", "Multiply by a number with *.")
    if left.ndim == 1 or right.ndim == 1:
        if left.shape[-1] != right.shape[0 if right.ndim == 1 else -2]:
            sizes = f"{left.shape[-1]} and {right.shape[0 if right.ndim == 1 else -2]}"
            reason = f"the inner sizes {sizes} differ."
            fix = "Columns of the first must equal rows of the second."
            refuse(ShapeError, "matmul", (left, right), reason, fix)
        rows = reshape(left, (1, *left.shape)) if left.ndim == 1 else left
        columns = reshape(right, (*right.shape, 1)) if right.ndim == 1 else right
        product = matmul(rows, columns)
        shape = product.shape if left.ndim > 1 else (*product.shape[:-2], product.shape[-1])
        return reshape(product, shape if right.ndim > 1 else shape[:-1])
    if not left.type.is_float and left.shape[-1] == right.shape[-2]:
        pairs = expand_dims(left, left.ndim) * expand_dims(right, right.ndim - 2)
        total = bind("sum", _countable(pairs), axes=(pairs.ndim - 2,), keepdims=False)
        return total if total.type.dtype == left.type.dtype else bind("astype", total, dtype=left.type.dtype)
    if left.ndim > 2 and right.ndim == 2 and left.shape[-1] == right.shape[0]:
        # One large product instead of a stack of small ones; its weight gradient is then one product too.
        flat = bind("matmul", reshape(left, (prod(left.shape[:-1]), left.shape[-1])), right)
        return reshape(flat, (*left.shape[:-1], right.shape[1]))
    return bind("matmul", left, right)


def _countable(x: Array) -> Array:
    return bind("astype", x, dtype="int32") if x.type.dtype in ("uint8", *NARROW) else x


@operation
def tensordot(a: ArrayLike, b: ArrayLike, *, axes: Axes = 2) -> Array:
    """Sum over the last ``axes`` axes of a and the first of b, or over pairs of named axes (those of a, those of b)."""
    left, right = _numbers("tensordot", a, b)
    if isinstance(axes, int):
        if not 0 <= axes <= min(left.ndim, right.ndim):
            fix = f"Name 0 to {min(left.ndim, right.ndim)} axes."
            refuse(ShapeError, "tensordot", (left, right), f"they do not both have {axes} axes.", fix)
        axes = (range(left.ndim - axes, left.ndim), range(axes))
    ours, theirs = (
        [axis_of("tensordot", array, axis) for axis in given] for array, given in zip((left, right), axes, strict=True)
    )
    sizes = [[array.shape[axis] for axis in named] for array, named in ((left, ours), (right, theirs))]
    if sizes[0] != sizes[1]:
        reason = f"the summed axes have the sizes {sizes[0]} and {sizes[1]}."
        refuse(ShapeError, "tensordot", (left, right), reason, "Name axes of equal size, in the same order.")
    kept = [i for i in range(left.ndim) if i not in ours]
    others = [i for i in range(right.ndim) if i not in theirs]
    rows, columns = tuple(left.shape[i] for i in kept), tuple(right.shape[i] for i in others)
    inner = prod(sizes[0])
    product = matmul(
        reshape(permute_dims(left, (*kept, *ours)), (prod(rows), inner)),
        reshape(permute_dims(right, (*theirs, *others)), (inner, prod(columns))),
    )
    return reshape(product, rows + columns)


@operation
def vecdot(a: ArrayLike, b: ArrayLike, *, axis: int = -1) -> Array:
    """The sum of products along an axis; the other axes broadcast."""
    left, right = _numbers("vecdot", a, b)
    if not left.shape or not right.shape:
        refuse(ShapeError, "vecdot", (left, right), "an operand of rank 0.", "Multiply by a number with *.")
    if left.shape[axis_of("vecdot", left, axis)] != right.shape[axis_of("vecdot", right, axis)]:
        reason = f"their sizes along axis {axis} differ."
        refuse(ShapeError, "vecdot", (left, right), reason, "Vectors of a product have one size.")
    products = left * right
    total = sum_(products, axis=axis)
    return total if total.type.dtype == left.type.dtype else bind("astype", total, dtype=left.type.dtype)


@operation
def outer(a: ArrayLike, b: ArrayLike) -> Array:
    """All products of two vectors (flattened)."""
    left, right = _numbers("outer", a, b)
    return reshape(left, (left.size, 1)) * reshape(right, (1, right.size))
