"""A tape gives the gradients that grad gives (A11)."""

from collections.abc import Callable

import numpy as np
import pytest

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array, ArrayLike
from coterie.compute.autodiff import grad
from coterie.compute.control.derived import checkpoint
from coterie.compute.control.functions import cond, scan, while_loop
from coterie.compute.interactive.jit import jit
from coterie.compute.interactive.tape import Variable, backward, tape
from coterie.compute.ir import NDArray
from coterie.compute.trace import TensorSpec, trace
from coterie.errors import DTypeError, InputError, ShapeError


def bump(x: ArrayLike) -> Array:
    return cnp.multiply(x, cnp.exp(-cnp.square(x)))


ACTIVATIONS: tuple[Callable[[ArrayLike], Array], ...] = (ops.relu, cnp.tanh, ops.sigmoid, ops.gelu, ops.softplus, bump)


def network(seed: int) -> tuple[list[NDArray], NDArray, list[int]]:
    """Random layers: weights, an input, and which activation follows each."""
    rng = np.random.default_rng(seed)
    sizes = [3, *rng.integers(1, 6, rng.integers(1, 4)).tolist(), 2]
    weights = [rng.normal(size=shape) for shape in zip(sizes, sizes[1:], strict=False)]
    return weights, rng.normal(size=(4, 3)), rng.integers(0, len(ACTIVATIONS), len(weights)).tolist()


@pytest.mark.capability("A11", "C1", "D2")
@pytest.mark.parametrize("seed", range(50))
def test_backward_is_grad_for_a_random_network(seed: int) -> None:
    weights, x, chosen = network(seed)

    def loss(*weights: Array) -> Array:
        y = Array(x)
        for w, index in zip(weights, chosen, strict=True):
            y = ACTIVATIONS[index](y @ w) / (1.0 + cnp.sum(w * w))
        return cnp.mean(ops.logsumexp(y, axis=1))

    expected = grad(loss, tuple(range(len(weights))))(*map(Array, weights))
    variables = [Variable(w) for w in weights]
    with tape():
        value = loss(*variables)
    assert isinstance(value, Variable) and np.isfinite(value.numpy())
    value.backward()
    compiled = jit(grad(loss, tuple(range(len(weights)))))(*weights)
    for variable, told, graph in zip(variables, expected, compiled, strict=True):
        assert variable.grad is not None
        np.testing.assert_allclose(variable.grad.numpy(), told.numpy(), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(variable.grad.numpy(), graph.numpy(), rtol=1e-6, atol=1e-9)


def test_pythons_own_control_flow_decides_on_numbers() -> None:
    x = Variable([1.0, 2.0])
    with tape():
        y = x
        while float(cnp.sum(y)) < 20.0:
            y = y * 2.0 if y[0] < 3.0 else y + x
        loss = cnp.sum(y)
    backward(loss)
    assert loss.item() == 21.0 and x.grad is not None and x.grad.numpy().tolist() == [7.0, 7.0]


def test_structured_control_flow_and_compiled_functions_are_noted_too() -> None:
    def step(carry: Array, x: Array) -> tuple[Array, Array]:
        return cnp.tanh(carry * x), carry

    def cube(x: Array) -> Array:
        return x * x * x

    @jit
    def fn(x: Array) -> Array:
        last, rows = scan(step, x[0], x)
        far = while_loop(lambda c: c < 5.0, lambda c: c * 2.0 + x[1], cnp.abs(last) + 0.1)
        return cnp.sum(rows) + far + cond(x[0] > 0, cnp.exp, cnp.negative, checkpoint(cube)(x[2]))

    point = np.asarray([0.5, 0.25, -0.75])
    x = Variable(point)
    with tape():
        loss = fn(x)
    backward(loss)
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), grad(fn)(Array(point)).numpy(), rtol=1e-10)


def test_gradients_add_up_until_they_are_reset() -> None:
    x, unused = Variable(3.0), Variable(1.0)
    for count in (1, 2):
        with tape():
            loss = x * x
        backward(loss)
        assert x.grad is not None and x.grad.item() == 6.0 * count
    x.grad = None
    with tape():
        rows = cnp.stack([x, x * x])
    assert isinstance(rows, Variable)
    rows.backward([10.0, 1.0])
    assert x.grad is not None and x.grad.item() == 16.0 and unused.grad is None


def test_inside_of_the_tape_gradients_can_be_differentiated_again() -> None:
    x = Variable(2.0)
    with tape():
        backward(cnp.tanh(x))
        first = x.grad
        assert isinstance(first, Variable) and first.item() == pytest.approx(0.07065082)
        x.grad = None
        first.backward()
    assert x.grad is not None and x.grad.item() == pytest.approx(-0.13621868)


def test_what_a_tape_cannot_do_is_refused() -> None:
    x = Variable([1.0, 2.0])
    with tape():
        y = x * 2.0
        whole = cnp.astype(y, "int32")
        with pytest.raises(InputError, match="cannot be opened"), tape():
            pass
    with pytest.raises(ShapeError, match=r"test_tape.py:\d+: backward\(float32\[2\]\): .* not a scalar"):
        backward(y)
    with pytest.raises(DTypeError, match="only floats"):
        backward(whole)
    with pytest.raises(ShapeError, match="like the result"):
        backward(y, [1.0])
    with pytest.raises(InputError, match="not computed under a tape"):
        x.backward()
    with pytest.raises(InputError, match="has ended"):
        _ = y + 1.0
    assert trace(x.__mul__, TensorSpec((2,))).graph.outputs  # outside a tape a Variable is an array
