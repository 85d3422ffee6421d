"""Products of vectors, matrices and stacks of matrices."""

from math import prod

from coterie.compute.array import Array, ArrayLike, bind, promote, refuse
from coterie.compute.numpy.manipulation import permute_dims, reshape
from coterie.compute.numpy.reduction import sum as sum_
from coterie.errors import ShapeError


def matmul(a: ArrayLike, b: ArrayLike) -> Array:
    """The matrix product; a vector is a row on the left and a column on the right; further axes are stacks."""
    left, right = promote("matmul", a, b)
    if not left.shape or not right.shape:
        refuse(ShapeError, "matmul", (left, right), "an operand of rank 0.", "Multiply by a number with *.")
    if left.ndim == 1 or right.ndim == 1:
        rows = reshape(left, (1, *left.shape)) if left.ndim == 1 else left
        columns = reshape(right, (*right.shape, 1)) if right.ndim == 1 else right
        product = matmul(rows, columns)
        shape = product.shape if left.ndim > 1 else (*product.shape[:-2], product.shape[-1])
        return reshape(product, shape if right.ndim > 1 else shape[:-1])
    if left.ndim > 2 and right.ndim == 2 and left.shape[-1] == right.shape[0]:
        # One large product instead of a stack of small ones; its weight gradient is then one product too.
        flat = bind("matmul", reshape(left, (prod(left.shape[:-1]), left.shape[-1])), right)
        return reshape(flat, (*left.shape[:-1], right.shape[1]))
    return bind("matmul", left, right)


def tensordot(a: ArrayLike, b: ArrayLike, *, axes: int = 2) -> Array:
    """Sum over the last ``axes`` axes of a and the first of b."""
    left, right = promote("tensordot", a, b)
    keep = left.ndim - axes
    inner = prod(left.shape[keep:])
    product = matmul(
        reshape(left, (prod(left.shape[:keep]), inner)),
        reshape(right, (prod(right.shape[:axes]), prod(right.shape[axes:]))),
    )
    return reshape(product, (*left.shape[:keep], *right.shape[axes:]))


def vecdot(a: ArrayLike, b: ArrayLike, *, axis: int = -1) -> Array:
    """The sum of products along an axis."""
    left, right = promote("vecdot", a, b)
    return sum_(left * right, axis=axis)


def outer(a: ArrayLike, b: ArrayLike) -> Array:
    """All products of two vectors."""
    left, right = promote("outer", a, b)
    return reshape(left, (left.size, 1)) * permute_dims(reshape(right, (right.size, 1)), (1, 0))
