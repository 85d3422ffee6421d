"""``scipy.special``: functions of real numbers, finite in value and gradient where they are continuous."""

from math import log, sqrt
from typing import Any

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array, ArrayLike, as_array, promote


def expit(x: ArrayLike) -> Array:
    """1 / (1 + exp(-x))."""
    return ops.sigmoid(x)


def log_expit(x: ArrayLike) -> Array:
    """log(expit(x)), without overflow."""
    return ops.log_sigmoid(x)


def logit(x: ArrayLike) -> Array:
    """log(x / (1 - x)), the inverse of expit; ±infinity at 0 and 1."""
    array = as_array(x)
    return cnp.log(array) - cnp.log1p(-array)


def softplus(x: ArrayLike) -> Array:
    """log(1 + exp(x)), without overflow."""
    return ops.softplus(x)


def softmax(x: ArrayLike, axis: Any = None) -> Array:
    """exp(x) / sum(exp(x)) over axes, of all elements unless given."""
    return cnp.exp(log_softmax(x, axis))


def log_softmax(x: ArrayLike, axis: Any = None) -> Array:
    """x - logsumexp(x) over axes, of all elements unless given."""
    array = as_array(x)
    return array - logsumexp(array, axis, keepdims=True)


def logsumexp(a: ArrayLike, axis: Any = None, b: ArrayLike | None = None, keepdims: bool = False) -> Array:
    """log(sum(b exp(a))) over axes, of all elements unless given, without overflow. b: weights, 1 unless given."""
    array = as_array(a)
    top = ops.stop_gradient(cnp.max(array, axis=axis, keepdims=True))
    # Where all are -infinity, shifting by that would make them NaN.
    shift = cnp.where(cnp.isfinite(top), top, cnp.zeros_like(top))
    terms = cnp.exp(array - shift)
    total = cnp.sum(terms if b is None else terms * b, axis=axis, keepdims=True)
    result = cnp.log(total) + shift
    return result if keepdims else cnp.squeeze(result, _axes(axis, result.ndim))


def _axes(axis: Any, rank: int) -> tuple[int, ...]:
    return tuple(range(rank)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)


def xlogy(x: ArrayLike, y: ArrayLike) -> Array:
    """x log(y), and 0 where x is 0, whatever number y is."""
    a, b = promote("xlogy", x, y)
    return a * cnp.log(cnp.where(_unasked(a, b), cnp.ones_like(b), b))


def xlog1py(x: ArrayLike, y: ArrayLike) -> Array:
    """x log(1 + y), and 0 where x is 0, whatever number y is."""
    a, b = promote("xlog1py", x, y)
    return a * cnp.log1p(cnp.where(_unasked(a, b), cnp.zeros_like(b), b))


def _unasked(a: Array, b: Array) -> Array:
    return cnp.logical_and(a == 0, cnp.logical_not(cnp.isnan(b)))


def entr(x: ArrayLike) -> Array:
    """-x log(x): 0 at 0, -infinity below."""
    array = as_array(x)
    return cnp.where(array < 0, cnp.full_like(array, -float("inf")), -xlogy(array, cnp.maximum(array, 0.0)))


def rel_entr(x: ArrayLike, y: ArrayLike) -> Array:
    """x log(x / y) where both are above 0; 0 where x is 0 and y is not below it; infinity elsewhere."""
    a, b = promote("rel_entr", x, y)
    inside = cnp.logical_and(a > 0, b > 0)
    one = cnp.ones_like(a)
    value = a * cnp.log(cnp.where(inside, a, one) / cnp.where(inside, b, one))
    zero = cnp.logical_and(a == 0, b >= 0)
    rest = cnp.where(zero, cnp.zeros_like(value), cnp.full_like(value, float("inf")))
    unknown = cnp.logical_or(cnp.isnan(a), cnp.isnan(b))
    return cnp.where(inside, value, cnp.where(unknown, a + b, rest))


def kl_div(x: ArrayLike, y: ArrayLike) -> Array:
    """rel_entr(x, y) - x + y."""
    a, b = promote("kl_div", x, y)
    return rel_entr(a, b) - a + b


def erf(x: ArrayLike) -> Array:
    """The error function."""
    return ops.erf(x)


def erfc(x: ArrayLike) -> Array:
    """1 - erf(x); far above 0 few digits are left, where SciPy keeps them."""
    return 1.0 - ops.erf(x)


def ndtr(x: ArrayLike) -> Array:
    """The standard normal's probability of at most x; far below 0 few digits are left."""
    return 0.5 * (1.0 + ops.erf(as_array(x) * sqrt(0.5)))


def huber(delta: ArrayLike, r: ArrayLike) -> Array:
    """r²/2 for |r| <= delta, else delta (|r| - delta/2). delta at least 0."""
    width, error = promote("huber", delta, r)
    size = cnp.abs(error)
    return cnp.where(size <= width, 0.5 * (error * error), width * (size - 0.5 * width))


def pseudo_huber(delta: ArrayLike, r: ArrayLike) -> Array:
    """delta² (sqrt(1 + (r / delta)²) - 1). delta above 0."""
    width, error = promote("pseudo_huber", delta, r)
    ratio = error / width
    return width * width * (cnp.sqrt(1.0 + ratio * ratio) - 1.0)


def log1p(x: ArrayLike) -> Array:
    """log(1 + x)."""
    return cnp.log1p(x)


def expm1(x: ArrayLike) -> Array:
    """exp(x) - 1."""
    return cnp.expm1(x)


def exp2(x: ArrayLike) -> Array:
    """2 to the power of x."""
    return cnp.exp(as_array(x) * log(2.0))


def exp10(x: ArrayLike) -> Array:
    """10 to the power of x."""
    return cnp.exp(as_array(x) * log(10.0))
