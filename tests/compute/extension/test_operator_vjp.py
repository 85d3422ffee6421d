"""The derivative of an operator takes the gradient from above, gives those of several operands, and is an operator."""

# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coterie.compute import Array, jit, operator_vjp, ops, vmap
from coterie.compute import numpy as cnp
from coterie.compute.science.dsl import axes, define, sum_over, tanh, tensors
from coterie.errors import ArgumentValueError, DTypeError, ShapeError
from tests.compute.extension.primitives import CASES, spread, swish, tensor_add

i, j, k = axes("ijk")
A, B, C = tensors("ABC")
OPERATORS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "matmul": (cnp.matmul, (spread(2, 3), spread(3, 2, seed=1))),
    "conv2d": (ops.conv2d, (spread(1, 2, 4, 4), spread(2, 2, 3, 3, seed=1), spread(2, seed=2))),
    "softmax": (ops.softmax, (spread(2, 3),)),
    "index notation": (define(C[i, j], tanh(sum_over(k, A[i, k] * B[k, j]))), (spread(2, 3), spread(3, 2, seed=1))),
    "user primitive": (swish, (spread(4),)),
    "with a vjp of its own": (tensor_add, (spread(3), spread(3, seed=1))),
    "two results": (CASES["polar"][0], (spread(3), spread(3, seed=1))),
}


def differences(fn: Callable[..., Any], at: list[Any], which: int, seeds: list[Any], step: float = 1e-6) -> Any:
    """The gradient of sum(seed * result) with respect to one operand, by central differences."""

    def value(x: Any) -> float:
        returned = fn(*(Array(x) if index == which else Array(v) for index, v in enumerate(at)))
        results = returned if isinstance(returned, tuple) else (returned,)
        return float(sum(np.sum(seed * r.numpy()) for seed, r in zip(seeds, results, strict=True)))

    found = np.zeros_like(at[which])
    for place in np.ndindex(found.shape):
        moved = [at[which].copy() for _ in range(2)]
        moved[0][place] += step
        moved[1][place] -= step
        found[place] = (value(moved[0]) - value(moved[1])) / (2 * step)
    return found


@pytest.mark.capability("C8")
@pytest.mark.parametrize(("operator", "operands"), OPERATORS.values(), ids=OPERATORS.keys())
def test_c8_gradients_of_all_operands_to_second_order(operator: Callable[..., Any], operands: Any) -> None:
    positions = tuple(range(len(operands)))
    returned = operator(*operands)
    several = isinstance(returned, tuple)
    results = returned if several else (returned,)
    seeds = [spread(*r.shape, seed=7 + index) for index, r in enumerate(results)]
    upstream = tuple(map(Array, seeds)) if several else Array(seeds[0])
    first = operator_vjp(operator, positions)
    for position, gradient in enumerate(first(upstream, *operands)):
        expected = differences(operator, list(operands), position, seeds)
        np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-5, atol=1e-7)
    if several:
        return
    # Second order: the first derivative is an operator of (upstream, *operands), differentiated for each of them.
    inner = [spread(*x.shape, seed=20 + index) for index, x in enumerate(operands)]
    second = operator_vjp(first, (0, *(p + 1 for p in positions)))
    for position, gradient in enumerate(second(tuple(map(Array, inner)), upstream, *operands)):
        expected = differences(first, [seeds[0], *operands], position, inner)
        np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.capability("C8")
def test_c8_it_is_repeatable_and_works_under_jit_and_vmap() -> None:
    x = Array(np.asarray(2.0))
    derivative: Callable[..., Any] = cnp.tanh
    told = [0.0706508249, -0.1362186828, 0.2526540704]
    for expected in told:
        derivative = (lambda f: lambda v: operator_vjp(f)(Array(np.ones(())), v))(derivative)
        np.testing.assert_allclose(float(derivative(x)), expected, rtol=1e-7)
        np.testing.assert_allclose(float(jit(derivative)(x)), expected, rtol=1e-7)
    batch = Array(np.asarray([2.0, 2.0]))
    np.testing.assert_allclose(vmap(derivative)(batch).numpy(), [told[-1]] * 2, rtol=1e-7)


def test_an_int_gives_one_gradient_and_positions_choose_operands() -> None:
    a, b, up = (Array(spread(2, 2, seed=s)) for s in (0, 1, 2))
    np.testing.assert_allclose(operator_vjp(cnp.matmul, 1)(up, a, b).numpy(), a.numpy().T @ up.numpy())
    (only,) = operator_vjp(cnp.matmul, [0])(up, a, b)
    np.testing.assert_allclose(only.numpy(), up.numpy() @ b.numpy().T)
    last, first = operator_vjp(cnp.matmul, (1, 0))(up, a, b)
    np.testing.assert_allclose(first.numpy(), only.numpy())
    np.testing.assert_allclose(last.numpy(), a.numpy().T @ up.numpy())


def test_wrong_uses_are_refused() -> None:
    a = Array(spread(2, 2))
    with pytest.raises(ArgumentValueError, match="no operand 2 among 2"):
        operator_vjp(cnp.matmul, 2)(a, a, a)
    with pytest.raises(ShapeError, match="like the result"):
        operator_vjp(cnp.matmul)(Array(spread(3)), a, a)
    with pytest.raises(DTypeError, match="only floats have gradients"):
        operator_vjp(cnp.take, 1)(a, a, Array(np.asarray([0, 1], np.int32)))
