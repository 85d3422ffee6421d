"""What ONNX lacks is called in Python, between compiled pieces of the function."""

# The tests are full of small functions of arrays, and hooks of primitives have no self.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportSelfClsParameterName=false

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.compute import cond, grad, jit, linalg, primitive, vmap
from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.interactive.pieces import program
from coterie.compute.mindspore.compiled import jit as mindspore_jit
from coterie.compute.mindspore.tensor import Tensor
from coterie.compute.passes import optimise
from coterie.compute.trace import TensorSpec, trace
from coterie.errors import ArgumentValueError, CoterieError, TraceError

CALLS: list[float] = []


@primitive("test.squared_on_host", inputs=("x",))
class squared:
    """x², by NumPy alone, which notes what it was given."""

    def infer_shape(x: Any) -> Any:
        return x

    def kernel(x: Any) -> Any:
        CALLS.append(float(x.reshape(-1)[0]))
        return x * x

    def vjp(x: Any, out: Any, dout: Any) -> Any:
        return 2.0 * x * dout


def matrix(seed: int) -> np.ndarray:
    return np.eye(3, dtype=np.float32) + 0.1 * np.random.default_rng(seed).normal(size=(3, 3)).astype(np.float32)


def mixed(a: Array) -> tuple[Array, Array]:
    before = cnp.tanh(a) @ a
    inverse = linalg.inv(before)
    values = linalg.svd(inverse).S
    return cnp.sum(linalg.inv(inverse * values) @ a), cnp.exp(before)


@pytest.mark.capability("D4")
def test_what_stands_around_a_call_of_the_host_is_compiled() -> None:
    compiled = jit(mixed)
    for seed in (1, 2):
        for found, expected in zip(compiled(matrix(seed)), mixed(Array(matrix(seed))), strict=True):
            np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-4, atol=1e-4)
    assert (compiled.compilations, compiled.fallbacks) == (1, ())
    assert len(compiled.host_calls) == 3 and all("test_host_calls.py:" in call for call in compiled.host_calls)
    assert [call.split("'")[1] for call in compiled.host_calls] == ["linalg.inv", "linalg.svd", "linalg.inv"]
    made = program(optimise(trace(mixed, TensorSpec((3, 3))).graph), name="mixed")
    kinds = [type(part).__name__ for part in made.parts]
    assert kinds == ["_Piece", "_HostCall", "_HostCall", "_Piece", "_HostCall", "_Piece"]


@pytest.mark.capability("D4")
def test_a_gradient_goes_through_calls_of_the_host() -> None:
    def loss(a: Array) -> Array:
        return cnp.sum(cnp.tanh(linalg.solve(a, cnp.exp(a))))

    compiled = jit(grad(loss))
    np.testing.assert_allclose(compiled(matrix(3)).numpy(), grad(loss)(Array(matrix(3))).numpy(), rtol=1e-4, atol=1e-5)
    assert (compiled.compilations, compiled.fallbacks) == (1, ()) and compiled.host_calls
    second = jit(grad(lambda x: cnp.sum(grad(lambda y: cnp.sum(squared(y) * y))(x))))
    np.testing.assert_allclose(second(np.asarray([1.0, 2.0], np.float32)).numpy(), [6.0, 12.0], rtol=1e-6)
    assert second.fallbacks == ()


def test_a_call_of_the_host_is_made_once_a_run_with_the_numbers_of_that_run() -> None:
    compiled = jit(lambda x: cnp.sum(squared(x + 1.0) * 2.0))
    CALLS.clear()
    assert [float(compiled(np.asarray([number], np.float32))) for number in (1.0, 2.0, 1.0)] == [8.0, 18.0, 8.0]
    assert CALLS == [2.0, 3.0, 2.0]


STEPS: list[Any] = [cnp.tanh, squared, lambda x: x * 0.5 - 1.0, lambda x: squared(x)[:, ::-1], lambda x: x @ x.T @ x]


@settings(max_examples=25)
@given(chosen=st.lists(st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 5)), min_size=1, max_size=7))
def test_any_order_of_calls_means_what_it_means_eagerly(chosen: list[tuple[int, int]]) -> None:
    def body(x: Array) -> tuple[Array, Array]:
        made = [x]
        for step, operand in chosen:
            made.append(cnp.tanh(STEPS[step](made[operand % len(made)]) + made[-1]))
        return made[-1], made[len(made) // 2]

    x = np.random.default_rng(len(chosen)).normal(size=(2, 3)).astype(np.float32)
    compiled = jit(body)
    for found, expected in zip(compiled(x), body(Array(x)), strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)
    assert compiled.fallbacks == ()


def test_a_choice_with_a_call_inside_is_made_in_python_and_the_rest_is_not() -> None:
    fn = lambda x: cond(cnp.sum(x) > 0.0, lambda: squared(x), lambda: -x) * 2.0  # noqa: E731
    for unroll in (False, True):
        compiled = jit(fn, unroll=unroll)
        assert [compiled(np.asarray([sign], np.float32)).numpy().tolist() for sign in (3.0, -3.0)] == [[18.0], [6.0]]
        assert (compiled.compilations, compiled.fallbacks) == (1, ()) and len(compiled.host_calls) == 1


def test_what_python_says_against_its_operands_reaches_the_caller() -> None:
    compiled = jit(lambda x: cnp.sum(linalg.inv(x * 2.0)))
    with pytest.raises(ArgumentValueError, match="singular") as caught:
        compiled(np.zeros((3, 3), np.float32))
    assert isinstance(caught.value, CoterieError)


def test_a_whole_graph_and_an_export_refuse_it_with_its_line() -> None:
    for act in (lambda: jit(mixed, fullgraph=True)(matrix(1)), lambda: jit(mixed).export(TensorSpec((3, 3)))):
        with pytest.raises(TraceError, match=r"test_host_calls\.py:\d+: primitive 'linalg\.inv' has no lowering"):
            act()


def test_a_function_with_nothing_to_compile_runs_as_it_is() -> None:
    compiled = jit(lambda x: squared(x))
    assert compiled(np.asarray([3.0], np.float32)).numpy().tolist() == [9.0]
    assert compiled.compilations == 0 and "test.squared_on_host" in compiled.fallbacks[0]


def test_results_are_no_views_of_arguments() -> None:
    given = np.asarray([1.0, 2.0], np.float32)
    same, twice = jit(lambda x: (x, squared(x) + 1.0))(given)
    given[:] = 7.0
    assert same.numpy().tolist() == [1.0, 2.0] and twice.numpy().tolist() == [2.0, 5.0]


def test_examples_are_mapped_around_it_and_mindspore_functions_say_where_it_is() -> None:
    stack = np.stack([matrix(1), matrix(2)])
    compiled = jit(vmap(lambda a: cnp.sum(linalg.inv(a) * a)))
    expected = [float(np.sum(np.linalg.inv(a) * a)) for a in stack]
    np.testing.assert_allclose(compiled(stack).numpy(), expected, rtol=1e-4)
    step = mindspore_jit(lambda x: linalg.inv(x) @ x)
    np.testing.assert_allclose(step(Tensor(stack[0])).asnumpy(), np.eye(3), atol=1e-5)
    assert (step.compilations, step.fallbacks) == (1, ()) and "linalg.inv" in step.host_calls[0]
