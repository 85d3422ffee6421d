"""The functions under SciPy's names are SciPy's functions, with true gradients; data frames come in (A13)."""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.autodiff import grad
from coterie.compute.interactive.jit import jit
from coterie.compute.ir import NDArray
from coterie.compute.science.scipy import linalg, optimize, special
from coterie.errors import ArgumentValueError

scipy_special: Any = import_module("scipy.special")
scipy_linalg: Any = import_module("scipy.linalg")
RNG = np.random.default_rng(6)

# name, operands (float64), keywords
CASES: list[tuple[str, list[NDArray], dict[str, Any]]] = [
    *((name, [RNG.normal(size=7) * 3], {}) for name in "expit log_expit erf erfc ndtr log_softmax softmax".split()),
    *((name, [RNG.normal(size=7)], {}) for name in "expm1 exp2 exp10".split()),
    ("softplus", [RNG.normal(size=7) * 30], {}),
    *((name, [RNG.uniform(0.05, 0.95, 7)], {}) for name in "logit entr log1p".split()),
    *((name, [RNG.uniform(0.1, 3, 7), RNG.uniform(0.1, 3, 7)], {}) for name in "xlogy xlog1py rel_entr kl_div".split()),
    *((name, [np.full(7, 1.25), RNG.normal(size=7) * 2], {}) for name in "huber pseudo_huber".split()),
    *((name, [RNG.normal(size=(3, 4))], {"axis": axis}) for name in ("softmax", "log_softmax") for axis in (0, -1)),
    *(
        ("logsumexp", [RNG.normal(size=(3, 4))], {"axis": a, "keepdims": k})
        for a in (None, 1, (0, 1))
        for k in (True, False)
    ),
    (
        "logsumexp",
        [
            RNG.normal(size=(3, 4)),
        ],
        {"b": RNG.uniform(0.5, 2, (3, 4)), "axis": 1},
    ),
]


@pytest.mark.capability("A13")
@pytest.mark.parametrize(("name", "operands", "named"), CASES, ids=[f"{n}_{row[0]}" for n, row in enumerate(CASES)])
def test_a_special_function_is_scipys_with_a_true_gradient(
    name: str, operands: list[NDArray], named: dict[str, Any]
) -> None:
    fn = getattr(special, name)
    expected = getattr(scipy_special, name)(*operands, **named)
    np.testing.assert_allclose(fn(*map(Array, operands), **named).numpy(), expected, rtol=1e-10, atol=1e-12)
    single = [operand.astype(np.float32) for operand in operands]
    named = {k: v.astype(np.float32) if isinstance(v, np.ndarray) else v for k, v in named.items()}
    compiled = jit(lambda *xs: fn(*xs, **named), fullgraph=True)(*single)
    np.testing.assert_allclose(compiled.numpy(), expected, rtol=2e-4, atol=2e-6)
    slope(lambda *xs: fn(*xs, **named), operands)


def slope(fn: Callable[..., Array], operands: list[NDArray]) -> None:
    """The gradient along a random direction is the finite difference."""
    told = grad(lambda *xs: cnp.sum(fn(*xs)), tuple(range(len(operands))))(*map(Array, operands))
    directions = [RNG.normal(size=operand.shape) for operand in operands]
    step = 1e-6
    ends = [
        float(np.sum(fn(*(Array(x + sign * step * d) for x, d in zip(operands, directions, strict=True))).numpy()))
        for sign in (1, -1)
    ]
    expected = sum(float(np.sum(g.numpy() * d)) for g, d in zip(told, directions, strict=True))
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(expected, rel=1e-5, abs=1e-7)


@pytest.mark.capability("A13")
def test_edges_are_scipys_and_their_gradients_are_no_nan() -> None:
    x = np.asarray([0.0, 0.0, 1.0, 2.0])
    y = np.asarray([0.0, 3.0, 1.0, 0.0])
    for name in ("xlogy", "rel_entr", "kl_div"):
        with np.errstate(divide="ignore"):
            expected = getattr(scipy_special, name)(x, y)
        np.testing.assert_array_equal(getattr(special, name)(Array(x), Array(y)).numpy(), expected)
    np.testing.assert_array_equal(special.entr([0.0, -1.0]).numpy(), [0.0, -np.inf])
    low = np.full(3, -np.inf)
    assert special.logsumexp(Array(low)).item() == -np.inf
    assert special.logsumexp(Array(np.asarray([1e4, 1e4]))).item() == pytest.approx(1e4 + np.log(2))
    both = grad(lambda a, b: cnp.sum(special.xlogy(a, b)), (0, 1))(Array(x[:3]), Array(y[:3]))
    assert all(np.isfinite(part.numpy()).all() for part in both)


@pytest.mark.capability("A13")
def test_norms_are_scipys() -> None:
    vector, matrix = RNG.normal(size=6), RNG.normal(size=(3, 4))
    for order in (None, 0, 1, 2, 3, 2.5, np.inf, -np.inf):
        assert linalg.norm(Array(vector), order).item() == pytest.approx(scipy_linalg.norm(vector, order))
    for order in (None, "fro", 1, -1, np.inf, -np.inf):
        assert linalg.norm(Array(matrix), order).item() == pytest.approx(scipy_linalg.norm(matrix, order))
    np.testing.assert_allclose(linalg.norm(Array(matrix), 1, axis=1).numpy(), scipy_linalg.norm(matrix, 1, axis=1))
    slope(lambda x: linalg.norm(x, 3), [vector])
    with pytest.raises(ArgumentValueError, match="singular values"):
        linalg.norm(Array(matrix), 2)
    with pytest.raises(AttributeError, match="linalg has no sqrtm: it needs a factorisation"):
        _ = linalg.sqrtm
    with pytest.raises(AttributeError, match="no attribute 'frobnicate'"):
        _ = linalg.frobnicate


@pytest.mark.capability("A13")
def test_minimize_finds_the_valley_of_rosenbrock() -> None:
    def rosenbrock(x: Array, a: float) -> Array:
        return cnp.sum(a * (x[1:] - x[:-1] * x[:-1]) ** 2 + (1.0 - x[:-1]) ** 2)

    found = optimize.minimize(rosenbrock, np.asarray([-1.2, 1.0, 0.5]), args=(100.0,), tol=1e-8)
    np.testing.assert_allclose(found.x, np.ones(3), atol=1e-6)
    assert found.success and found.fun < 1e-12 and found.nfev >= found.nit > 5
    few = optimize.minimize(rosenbrock, [-1.2, 1.0], args=(100.0,), options={"maxiter": 2})
    assert not few.success and few.nit == 2
    with pytest.raises(ValueError, match="no method 'BFGS'"):
        optimize.minimize(rosenbrock, [0.0], method="BFGS")
    with pytest.raises(ValueError, match="no options"):
        optimize.minimize(rosenbrock, [0.0], options={"ftol": 1})


class Column:
    """What pandas' Series and DataFrame are to NumPy: something with __array__."""

    def __init__(self, data: NDArray) -> None:
        self._data = data

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray:
        return np.array(self._data, dtype=dtype, copy=copy)


@pytest.mark.capability("A13")
def test_columns_of_data_frames_come_in_as_arrays() -> None:
    frame, column = Column(RNG.normal(size=(5, 2))), Column(np.arange(5))
    assert cnp.asarray(frame).dtype == np.float64 and cnp.asarray(column).dtype == np.int64  # type: ignore[arg-type]
    mean = cnp.mean(frame, axis=0)  # type: ignore[arg-type]
    np.testing.assert_allclose(mean.numpy(), np.mean(np.asarray(frame), axis=0), rtol=1e-12)
    compiled = jit(lambda x, n: cnp.sum(x * 2.0, axis=1) * cnp.astype(n, "float64"), fullgraph=True)
    expected = (np.asarray(frame) * 2).sum(axis=1) * np.arange(5)
    np.testing.assert_allclose(compiled(frame, column).numpy(), expected)
    assert compiled.compilations == 1
    np.testing.assert_allclose(grad(lambda x: cnp.sum(x * x))(frame).numpy(), 2 * np.asarray(frame))


@pytest.mark.parametrize("name", ["xlogy", "xlog1py", "rel_entr", "kl_div"])
def test_what_is_no_number_stays_so(name: str) -> None:
    for pair in ((0.0, np.nan), (np.nan, 1.0), (np.nan, 0.0), (np.nan, -1.0), (1.0, np.nan)):
        assert np.isnan(float(getattr(special, name)(*(Array(np.asarray(value)) for value in pair)))), pair
