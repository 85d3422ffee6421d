"""``scipy.linalg``: norms, made of products and sums, and the factorisations of ``coterie.compute.linalg``."""

from math import inf
from typing import Any, NoReturn

from coterie.compute import linalg
from coterie.compute import numpy as cnp
from coterie.compute.array import Array, ArrayLike, as_array
from coterie.compute.linalg import det as det
from coterie.compute.linalg import eigh as eigh
from coterie.compute.linalg import inv as inv
from coterie.compute.linalg import pinv as pinv
from coterie.compute.linalg import solve as solve
from coterie.compute.linalg import svdvals as svdvals
from coterie.errors import ArgumentValueError

_FACTORED = "it needs a factorisation that coterie has no gradient of"
_FULL = "SciPy's gives full matrices; coterie.compute.linalg has the reduced ones"
ABSENT: dict[str, str] = {
    **dict.fromkeys("eig eigvals expm lstsq lu null_space orth sqrtm".split(), _FACTORED),
    **dict.fromkeys("qr svd".split(), _FULL),
}


def cholesky(a: ArrayLike, lower: bool = False) -> Array:
    """U with Uᵀ U = a, or L with L Lᵀ = a where ``lower``; see :func:`coterie.compute.linalg.cholesky`."""
    return linalg.cholesky(a, upper=not lower)


def norm(a: ArrayLike, ord: float | str | None = None, axis: Any = None, keepdims: bool = False) -> Array:
    """The norm of a vector, or of a matrix over two axes.

    ord, of a vector: 2 unless given, 1, inf, -inf, 0 (how many are not 0), or any number; of a matrix: "fro" unless
    given, 1, -1, inf, -inf (sums of columns or rows). Without axis and ord, the root of the sum of all squares. Raises
    ArgumentValueError for norms that need singular values (2, -2, "nuc" of a matrix).
    """
    array = as_array(a)
    axes = tuple(range(array.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    if ord is None:
        return cnp.sqrt(cnp.sum(array * array, axis=axes, keepdims=keepdims))
    if len(axes) == 1:
        return _vector(array, ord, axes[0], keepdims)
    if len(axes) != 2:
        raise ArgumentValueError(f"norm: ord {ord!r} needs one or two axes, not {len(axes)}.", hint="Name the axes.")
    return _matrix(array, ord, axes, keepdims)


def _vector(x: Array, ord: float | str, axis: int, keepdims: bool) -> Array:
    size = cnp.abs(x)
    if ord == inf:
        return cnp.max(size, axis=axis, keepdims=keepdims)
    if ord == -inf:
        return cnp.min(size, axis=axis, keepdims=keepdims)
    if isinstance(ord, str):
        raise ArgumentValueError(f"norm: a vector has no norm {ord!r}.", hint="Give a number, inf or -inf.")
    if ord == 0:
        return cnp.sum(cnp.astype(x != 0, x.dtype), axis=axis, keepdims=keepdims)
    if ord == 1:
        return cnp.sum(size, axis=axis, keepdims=keepdims)
    if ord == 2:
        return cnp.sqrt(cnp.sum(x * x, axis=axis, keepdims=keepdims))
    return cnp.pow(cnp.sum(cnp.pow(size, ord), axis=axis, keepdims=keepdims), 1.0 / ord)


def _matrix(x: Array, ord: float | str, axes: tuple[int, ...], keepdims: bool) -> Array:
    rows, columns = (axis % x.ndim for axis in axes)
    if ord == "fro":
        return cnp.sqrt(cnp.sum(x * x, axis=(rows, columns), keepdims=keepdims))
    if ord in (1, -1, inf, -inf):
        summed, kept = (rows, columns) if ord in (1, -1) else (columns, rows)
        sums = cnp.sum(cnp.abs(x), axis=summed, keepdims=True)
        found = (cnp.max if ord in (1, inf) else cnp.min)(sums, axis=kept, keepdims=True)
        return found if keepdims else cnp.squeeze(found, (rows, columns))
    raise ArgumentValueError(
        f"norm: {ord!r} of a matrix needs singular values, for which ONNX has no operator.",
        hint='Use "fro", 1, -1, inf or -inf.',
    )


def __getattr__(name: str) -> NoReturn:
    if name in ABSENT:
        raise AttributeError(f"coterie.compute.science.scipy.linalg has no {name}: {ABSENT[name]}.", name=name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
