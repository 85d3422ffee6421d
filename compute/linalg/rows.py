"""The factorisations as primitives: kernels of NumPy on the host, gradients written in array functions.

All work on matrices in the last two axes, float32 or float64. ONNX has no operators for them, so they have no
lowering: a plan or an exported file refuses them by name.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, cast

import numpy as np

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.extension.row import Hook, UserPrimitive
from coterie.compute.ir import NDArray
from coterie.compute.primitives.row import Batched
from coterie.errors import ArgumentValueError

Shape: TypeAlias = tuple[int, ...]

INSTEAD = (
    "ONNX has no factorisations. Compute it on the host, before the rows reach a plan (Dataset.map) or outside of it; "
    "under jit NumPy computes it between compiled pieces."
)


def _floats(*dtypes: str) -> str:
    if any(dtype not in ("float32", "float64") or dtype != dtypes[0] for dtype in dtypes):
        raise TypeError(f"it takes matrices of float32 or float64, got {' and '.join(dtypes)}")
    return dtypes[0]


def _square(shape: Shape) -> Shape:
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(f"it takes square matrices [..., N, N], got {list(shape)}")
    return shape


def _matrix(shape: Shape) -> Shape:
    if len(shape) < 2:
        raise ValueError(f"it takes matrices [..., M, N], got {list(shape)}")
    return shape


def _solved(name: str, kernel: Callable[..., Any], *arrays: NDArray) -> Any:
    """What NumPy computes, or why it cannot, in the words of the function."""
    try:
        return kernel(*arrays)
    except np.linalg.LinAlgError as error:
        reasons = {
            "cholesky": "the matrix is not positive definite",
            "eigh": "the eigenvalues did not converge; is a number infinite or NaN?",
            "svd": "the singular values did not converge; is a number infinite or NaN?",
        }
        raise ArgumentValueError(
            f"{name}: {reasons.get(name, 'the matrix is singular')}.",
            hint="Add a small multiple of the identity, or use the pseudo-inverse linalg.pinv.",
        ) from error


def _t(x: Array) -> Array:
    return xp.matrix_transpose(x)


def _by_column(x: Array) -> Array:
    """[..., K] beside the columns of a matrix."""
    return xp.expand_dims(x, -2)


def _eye(like: Array) -> Array:
    return xp.eye(like.shape[-1], dtype=like.dtype)


def _diagonal(x: Array) -> Array:
    """[..., K] as diagonal matrices."""
    return xp.expand_dims(x, -1) * xp.eye(x.shape[-1], dtype=x.dtype)


def _apart(values: Array) -> Array:
    """1 / (v_j - v_i) at [..., i, j]; 0 on the diagonal and where two are equal."""
    gap = _by_column(values) - xp.expand_dims(values, -1)
    same = xp.equal(gap, 0.0)
    return xp.where(same, xp.zeros_like(gap), 1.0 / xp.where(same, xp.ones_like(gap), gap))


def _reciprocal(values: Array) -> Array:
    """1 / v, and 0 where v is 0."""
    zero = xp.equal(values, 0.0)
    return xp.where(zero, xp.zeros_like(values), 1.0 / xp.where(zero, xp.ones_like(values), values))


def _inv_back(x: Array, out: Array, dout: Array) -> Array:
    return -(_t(out) @ dout @ _t(out))


def _solve_shape(a: Shape, b: Shape) -> Shape:
    _square(a)
    if len(b) != len(a) or b[:-1] != a[:-1]:
        raise ValueError(f"it takes [..., N, N] and [..., N, K], got {list(a)} and {list(b)}")
    return b


def _solve_back(a: Array, b: Array, out: Array, dout: Array) -> tuple[Array, Array]:
    back = solve(_t(a), dout)
    return -(back @ _t(out)), back


def _cofactors(x: NDArray) -> NDArray:
    """By singular values, so that a singular matrix has them too."""
    u, s, vh = _solved("svd", np.linalg.svd, x)
    others = np.stack([np.prod(np.delete(s, place, axis=-1), axis=-1) for place in range(x.shape[-1])], axis=-1)
    sign = np.linalg.det(u) * np.linalg.det(vh)
    return ((u * (sign[..., None] * others)[..., None, :]) @ vh).astype(x.dtype)


def _cofactor_back(x: Array, out: Array, dout: Array) -> Array:
    turned = _t(inv(x))
    along = xp.sum(dout * turned, axis=(-2, -1), keepdims=True)
    return along * out - out @ _t(dout) @ turned


def _det_back(x: Array, out: Array, dout: Array) -> Array:
    return xp.reshape(dout, (*dout.shape, 1, 1)) * cofactor(x)


def _slogdet_kernel(x: NDArray) -> tuple[NDArray, NDArray]:
    sign, size = np.linalg.slogdet(x)
    return np.asarray(sign, x.dtype), np.asarray(size, x.dtype)


def _slogdet_back(x: Array, out: tuple[Array, Array], dout: tuple[Array, Array]) -> Array:
    return xp.reshape(dout[1], (*dout[1].shape, 1, 1)) * _t(inv(x))


def _cholesky_back(x: Array, out: Array, dout: Array) -> Array:
    # Murray, Differentiation of the Cholesky decomposition, 2016.
    lower = xp.tril(_t(out) @ dout)
    halved = lower - 0.5 * lower * _eye(out)
    inner = solve(_t(out), _t(solve(_t(out), _t(halved))))
    return 0.5 * (inner + _t(inner))


def _eigh_back(x: Array, out: tuple[Array, Array], dout: tuple[Array, Array]) -> Array:
    values, vectors = out
    inner = _diagonal(dout[0]) + _apart(values) * (_t(vectors) @ dout[1])
    found = vectors @ inner @ _t(vectors)
    return 0.5 * (found + _t(found))


def _svd_shape(x: Shape) -> tuple[Shape, Shape, Shape]:
    *lead, m, n = _matrix(x)
    k = min(m, n)
    return (*lead, m, k), (*lead, k), (*lead, k, n)


def _svd_back(x: Array, out: tuple[Array, Array, Array], dout: tuple[Array, Array, Array]) -> Array:
    # Townsend, Differentiating the singular value decomposition, 2016.
    u, s, vh = out
    du, ds, dvh = dout
    v, dv = _t(vh), _t(dvh)
    apart, size = _apart(s * s), _by_column(s)
    left, right = _t(u) @ du, _t(v) @ dv
    inner = (apart * (left - _t(left))) * size + xp.expand_dims(s, -1) * (apart * (right - _t(right)))
    found = u @ (inner + _diagonal(ds)) @ vh
    if x.shape[-2] > x.shape[-1]:
        found = found + (du - u @ left) * _reciprocal(size) @ vh
    if x.shape[-1] > x.shape[-2]:
        found = found + (u * _reciprocal(size)) @ _t(dv - v @ right)
    return found


def _qr_shape(x: Shape) -> tuple[Shape, Shape]:
    *lead, m, n = _matrix(x)
    k = min(m, n)
    return (*lead, m, k), (*lead, k, n)


def _qr_back(x: Array, out: tuple[Array, Array], dout: tuple[Array, Array]) -> Array:
    (q, r), (dq, dr) = out, dout
    k = q.shape[-1]
    if x.shape[-1] == k:
        return _tall_qr_back(q, r, dq, dr)
    # A wide matrix: q and the first k columns of r are those of its first k columns; the rest is a product.
    rest, drest = x[..., k:], dr[..., k:]
    first = _tall_qr_back(q, r[..., :k], dq + rest @ _t(drest), dr[..., :k])
    return xp.concat([first, q @ drest], axis=-1)


def _tall_qr_back(q: Array, r: Array, dq: Array, dr: Array) -> Array:
    # Walter and Lehmann, Algorithmic differentiation of linear algebra functions, 2010.
    inner = r @ _t(dr) - _t(dq) @ q
    lower = xp.tril(inner)
    both = lower + _t(lower - lower * _eye(lower))
    return _t(solve(r, _t(dq + q @ both)))


def _row(
    name: str, shape: Hook, kernel: Hook, back: Hook, *, inputs: str = "x", outputs: str = "output"
) -> UserPrimitive:
    """A primitive of matrices. kernel: of NumPy arrays; back: its vjp."""
    made, count = outputs.split(), len(outputs.split())

    def dtypes(*given: str) -> Any:
        return _floats(*given) if count == 1 else (_floats(*given),) * count

    def batch(call: Batched) -> Any:
        # Examples are one more leading axis.
        pairs = zip(call.inputs, call.mapped, strict=True)
        return row(*(x if mapped else xp.broadcast_to(x, (call.size, *x.shape)) for x, mapped in pairs))

    row = UserPrimitive(
        name=f"linalg.{name}",
        inputs=tuple(inputs.split()),
        outputs=tuple(made),
        attributes={},
        infer_shape=shape,
        infer_dtype=dtypes,
        kernel=kernel,
        vjp=back,
        batch=batch,
        instead=INSTEAD,
    )
    return row


def _without_matrix(x: Shape) -> Shape:
    return _square(x)[:-2]


def _twice_without_matrix(x: Shape) -> tuple[Shape, Shape]:
    return _square(x)[:-2], x[:-2]


def _values_and_vectors(x: Shape) -> tuple[Shape, Shape]:
    return _square(x)[:-1], x


def _of_numpy(name: str) -> Hook:
    """NumPy's function of this name, whose refusals are told in the words of ours."""
    function = getattr(np.linalg, name)

    def kernel(*arrays: NDArray) -> Any:
        found = _solved(name, function, *arrays)
        if isinstance(found, tuple):
            return tuple(cast("tuple[NDArray, ...]", found))
        return np.asarray(found, arrays[0].dtype)

    return kernel


def _svd_kernel(x: NDArray) -> Any:
    return tuple(_solved("svd", partial(np.linalg.svd, full_matrices=False), x))


inv = _row("inv", _square, _of_numpy("inv"), _inv_back)
solve = _row("solve", _solve_shape, _of_numpy("solve"), _solve_back, inputs="a b")
# The gradient of the determinant: det(x) times the transposed inverse, also where x has no inverse.
cofactor = _row("cofactor", _square, _cofactors, _cofactor_back)
det = _row("det", _without_matrix, _of_numpy("det"), _det_back)
slogdet = _row("slogdet", _twice_without_matrix, _slogdet_kernel, _slogdet_back, outputs="sign logabsdet")
cholesky = _row("cholesky", _square, _of_numpy("cholesky"), _cholesky_back)
eigh = _row("eigh", _values_and_vectors, _of_numpy("eigh"), _eigh_back, outputs="values vectors")
svd = _row("svd", _svd_shape, _svd_kernel, _svd_back, outputs="u s vh")
qr = _row("qr", _qr_shape, _of_numpy("qr"), _qr_back, outputs="q r")

ROWS: tuple[UserPrimitive, ...] = (inv, solve, cofactor, det, slogdet, cholesky, eigh, svd, qr)
