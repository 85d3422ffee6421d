"""Fourier transforms are NumPy's, with true gradients, on the host and as products with a matrix."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coterie.compute import TensorSpec, fft, grad, jit, to_onnx, trace, vmap
from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.extension.laws import check_primitive
from coterie.errors import ArgumentTypeError, ArgumentValueError, CoterieError, DTypeError, ShapeError, TraceError

RNG = np.random.default_rng(29)
X = RNG.normal(size=(3, 7))
Y = RNG.normal(size=(3, 7))
SETTINGS: list[dict[str, Any]] = [
    {"n": n, "axis": axis, "norm": norm}
    for n in (None, 1, 4, 9)
    for axis in (0, 1, -1)
    for norm in ("backward", "ortho", "forward")
]
CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "fft": (lambda **s: fft.fft(X, Y, **s), lambda **s: np.fft.fft(X + 1j * Y, **s)),
    "fft of reals": (lambda **s: fft.fft(X, **s), lambda **s: np.fft.fft(X, **s)),
    "ifft": (lambda **s: fft.ifft(X, Y, **s), lambda **s: np.fft.ifft(X + 1j * Y, **s)),
    "rfft": (lambda **s: fft.rfft(X, **s), lambda **s: np.fft.rfft(X, **s)),
    "irfft": (lambda **s: fft.irfft(X, Y, **s), lambda **s: np.fft.irfft(X + 1j * Y, **s)),
}


@pytest.mark.capability("A13")
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_transform_is_numpys(name: str, settings: dict[str, Any]) -> None:
    ours, theirs = CALLS[name]
    found, wanted = ours(**settings), theirs(**settings)
    whole = found[0].numpy() + 1j * found[1].numpy() if isinstance(found, tuple) else found.numpy()
    assert whole.shape == wanted.shape
    np.testing.assert_allclose(whole, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("points", [1, 2, 5, 8])
def test_the_transform_keeps_the_laws_of_primitives(points: int, sign: int) -> None:
    """Its kernel is its product with a matrix; mapping, and gradients to second order."""
    check_primitive(fft.transform, RNG.normal(size=(2, points)), RNG.normal(size=(2, points)), sign=sign)


@pytest.mark.capability("A13")
@pytest.mark.parametrize("points", [6, 7])
def test_gradients_are_those_of_finite_differences(points: int) -> None:
    def power(x: Array) -> Array:
        real, imag = fft.rfft(x, norm="ortho")
        there = fft.irfft(real * real, imag * cnp.cos(real), n=points)
        return cnp.sum(cnp.sin(there)) + cnp.sum(imag * imag)

    x = RNG.normal(size=(2, points))
    told = grad(power)(Array(x)).numpy()
    for _ in range(4):
        direction = RNG.normal(size=x.shape)
        ends = [power(Array(x + side * 1e-6 * direction)).item() for side in (1, -1)]
        assert np.sum(told * direction) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5)


def test_a_gradient_of_power_is_the_known_one() -> None:
    """By Parseval, sum |F x|² = n sum x², whose gradient is 2 n x."""
    x = RNG.normal(size=12)

    def power(x: Array) -> Array:
        real, imag = fft.fft(x)
        return cnp.sum(real * real + imag * imag)

    np.testing.assert_allclose(grad(power)(Array(x)).numpy(), 24 * x, rtol=1e-10)


def test_a_transform_runs_in_a_graph_as_a_product() -> None:
    compiled = jit(lambda x: fft.irfft(*fft.rfft(x), n=7), fullgraph=True)
    np.testing.assert_allclose(compiled(X.astype(np.float32)).numpy(), X, rtol=1e-4, atol=1e-5)
    each = vmap(lambda x: fft.rfft(x)[1])(Array(X)).numpy()
    np.testing.assert_allclose(each, np.fft.rfft(X).imag, atol=1e-12)
    portable = to_onnx(trace(lambda x: fft.fft(x)[0], TensorSpec((2, 16))).graph, name="spectrum")
    assert len(portable) < 20_000


def test_a_long_transform_is_refused_in_a_graph_and_computed_on_the_host() -> None:
    long = fft.LONGEST + 1
    with pytest.raises(TraceError, match=rf"test_fft\.py:\d+: a Fourier transform of {long} points") as caught:
        to_onnx(trace(lambda x: fft.fft(x)[0], TensorSpec((long,))).graph, name="long")
    assert caught.value.reason == "lowering_missing" and "frames" in str(caught.value.hint)
    x = RNG.normal(size=long)
    np.testing.assert_allclose(fft.rfft(x)[0].numpy(), np.fft.rfft(x).real, atol=1e-9)


REFUSED: list[tuple[Callable[[], Any], type[CoterieError], str]] = [
    (lambda: fft.fft(np.arange(4)), DTypeError, "takes float32 or float64, got int"),
    (lambda: fft.fft(X, Y[:, :3]), ShapeError, r"one shape with an axis -1, got \[3, 7\] and \[3, 3\]"),
    (lambda: fft.rfft(X, axis=2), ShapeError, "an axis 2"),
    (lambda: fft.fft(X, n=0), ArgumentValueError, "1 to 268435456 points, not 0"),
    (lambda: fft.fft(X, n=10**12), ArgumentValueError, "points, not 1000000000000"),
    (lambda: fft.fft(X, n=1.5), ArgumentTypeError, "n must be a whole number, not 1.5"),  # type: ignore[reportArgumentType]
    (lambda: fft.fft(X, axis=None), ArgumentTypeError, "axis must be a whole number, not None"),  # type: ignore[reportArgumentType]
    (lambda: fft.ifft(X, norm="none"), ArgumentValueError, "no norm 'none'"),  # type: ignore[reportArgumentType]
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_cannot_be_transformed_is_refused(number: int) -> None:
    call, kind, told = REFUSED[number]
    with pytest.raises(kind, match=told):
        call()
