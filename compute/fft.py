"""Discrete Fourier transforms with gradients; real and imaginary parts are two arrays, there being no complex dtypes.

On the host NumPy computes them. In a graph for ONNX Runtime, and so in a plan, a transform is a product with the matrix
of its sines and cosines, up to ``LONGEST`` points; longer ones are refused there by name.
"""

from typing import Any, Final, Literal, TypeAlias

import numpy as np

from coterie.compute import numpy as xp
from coterie.compute.array import Array, ArrayLike, as_array
from coterie.compute.extension.row import UserPrimitive
from coterie.compute.ir import NDArray
from coterie.compute.primitives.row import Batched
from coterie.compute.source import user_source
from coterie.errors import ArgumentTypeError, ArgumentValueError, DTypeError, ShapeError, TraceError

__all__ = ["LONGEST", "fft", "ifft", "irfft", "rfft"]

LONGEST: Final = 1024
"""Points of the longest transform that becomes a product with a matrix."""
_MOST_POINTS: Final = 2**28

Norm: TypeAlias = Literal["backward", "ortho", "forward"]


def fft(
    real: ArrayLike, imag: ArrayLike | None = None, *, n: int | None = None, axis: int = -1, norm: Norm = "backward"
) -> tuple[Array, Array]:
    """The transform sum_k x_k exp(-2πi jk/n) along an axis, as (real, imag). imag: zeros unless given. n: points; the
    axis is cut or filled up with zeros. norm: "backward" scales nothing, "forward" by 1/n, "ortho" by 1/√n. Raises
    DTypeError for other dtypes than float32 and float64, ShapeError for parts that do not fit, ArgumentValueError for
    settings that do not exist.
    """
    return _transformed("fft", real, imag, n, axis, norm, sign=-1)


def ifft(
    real: ArrayLike, imag: ArrayLike | None = None, *, n: int | None = None, axis: int = -1, norm: Norm = "backward"
) -> tuple[Array, Array]:
    """The inverse of :func:`fft`: exp(+2πi jk/n), and 1/n where ``norm`` is "backward"."""
    return _transformed("ifft", real, imag, n, axis, norm, sign=1)


def rfft(x: ArrayLike, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> tuple[Array, Array]:
    """The first n // 2 + 1 points of the transform of real numbers, which tell the others; see :func:`fft`."""
    real, imag = _transformed("rfft", x, None, n, axis, norm, sign=-1)
    return tuple(_cut(part, axis, part.shape[axis] // 2 + 1) for part in (real, imag))  # type: ignore[return-value]


def irfft(real: ArrayLike, imag: ArrayLike, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """The real numbers whose :func:`rfft` these are: n of them, 2 (points - 1) unless given. The imaginary parts of
    point 0, and of point n / 2 where n is even, count for nothing.
    """
    given, other = _parts("irfft", real, imag, axis)
    points = 2 * (given.shape[axis] - 1) if n is None else n
    _check("irfft", points, norm)
    half = points // 2 + 1
    given, other = _cut(given, axis, half), _cut(other, axis, half)
    mirrored = slice(1, points - half + 1)
    back = [xp.flip(_along(part, axis, mirrored), axis=axis) for part in (given, other)]
    counts = np.ones(half, given.dtype)
    counts[0] = 0.0
    if points % 2 == 0:
        counts[-1] = 0.0
    shape = [1] * given.ndim
    shape[axis] = half
    other = other * xp.reshape(as_array(counts), tuple(shape))
    whole = xp.concat([given, back[0]], axis=axis), xp.concat([other, -back[1]], axis=axis)
    return _transformed("irfft", *whole, None, axis, norm, sign=1)[0]


def _transformed(
    name: str, real: ArrayLike, imag: ArrayLike | None, n: int | None, axis: int, norm: str, *, sign: int
) -> tuple[Array, Array]:
    _check_whole(name, "axis", axis)
    left, right = _parts(name, real, imag, axis)
    points = left.shape[axis] if n is None else n
    _check(name, points, norm)
    moved = [xp.moveaxis(_cut(part, axis, points), axis, -1) for part in (left, right)]
    found = transform(*moved, sign=sign)
    scaled = {"forward": sign < 0, "backward": sign > 0}
    factor = points**-0.5 if norm == "ortho" else 1.0 / points if scaled[norm] else 1.0
    back = [xp.moveaxis(part, -1, axis) for part in found]
    return (back[0], back[1]) if factor == 1.0 else (back[0] * factor, back[1] * factor)


def _parts(name: str, real: ArrayLike, imag: ArrayLike | None, axis: int) -> tuple[Array, Array]:
    left = as_array(real)
    right = xp.zeros_like(left) if imag is None else as_array(imag)
    for part in (left, right):
        if part.dtype.name not in ("float32", "float64") or part.dtype != left.dtype:
            raise DTypeError(
                f"{user_source()}: {name} takes float32 or float64, got {left.dtype} and {right.dtype}.",
                hint='Convert them: astype(x, "float32").',
            )
    if left.shape != right.shape or not -left.ndim <= axis < left.ndim:
        raise ShapeError(
            f"{user_source()}: {name} takes real and imaginary parts of one shape with an axis {axis}, got "
            f"{list(left.shape)} and {list(right.shape)}."
        )
    return left, right


def _check_whole(name: str, what: str, value: object) -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise ArgumentTypeError(f"{user_source()}: {name}: {what} must be a whole number, not {value!r}.")


def _check(name: str, points: int, norm: str) -> None:
    _check_whole(name, "n", points)
    if not 1 <= points <= _MOST_POINTS:
        raise ArgumentValueError(f"{user_source()}: {name}: a transform has 1 to {_MOST_POINTS} points, not {points}.")
    if norm not in ("backward", "ortho", "forward"):
        raise ArgumentValueError(
            f"{user_source()}: {name}: there is no norm {norm!r}.", hint="Choose backward, ortho or forward."
        )


def _along(x: Array, axis: int, part: slice) -> Array:
    index: list[slice] = [slice(None)] * x.ndim
    index[axis] = part
    return x[tuple(index)]


def _cut(x: Array, axis: int, points: int) -> Array:
    """So many points along an axis: the first ones, or all and zeros behind them."""
    size = x.shape[axis]
    if points <= size:
        return x if points == size else _along(x, axis, slice(points))
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, points - size)
    return xp.pad(x, widths)


# The transform along the last axis, without a factor: its own transpose with the other sign.


def _shapes(real: tuple[int, ...], imag: tuple[int, ...], *, sign: int) -> Any:
    return real, imag


def _dtypes(real: str, imag: str, *, sign: int) -> Any:
    return real, imag


def _kernel(real: NDArray, imag: NDArray, *, sign: int) -> tuple[NDArray, NDArray]:
    given = real + 1j * imag
    found: np.ndarray[Any, np.dtype[np.complex128]]
    found = np.fft.fft(given) if sign < 0 else np.fft.ifft(given, norm="forward")
    return found.real.astype(real.dtype), found.imag.astype(imag.dtype)


def _back(real: Array, imag: Array, out: Any, dout: tuple[Array, Array], *, sign: int) -> Any:
    return transform(*dout, sign=-sign)


def _lowered(real: Array, imag: Array, *, sign: int) -> tuple[Array, Array]:
    points = real.shape[-1]
    if points > LONGEST:
        raise TraceError(
            f"{user_source()}: a Fourier transform of {points} points cannot leave this process.",
            hint=f"ONNX has no operator for it that providers share; up to {LONGEST} points it is a product with a "
            "matrix. Cut the signal into frames, or transform the rows before (Dataset.map).",
            code="lowering_missing",
        )
    places = np.arange(points, dtype=np.int64)
    angles = 2 * np.pi * (places[:, None] * places % points) / points
    cosines, sines = (as_array(part.astype(real.dtype)) for part in (np.cos(angles), sign * np.sin(angles)))
    return real @ cosines - imag @ sines, real @ sines + imag @ cosines


def _batch(call: Batched) -> Any:
    pairs = zip(call.inputs, call.mapped, strict=True)
    given = [x if mapped else xp.broadcast_to(x, (call.size, *x.shape)) for x, mapped in pairs]
    return transform(*given, **call.attributes)


transform = UserPrimitive(
    name="fft.transform",
    inputs=("real", "imag"),
    outputs=("re", "im"),
    attributes={"sign": -1},
    infer_shape=_shapes,
    infer_dtype=_dtypes,
    kernel=_kernel,
    vjp=_back,
    batch=_batch,
    lower=_lowered,
)
