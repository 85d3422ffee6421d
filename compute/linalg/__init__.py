"""Factorisations and what they solve, with gradients: functions of the host, computed by NumPy.

They work eagerly, under ``grad``, ``vmap`` and the tape; under ``jit`` NumPy computes them between compiled pieces,
and a plan or an exported file refuses them by name, because ONNX has no such operators. Matrices stand in the last two
axes, float32 or float64; all other axes are examples.
"""

from typing import NamedTuple

import numpy as np

from coterie.compute import numpy as xp
from coterie.compute.array import Array, ArrayLike, as_array
from coterie.compute.linalg import rows
from coterie.compute.numpy import matmul as matmul
from coterie.compute.numpy import matrix_transpose as matrix_transpose
from coterie.compute.numpy import tensordot as tensordot
from coterie.compute.numpy import vecdot as vecdot
from coterie.compute.source import user_source
from coterie.errors import ArgumentValueError, ShapeError

__all__ = [
    "EighResult",
    "QRResult",
    "SVDResult",
    "SlogdetResult",
    "cholesky",
    "det",
    "eigh",
    "eigvalsh",
    "inv",
    "matmul",
    "matrix_transpose",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "vecdot",
]


class SlogdetResult(NamedTuple):
    """The sign of a determinant (0 where it is 0) and the logarithm of its size, [...]."""

    sign: Array
    logabsdet: Array


class EighResult(NamedTuple):
    """Eigenvalues in ascending order [..., N], and eigenvectors in the columns of [..., N, N]."""

    eigenvalues: Array
    eigenvectors: Array


class SVDResult(NamedTuple):
    """U [..., M, K], the singular values in descending order [..., K] and Vh [..., K, N]."""

    U: Array
    S: Array
    Vh: Array


class QRResult(NamedTuple):
    """Q [..., M, K] with orthonormal columns and R [..., K, N], upper triangular."""

    Q: Array
    R: Array


def inv(x: ArrayLike) -> Array:
    """The inverse [..., N, N]. Raises ArgumentValueError for a singular matrix."""
    return rows.inv(as_array(x))


def det(x: ArrayLike) -> Array:
    """The determinant of [..., N, N], [...]. Its gradient exists for singular matrices too, its second one does not."""
    return rows.det(as_array(x))


def slogdet(x: ArrayLike) -> SlogdetResult:
    """The sign and the logarithm of the size of the determinant, which do not overflow. The sign has no gradient."""
    return SlogdetResult(*rows.slogdet(as_array(x)))


def solve(a: ArrayLike, b: ArrayLike) -> Array:
    """x with a x = b: a [..., N, N] and b [N], or [..., N, K]; the leading axes are broadcast. Raises
    ArgumentValueError for a singular matrix, ShapeError for operands that do not fit.
    """
    left, right = as_array(a), as_array(b)
    single = right.ndim == 1
    if single:
        right = xp.expand_dims(right, 1)
    lead = _broadcast(left.shape[:-2], right.shape[:-2])
    if left.ndim < 2 or right.ndim < 2 or left.shape[-1] != right.shape[-2] or lead is None:
        raise ShapeError(
            f"{user_source()}: solve takes [..., N, N] and [N] or [..., N, K], got {list(left.shape)} and "
            f"{list(as_array(b).shape)}.",
            hint="b has as many rows as a, and the leading axes broadcast.",
        )
    found = rows.solve(
        xp.broadcast_to(left, (*lead, *left.shape[-2:])), xp.broadcast_to(right, (*lead, *right.shape[-2:]))
    )
    return xp.squeeze(found, -1) if single else found


def _broadcast(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape that both broadcast to; None where there is none."""
    try:
        return np.broadcast_shapes(one, other)
    except ValueError:
        return None


def cholesky(x: ArrayLike, *, upper: bool = False) -> Array:
    """L, lower triangular, with L Lᵀ = x; its transpose where ``upper``. x [..., N, N] is symmetric and positive
    definite, of which the lower triangle is read; the gradient is symmetric. Raises ArgumentValueError where it is not
    positive definite.
    """
    lower = rows.cholesky(as_array(x))
    return xp.matrix_transpose(lower) if upper else lower


def eigh(x: ArrayLike) -> EighResult:
    """Eigenvalues and eigenvectors of symmetric matrices [..., N, N], of which the lower triangle is read.

    Gradients are symmetric. An eigenvector has a sign of its own, and those of equal eigenvalues are not determined:
    there a gradient takes what depends on their direction for 0.
    """
    return EighResult(*rows.eigh(as_array(x)))


def eigvalsh(x: ArrayLike) -> Array:
    """The eigenvalues alone, see :func:`eigh`."""
    return eigh(x).eigenvalues


def svd(x: ArrayLike, *, full_matrices: bool = False) -> SVDResult:
    """U, S and Vh with x = U diag(S) Vh, K = min(M, N) singular values. Singular vectors have signs of their own; of
    equal singular values, and of one that is 0, see :func:`eigh`. Raises ArgumentValueError for ``full_matrices``,
    whose added columns are not determined.
    """
    if full_matrices:
        raise ArgumentValueError(
            "svd: the full matrices are not here, because no gradient tells their columns beyond K.",
            hint="Use svd(x), whose U and Vh have K columns and rows.",
        )
    return SVDResult(*rows.svd(as_array(x)))


def svdvals(x: ArrayLike) -> Array:
    """The singular values alone, see :func:`svd`."""
    return svd(x).S


def qr(x: ArrayLike, *, mode: str = "reduced") -> QRResult:
    """Q and R with x = Q R, K = min(M, N). Its gradient needs the first K columns of x to be independent. Raises
    ArgumentValueError for another mode than "reduced".
    """
    if mode != "reduced":
        raise ArgumentValueError(f"qr: the mode {mode!r} is not here.", hint='Use mode="reduced".')
    return QRResult(*rows.qr(as_array(x)))


def pinv(x: ArrayLike, *, rtol: float | None = None) -> Array:
    """The pseudo-inverse [..., N, M] (Moore and Penrose). rtol: singular values below this share of the greatest count
    as 0; max(M, N) times the precision of the dtype unless given.
    """
    matrix = as_array(x)
    u, s, vh = svd(matrix)
    share = max(matrix.shape[-2:]) * float(xp.finfo(matrix.dtype).eps) if rtol is None else rtol
    kept = s > share * s[..., :1]
    inverse = xp.where(kept, 1.0 / xp.where(kept, s, xp.ones_like(s)), xp.zeros_like(s))
    return xp.matrix_transpose(vh) @ (xp.expand_dims(inverse, -1) * xp.matrix_transpose(u))
