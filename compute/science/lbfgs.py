"""L-BFGS: quasi-Newton steps from the last few changes of the gradient."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, cast

import numpy as np

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.optim.optimizer import Arrays, Optimizer, check_range, check_whole, scaled, zeros_like
from coterie.compute.science.flat import Flat
from coterie.compute.science.line_search import Point, Vector, wolfe
from coterie.errors import InputError

# A pair counts only where s·y is at least this part of |s| |y|: otherwise the curvature it tells of is rounding.
_CURVED = 1e-8


@dataclass(frozen=True, kw_only=True)
class Minimum:
    """Where a minimisation ended. x: a tree like x0. gradient: the largest absolute component there. iterations,
    evaluations: how many steps were taken, and how often value and gradient were computed. converged: whether the
    gradient is within the tolerance; else the iterations were used up, or no lower point was found.
    """

    x: Any
    value: float
    gradient: float
    iterations: int
    evaluations: int
    converged: bool


def minimise(
    fn: Callable[[Any], Any],
    x0: Any,
    *,
    memory: int = 10,
    max_iterations: int = 200,
    tolerance: float = 1e-6,
) -> Minimum:
    """A local minimum of a scalar function of a tree of float arrays, by L-BFGS (Liu and Nocedal 1989) with a line
    search for the strong Wolfe conditions.

    fn is compiled once. memory: how many changes are remembered; they and all vectors are float64 on the host, while
    ``fn`` sees arrays of x0's dtypes. tolerance: the largest absolute component of the gradient at which it is done.

    Guarantees: the value never rises; a not-finite value is stepped back from. Raises InputError for numbers out of
    range or a start whose value or gradient is not finite, and what ``fn`` raises.
    """
    check_whole("minimise", memory=memory)
    check_whole("minimise", 0, max_iterations=max_iterations)
    check_range("minimise", 0, inf, tolerance=tolerance)
    flat = Flat.of(x0)
    objective, x = flat.objective(fn), flat.vector(x0)
    value, gradient = objective(x)
    for what, number in (("value", value), ("slope", _largest(gradient))):
        if not np.isfinite(number):
            raise InputError(
                f"minimise: the {what} at the start is {number}.",
                hint="Start where the function and its slope are finite.",
            )
    pairs: list[tuple[Vector, Vector]] = []
    iterations, evaluations = 0, 1
    while iterations < max_iterations and _largest(gradient) > tolerance:
        direction = _direction(pairs, gradient)
        slope = float(gradient @ direction)
        first = 1.0 if pairs else min(1.0, 1.0 / float(np.sum(np.abs(gradient))))
        found, count = wolfe(objective, x, direction, Point(0.0, value, slope, gradient), first=first)
        evaluations += count
        if found is None or found.value > value:
            if not pairs:
                break
            pairs.clear()  # forget a curvature that no longer leads down, and try the gradient itself
            continue
        step, change = found.distance * direction, found.gradient - gradient
        x, value, gradient = x + step, found.value, found.gradient
        iterations += 1
        if step @ change > _CURVED * np.linalg.norm(step) * np.linalg.norm(change):
            pairs = [*pairs[-(memory - 1) :], (step, change)] if memory > 1 else [(step, change)]
    largest = _largest(gradient)
    return Minimum(
        x=flat.tree(x),
        value=value,
        gradient=largest,
        iterations=iterations,
        evaluations=evaluations,
        converged=largest <= tolerance,
    )


def _largest(gradient: Vector) -> float:
    return float(np.max(np.abs(gradient), initial=0.0))


def _direction(pairs: list[tuple[Vector, Vector]], gradient: Vector) -> Vector:
    """-H g by the two-loop recursion."""
    q, shares = gradient.copy(), list[float]()
    for step, change in reversed(pairs):
        share = float(step @ q) / float(step @ change)
        q -= share * change
        shares.append(share)
    if pairs:
        step, change = pairs[-1]
        q *= float(step @ change) / float(change @ change)
    for (step, change), share in zip(pairs, reversed(shares), strict=True):
        q += (share - float(change @ q) / float(step @ change)) * step
    return -q


def lbfgs(lr: float = 1.0, *, memory: int = 5) -> Optimizer:
    """L-BFGS without a line search, as an update rule that compiles into a step: p ← p - lr H g, with H of the last
    ``memory`` steps and changes of the gradient. It is for gradients of one function, that is of the whole data or of
    batches large enough: between different small batches the changes are noise. A pair without positive curvature is
    left out, and the first step is scaled as in ``minimise``.

    The two-loop recursion runs over all parameters together. State: "<parameter>.step_i" and "<parameter>.change_i" for
    i below memory, the last being the newest, "<parameter>.gradient" and "<parameter>.moved", and "lbfgs.started" [1].
    Hyper-parameter: lr. Every step costs 4 · memory passes over the parameters. Raises InputError for a number out of
    range.
    """
    check_range("lbfgs", 0, inf, lr=lr)
    if not isinstance(cast(object, memory), int) or not 1 <= memory <= 100:
        raise InputError(f"lbfgs: memory must be a whole number from 1 to 100, got {memory!r}.")

    def init(params: Arrays) -> dict[str, Array]:
        kinds = [f"{kind}_{index}" for kind in ("step", "change") for index in range(memory)]
        state: dict[str, Array] = {"lbfgs.started": xp.zeros((1,))}
        for kind in (*kinds, "gradient", "moved"):
            state |= zeros_like(params, kind)
        return state

    def update(
        grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        on = xp.greater(active, 0.0)
        changes = {name: gradient - state[f"{name}.gradient"] for name, gradient in grads.items()}
        steps = {name: state[f"{name}.moved"] for name in grads}
        curved = xp.greater(_dot(steps, changes), _CURVED * xp.sqrt(_dot(steps, steps) * _dot(changes, changes)))
        counts = xp.logical_and(xp.logical_and(on, xp.greater(state["lbfgs.started"], 0.0)), curved)
        kept = dict(state)
        for name in grads:
            for kind, newest in (("step", steps[name]), ("change", changes[name])):
                rows = [state[f"{name}.{kind}_{index}"] for index in range(memory)]
                for index, (row, following) in enumerate(zip(rows, [*rows[1:], newest], strict=True)):
                    kept[f"{name}.{kind}_{index}"] = _choose(counts, following, row)
        direction = _two_loops(dict(grads), kept, memory)
        moved = dict(params)
        for name, gradient in grads.items():
            step = scaled(-(hyper["lr"] * active), direction[name])
            moved[name] = params[name] + step
            kept[f"{name}.moved"] = _choose(on, step, state[f"{name}.moved"])
            kept[f"{name}.gradient"] = _choose(on, gradient, state[f"{name}.gradient"])
        kept["lbfgs.started"] = xp.maximum(state["lbfgs.started"], active)
        return moved, kept

    return Optimizer(name="lbfgs", hyper={"lr": lr}, init=init, update=update)


def _choose(condition: Array, new: Array, old: Array) -> Array:
    # A choice and not a blend: it is exact whatever the numbers are, -0 included.
    return xp.where(condition if old.ndim else xp.reshape(condition, ()), new, old)


def _dot(a: Arrays, b: Arrays) -> Array:
    """The inner product over all tensors, [1]."""
    total = xp.zeros((1,))
    for name in a:
        total = total + xp.reshape(xp.sum(a[name] * b[name]), (1,))
    return total


def _two_loops(gradient: dict[str, Array], state: Arrays, memory: int) -> dict[str, Array]:
    """H g, [1] arithmetic between passes over the tensors; a pair of zeros changes nothing."""
    q = gradient

    def pair(index: int) -> tuple[dict[str, Array], dict[str, Array], Array]:
        step = {name: state[f"{name}.step_{index}"] for name in gradient}
        change = {name: state[f"{name}.change_{index}"] for name in gradient}
        return step, change, _reciprocal(_dot(step, change))

    pairs = [pair(index) for index in range(memory)]
    shares: list[Array] = []
    for step, change, inverse in reversed(pairs):
        share = inverse * _dot(step, q)
        q = {name: q[name] - scaled(share, change[name]) for name in q}
        shares.append(share)
    step, change, inverse = pairs[-1]
    known = xp.astype(xp.greater(inverse, 0.0), xp.float32)
    curvature = _dot(step, change) * _reciprocal(_dot(change, change))
    size = xp.zeros((1,))
    for g in gradient.values():
        size = size + xp.reshape(xp.sum(xp.abs(g)), (1,))
    scale = known * curvature + (1 - known) * (1 / xp.maximum(size, 1.0))
    q = {name: scaled(scale, q[name]) for name in q}
    for (step, change, inverse), share in zip(pairs, reversed(shares), strict=True):
        back = share - inverse * _dot(change, q)
        q = {name: q[name] + scaled(back, step[name]) for name in q}
    return q


def _reciprocal(number: Array) -> Array:
    """1 / number where it is positive, else 0."""
    positive = xp.greater(number, 0.0)
    return xp.where(positive, 1 / xp.where(positive, number, xp.ones((1,))), xp.zeros((1,)))
