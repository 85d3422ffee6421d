"""Quasi-Newton and curvature: known minima, an independent account of L-BFGS, the padding laws, and fewer steps than
gradient descent where the curvature is uneven (H4).
"""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.compute import jit, optim
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.ir import NDArray
from coterie.compute.optim.inverse_root import inverse_root
from coterie.compute.science.lbfgs import lbfgs, minimise
from coterie.compute.science.line_search import Point, wolfe
from coterie.compute.step.step import TrainStep
from coterie.errors import DTypeError, InputError

RNG = np.random.default_rng(0)
ROTATION, _ = np.linalg.qr(RNG.normal(size=(20, 20)))
UNEVEN = (ROTATION * np.geomspace(1, 1e4, 20)) @ ROTATION.T
TARGET = RNG.normal(size=20)


def quadratic(x: Array) -> Array:
    away = x - Array(np.asarray(TARGET, x.dtype))
    return 0.5 * xp.sum(away * (Array(np.asarray(UNEVEN, x.dtype)) @ away))


def rosenbrock(tree: dict[str, Array]) -> Array:
    x, y = tree["x"], tree["y"]
    return xp.sum((1.0 - x) ** 2 + 100.0 * (y - x * x) ** 2)


def test_quadratics_of_condition_100_and_10000() -> None:
    mild = Array((ROTATION * np.geomspace(1, 1e2, 20)) @ ROTATION.T)
    found = minimise(lambda x: 0.5 * xp.sum((x - Array(TARGET)) * (mild @ (x - Array(TARGET)))), np.zeros(20))
    np.testing.assert_allclose(found.x.numpy(), TARGET, atol=1e-5)
    assert found.converged and found.iterations <= 80 and found.evaluations <= 2 * found.iterations
    found = minimise(quadratic, np.zeros(20), max_iterations=500, tolerance=1e-5)
    np.testing.assert_allclose(found.x.numpy(), TARGET, atol=1e-4)
    assert found.converged and found.gradient <= 1e-5


def test_h4_lbfgs_and_shampoo_beat_the_steps_of_gradient_descent() -> None:
    """Steps to a thousandth of the first value; gradient descent has its best rate, 2 / (smallest + largest)."""
    start = {"w": np.zeros((5, 4), np.float32)}

    def objective(params: dict[str, Array], batch: dict[str, Array]) -> Array:
        return quadratic(xp.reshape(params["w"], (20,)))

    def steps(optimizer: optim.Optimizer, most: int) -> int:
        step = TrainStep(objective, optimizer)
        state, first = step.init(start), objective(step.init(start)["params"], {}).item()
        run = jit(step)
        for count in range(1, most + 1):
            state, loss = run(state, {})
            if loss.item() <= 1e-3 * first:
                return count
        return most + 1

    descent = steps(optim.sgd(2 / (1 + 1e4)), 4000)
    counts = {"lbfgs": steps(lbfgs(1.0, memory=10), 300), "shampoo": steps(optim.shampoo(1.0), 1500)}
    assert all(count < descent / 2 for count in counts.values()), (descent, counts)


def test_rosenbrock_over_a_tree() -> None:
    start = {"x": np.full(3, -1.2), "y": np.full((3,), 1.0)}
    found = minimise(rosenbrock, start, tolerance=1e-7)
    assert found.converged and found.iterations < 80 and found.evaluations < 160
    for value in found.x.values():
        np.testing.assert_allclose(value.numpy(), np.ones(3), atol=1e-6)


def test_float32_ends_where_rounding_begins() -> None:
    found = minimise(rosenbrock, {"x": np.full(2, -1.2, np.float32), "y": np.ones(2, np.float32)}, tolerance=1e-9)
    np.testing.assert_allclose(found.x["x"].numpy(), [1, 1], atol=1e-2)
    assert found.value < 1e-5 and found.x["x"].dtype == np.float32


def test_a_wall_of_infinity_is_stepped_back_from() -> None:
    found = minimise(lambda x: xp.sum(x - xp.log(x)), np.full(3, 1e-3))  # log of a negative number is NaN
    np.testing.assert_allclose(found.x.numpy(), np.ones(3), atol=1e-5)


def test_it_stops_at_once_at_a_minimum_and_after_the_iterations_it_may_take() -> None:
    assert minimise(quadratic, TARGET, tolerance=1e-3).evaluations == 1
    found = minimise(quadratic, np.zeros(20), max_iterations=3)
    assert found.iterations == 3 and not found.converged


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), first=st.sampled_from([1e-3, 0.1, 1.0, 30.0]))
def test_a_line_search_ends_at_a_wolfe_point(seed: int, first: float) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(6, 6))
    matrix, x = matrix @ matrix.T + 0.1 * np.eye(6), rng.normal(size=6) * 3

    def fn(x: NDArray) -> tuple[float, NDArray]:
        return float(0.5 * x @ matrix @ x + np.sum(np.cos(x))), matrix @ x - np.sin(x)

    value, gradient = fn(x)
    direction = -gradient
    start = Point(0.0, value, float(gradient @ direction), gradient)
    found, count = wolfe(fn, x, direction, start, first=first, curvature=0.5)
    assert found is not None and count <= 20
    assert found.value <= value + 1e-4 * found.distance * start.slope
    assert abs(found.slope) <= 0.5 * abs(start.slope)
    assert (found.value, found.slope) == pytest.approx(
        (fn(x + found.distance * direction)[0], float(found.gradient @ direction))
    )


@pytest.mark.parametrize("power", [2, 4])
@pytest.mark.parametrize(("condition", "tolerance"), [(10, 1e-5), (1e3, 1e-4), (1e5, 5e-3)])
def test_inverse_roots_are_those_by_eigenvalues(power: int, condition: float, tolerance: float) -> None:
    values = np.geomspace(1, 1 / condition, 20) * 37
    matrix, expected = (ROTATION * values) @ ROTATION.T, (ROTATION * values ** (-1 / power)) @ ROTATION.T
    found = inverse_root(Array(matrix.astype(np.float32)), power).numpy()
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


Dict = dict[str, NDArray]
SHAPES = {"w": (3, 2), "b": (2,), "gain": ()}


def numbers(seed: int) -> Dict:
    rng = np.random.default_rng(seed)
    return {name: np.asarray(rng.normal(size=shape), np.float32) for name, shape in SHAPES.items()}


def advance(optimizer: optim.Optimizer, grads: Dict, state: Dict, params: Dict, active: float = 1) -> tuple[Dict, Dict]:
    def arrays(values: Dict) -> dict[str, Array]:
        return {name: Array(value) for name, value in values.items()}

    hyper = {name: Array(np.array([value], np.float32)) for name, value in optimizer.hyper.items()}
    moved, kept = optimizer.update(
        arrays(grads), arrays(state), arrays(params), hyper, Array(np.array([active], np.float32))
    )
    return {n: v.numpy() for n, v in moved.items()}, {n: v.numpy() for n, v in kept.items()}


def first_state(optimizer: optim.Optimizer, params: Dict) -> Dict:
    return {name: value.numpy() for name, value in optimizer.init({n: Array(v) for n, v in params.items()}).items()}


def curved_gradient(params: Dict) -> Dict:
    """Of a sum of squares with weights, and a term that couples all parameters."""
    total = sum(float(value.sum()) for value in params.values())
    return {n: np.asarray((i + 1) * v + 0.1 * total, np.float32) for i, (n, v) in enumerate(sorted(params.items()))}


def test_the_update_rule_is_lbfgs_over_all_parameters_together() -> None:
    """Against the inverse of the BFGS matrix, made from the pairs by its own formula in float64."""
    rule, params = lbfgs(0.5, memory=3), numbers(1)
    state = first_state(rule, params)
    names = list(SHAPES)

    def flat(tree: Dict) -> NDArray:
        return np.concatenate([tree[n].reshape(-1) for n in names]).astype(np.float64)

    x, pairs, before = flat(params), list[tuple[NDArray, NDArray]](), None
    for _ in range(8):
        gradient = curved_gradient(params)
        g = flat(gradient)
        if before is not None:
            pairs = [*pairs, (x - before[0], g - before[1])][-3:]
        if pairs:
            s, y = pairs[-1]
            h = np.eye(len(g)) * (s @ y) / (y @ y)
            for s, y in pairs:
                v = np.eye(len(g)) - np.outer(y, s) / (y @ s)
                h = v.T @ h @ v + np.outer(s, s) / (y @ s)
        else:
            h = np.eye(len(g)) / max(1.0, np.abs(g).sum())
        before = (x, g)
        x = x - 0.5 * h @ g
        params, state = advance(rule, gradient, state, params)
        np.testing.assert_allclose(flat(params), x, rtol=1e-4, atol=1e-5)
        x = flat(params)


@settings(max_examples=25)
@given(steps=st.integers(0, 6), seed=st.integers(0, 1000))
def test_an_inactive_step_returns_everything_bit_for_bit(steps: int, seed: int) -> None:
    rule, params = lbfgs(0.5, memory=2), numbers(seed)
    state = first_state(rule, params)
    for t in range(steps):
        params, state = advance(rule, numbers(seed + t) if t % 2 else curved_gradient(params), state, params)
    after, kept = advance(rule, numbers(seed + 99), state, params, active=0)
    for left, right in ((after, params), (kept, state)):
        assert {n: v.tobytes() for n, v in left.items()} == {n: v.tobytes() for n, v in right.items()}


def test_a_gradient_of_zero_gives_no_nan_and_no_step() -> None:
    rule, params = lbfgs(1.0, memory=2), numbers(3)
    state = first_state(rule, params)
    for _ in range(3):
        moved, state = advance(rule, {n: np.zeros_like(v) for n, v in params.items()}, state, params)
        assert all(np.array_equal(moved[n], params[n]) for n in params)
        assert all(np.isfinite(v).all() for v in state.values())


MISTAKES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: minimise(quadratic, np.zeros(20), memory=0), InputError, "memory must be a whole number of at least 1"),
    (lambda: minimise(lambda x: xp.sum(xp.log(x)), np.zeros(2)), InputError, "the value at the start is -inf"),
    (lambda: minimise(lambda x: xp.sum(xp.sqrt(x)), np.zeros(2)), InputError, "the slope at the start is inf"),
    (
        lambda: minimise(quadratic, np.zeros(20), max_iterations=2.5),  # pyright: ignore[reportArgumentType]
        InputError,
        "max_iterations must be a whole number",
    ),
    (lambda: minimise(lambda x: xp.sum(x), np.arange(3)), DTypeError, "Only floats"),
    (lambda: lbfgs(-1.0), InputError, "lbfgs: lr must be at least 0"),
    (lambda: lbfgs(memory=2.5), InputError, "memory must be a whole number from 1 to 100, got 2.5"),  # pyright: ignore[reportArgumentType]
    (lambda: lbfgs(memory=0), InputError, "memory must be a whole number from 1 to 100"),
]


@pytest.mark.parametrize(("make", "kind", "message"), MISTAKES, ids=[message for *_, message in MISTAKES])
def test_mistakes_are_named(make: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()
