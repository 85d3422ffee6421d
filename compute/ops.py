"""Neural functions, made of array functions and of a few primitives of their own. All take and give arrays; gradients of every order follow."""

from math import pi, sqrt

import numpy as np

from coterie.compute.array import Array, ArrayLike, as_array, bind, refuse
from coterie.compute.numpy import elementwise, manipulation, reduction
from coterie.compute.numpy.manipulation import axis_of
from coterie.compute.primitives import rules
from coterie.errors import DTypeError


def relu(x: ArrayLike) -> Array:
    """max(x, 0); its gradient at 0 is 0."""
    return bind("relu", as_array(x))


def sigmoid(x: ArrayLike) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    return bind("sigmoid", as_array(x))


def tanh(x: ArrayLike) -> Array:
    """The hyperbolic tangent."""
    return bind("tanh", as_array(x))


def softplus(x: ArrayLike) -> Array:
    """log(1 + exp(x)), without overflow."""
    return bind("softplus", as_array(x))


def log_sigmoid(x: ArrayLike) -> Array:
    """log(sigmoid(x)), without overflow."""
    return bind("negative", bind("softplus", bind("negative", as_array(x))))


def gelu(x: ArrayLike) -> Array:
    """The Gaussian error linear unit in its tanh form (Hendrycks and Gimpel, arXiv 1606.08415): Erf is missing on some providers."""
    array = as_array(x)
    inner = sqrt(2.0 / pi) * (array + 0.044715 * (array * array * array))
    return 0.5 * array * (1.0 + tanh(inner))


def softmax(x: ArrayLike, axis: int = -1) -> Array:
    """exp(x) / sum(exp(x)) along an axis, without overflow."""
    array = as_array(x)
    return bind("softmax", array, axis=axis_of("softmax", array, axis))


def _shifted(name: str, x: ArrayLike, axis: int) -> tuple[Array, Array, Array, int]:
    """x minus its maximum, log of the sum of the exponentials of that, and the maximum. The shift cancels, so no gradient passes through it."""
    array = as_array(x)
    place = axis_of(name, array, axis)
    top = stop_gradient(reduction.max(array, axis=place, keepdims=True))
    shifted = array - top
    total = elementwise.log(reduction.sum(elementwise.exp(shifted), axis=place, keepdims=True))
    return shifted, total, top, place


def log_softmax(x: ArrayLike, axis: int = -1) -> Array:
    """log(softmax(x)) along an axis, without overflow and without LogSoftmax, which some providers lack."""
    shifted, total, _, _ = _shifted("log_softmax", x, axis)
    return shifted - total


def logsumexp(x: ArrayLike, axis: int = -1, keepdims: bool = False) -> Array:
    """log(sum(exp(x))) along an axis, without overflow."""
    _, total, top, place = _shifted("logsumexp", x, axis)
    result = total + top
    return result if keepdims else manipulation.squeeze(result, place)


def one_hot(ids: ArrayLike, n: int, *, dtype: str = "float32") -> Array:
    """ids[...] of int32 or int64 → [..., n]: 1 at the id, else 0; an id outside 0..n-1 gives a row of zeros."""
    array = as_array(ids)
    if array.type.dtype not in ("int32", "int64"):
        refuse(DTypeError, "one_hot", (array,), "the ids must be int32 or int64.", 'Convert them with astype(ids, "int32").')
    steps = Array(np.arange(n, dtype=array.type.dtype))
    return rules.equal_mask(manipulation.expand_dims(array, -1), steps, dtype)


def embedding(table: ArrayLike, ids: ArrayLike) -> Array:
    """Rows of table[V, D] at ids[...] → [..., D]. The gradient of the table is a product with the transposed one-hot matrix."""
    return manipulation.take(table, ids, axis=0)


def stop_gradient(x: ArrayLike) -> Array:
    """x, through which no gradient passes."""
    return bind("stop_gradient", as_array(x))
