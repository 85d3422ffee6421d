"""grad, value_and_grad and vjp: the meaning of their arguments, higher orders, closures, and refusals."""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from typing import Any

import numpy as np
import pytest

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.autodiff import grad, value_and_grad, vjp
from coterie.compute.interactive.jit import jit
from coterie.compute.passes import optimise
from coterie.compute.trace import TensorSpec, trace, trace_named
from coterie.errors import DTypeError, InputError, ShapeError, TraceError


def f64(*numbers: float) -> Array:
    return cnp.asarray(np.asarray(numbers, np.float64))


def test_tanh_to_the_third_order() -> None:
    def tanh(x: Array) -> Array:
        return cnp.sum(cnp.tanh(x))

    first = grad(tanh)
    second = grad(lambda x: cnp.sum(first(x)))
    third = grad(lambda x: cnp.sum(second(x)))
    x = f64(2.0)
    assert [g(x).item() for g in (first, second, third)] == pytest.approx([0.0706508, -0.1362187, 0.2526541], abs=5e-8)
    compiled = [jit(g)(cnp.asarray([2.0])).item() for g in (first, second, third)]
    assert compiled == pytest.approx([0.0706508, -0.1362187, 0.2526541], abs=2e-6)


def product(a: Array, b: Array) -> Array:
    return cnp.sum(a * b * b)


A, B = f64(1.0, 2.0), f64(3.0, 5.0)


def test_an_int_position_gives_one_gradient_and_a_tuple_gives_a_tuple() -> None:
    np.testing.assert_array_equal(grad(product)(A, B).numpy(), [9.0, 25.0])
    np.testing.assert_array_equal(grad(product, 1)(A, B).numpy(), [6.0, 20.0])
    both = grad(product, (0, 1))(A, B)
    assert isinstance(both, tuple) and [g.numpy().tolist() for g in both] == [[9.0, 25.0], [6.0, 20.0]]
    one = grad(product, (1,))(A, B)
    assert isinstance(one, tuple) and len(one) == 1


def test_a_position_may_hold_a_tree() -> None:
    def loss(parameters: dict[str, Any], x: Array) -> Array:
        return cnp.sum(parameters["w"] * x + parameters["deep"][0])

    value, gradients = value_and_grad(loss)({"w": A, "deep": [B]}, A)
    assert value.item() == 13.0
    assert gradients["w"].numpy().tolist() == [1.0, 2.0]
    assert gradients["deep"][0].numpy().tolist() == [1.0, 1.0]


def test_weights_are_arrays_held_by_closure() -> None:
    w, v = f64(2.0, 3.0), f64(1.0, 1.0)

    def loss(x: Array) -> Array:
        return cnp.sum(x * w * w + v)

    alone = grad(loss, None, weights=[w, v])(A)
    assert isinstance(alone, tuple) and [g.numpy().tolist() for g in alone] == [[4.0, 12.0], [1.0, 1.0]]
    inputs, weights = grad(loss, 0, weights=[w])(A)
    assert inputs.numpy().tolist() == [4.0, 9.0] and weights[0].numpy().tolist() == [4.0, 12.0]
    value, (inputs_tuple, _) = value_and_grad(loss, (0,), weights=(w,))(A)
    assert isinstance(inputs_tuple, tuple) and value.item() == 24.0


def test_gradients_of_weights_inside_a_gradient() -> None:
    w = f64(2.0)

    def inner(x: Array) -> Array:
        return cnp.sum(x * x * w * w)

    def outer(x: Array) -> Array:
        return cnp.sum(grad(inner)(x))  # 2 x w²

    assert grad(outer, None, weights=[w])(f64(3.0))[0].item() == 24.0


def test_aux_is_passed_through_and_not_differentiated() -> None:
    def loss(x: Array) -> tuple[Array, Array, Array]:
        return cnp.sum(x * x), x * 100.0, cnp.sum(x)

    gradients, aux = grad(loss, has_aux=True)(A)
    assert gradients.numpy().tolist() == [2.0, 4.0]
    assert isinstance(aux, tuple) and aux[0].numpy().tolist() == [100.0, 200.0] and aux[1].item() == 3.0
    (value, first, _), again = value_and_grad(loss, has_aux=True)(A)
    assert value.item() == 5.0 and first.numpy().tolist() == [100.0, 200.0] and again.numpy().tolist() == [2.0, 4.0]


def test_without_aux_the_gradients_of_several_scalars_are_summed() -> None:
    gradients = grad(lambda x: (cnp.sum(x * x), 10.0 * cnp.sum(x)))(A)
    assert gradients.numpy().tolist() == [12.0, 14.0]
    twice = grad(lambda x: (cnp.sum(x), cnp.sum(x)))(A)
    assert twice.numpy().tolist() == [2.0, 2.0]

    def shared(x: Array) -> tuple[Array, Array]:
        total = cnp.sum(x)
        return total, total

    assert grad(shared)(A).numpy().tolist() == [2.0, 2.0]


def test_an_argument_without_influence_has_a_zero_gradient() -> None:
    g = grad(lambda a, b: cnp.sum(a), 1)(A, B)
    assert g.numpy().tolist() == [0.0, 0.0]


def test_python_numbers_can_be_differentiated() -> None:
    assert grad(lambda x: x * x * x)(2.0).item() == pytest.approx(12.0)


def test_vjp_pulls_trees_back() -> None:
    result, pullback = vjp(lambda a, b: {"sum": a + b, "product": a * b}, A, B)
    assert result["product"].numpy().tolist() == [3.0, 10.0]
    a, b = pullback({"sum": f64(1.0, 1.0), "product": f64(1.0, 0.0)})
    assert a.numpy().tolist() == [4.0, 1.0] and b.numpy().tolist() == [2.0, 1.0]
    with pytest.raises(ShapeError, match="like the result"):
        pullback({"sum": f64(1.0), "product": f64(1.0, 0.0)})
    with pytest.raises(InputError, match="tree"):
        pullback(A)


def test_a_hessian_vector_product() -> None:
    matrix = np.asarray([[2.0, 1.0], [1.0, 3.0]])

    def quadratic(x: Array) -> Array:
        return 0.5 * cnp.sum(x * (cnp.asarray(matrix) @ x))

    direction = f64(1.0, -1.0)
    product = grad(lambda x: cnp.sum(grad(quadratic)(x) * direction))(A)
    np.testing.assert_allclose(product.numpy(), matrix @ direction.numpy())


def test_unused_branches_are_never_differentiated() -> None:
    def loss(w: Array, x: Array) -> Array:
        return cnp.sum(cnp.tanh(x @ x.T) @ w)

    spec = TensorSpec((3, 3))
    with_input = optimise(trace(grad(loss, (0, 1)), spec, spec).graph)
    only_weight = optimise(trace(grad(loss, 0), spec, spec).graph)
    assert len(only_weight.nodes) < len(with_input.nodes)
    assert sum(node.primitive in ("matmul", "gemm") for node in only_weight.nodes) == 2


@pytest.mark.parametrize(
    ("position", "weights", "message"),
    [
        (None, None, "grad_position or weights"),
        (-1, None, "at least 0"),
        ((0, 0), None, "duplicates"),
        ("x", None, "int or a tuple"),
        (True, None, "int or a tuple"),
    ],
)
def test_bad_positions_are_refused(position: Any, weights: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        grad(product, position, weights)


def test_a_position_beyond_the_arguments_is_refused() -> None:
    with pytest.raises(InputError, match="grad_position 2 but only 2 arguments"):
        grad(product, 2)(A, B)


def test_a_loss_that_is_not_a_scalar_is_refused_with_the_shape_and_a_fix() -> None:
    with pytest.raises(ShapeError, match=r"float64\[2\].*not a scalar.*mean\(loss\)"):
        grad(lambda x: x * x)(A)


def test_integers_have_no_gradient() -> None:
    with pytest.raises(DTypeError, match=r"int32\[2\].*only floats"):
        grad(lambda x: cnp.sum(cnp.astype(x, "float32")))(cnp.asarray([1, 2]))


def test_softplus_and_losses_at_zero_logits_have_their_limits() -> None:
    zero = f64(0.0)
    soft = lambda x: cnp.sum(ops.softplus(x))  # noqa: E731
    assert grad(soft)(zero).item() == 0.5
    assert grad(lambda x: cnp.sum(grad(soft)(x)))(zero).item() == 0.25


@pytest.mark.parametrize("size", [1.0, 1e3, 1e30])
def test_cross_entropy_is_stable_for_large_logits(size: float) -> None:
    logits = cnp.asarray(np.asarray([[size, 0.0, -size]], np.float32))

    def loss(z: Array) -> Array:
        return cnp.sum(ops.logsumexp(z) - z[:, 0])

    value, g = value_and_grad(loss)(logits)
    assert np.isfinite(value.item()) and np.isfinite(g.numpy()).all()
    np.testing.assert_allclose(g.numpy(), ops.softmax(logits).numpy() - [[1, 0, 0]], atol=1e-6)


def test_the_cross_entropy_gradient_takes_no_second_exponential() -> None:
    def loss(z: Array) -> Array:
        return cnp.sum(ops.logsumexp(z) - z[:, 0])

    graph = optimise(trace(value_and_grad(loss), TensorSpec((4, 3))).graph)
    assert [node.primitive for node in graph.nodes].count("exp") == 1


def test_a_traced_array_must_not_outlive_its_trace() -> None:
    kept: list[Array] = []
    trace(lambda x: kept.append(x) or x, TensorSpec((2,)))
    with pytest.raises(TraceError, match="trace that has ended"):
        _ = kept[0] + 1.0
    with pytest.raises(TraceError, match="trace that has ended"):
        trace_named(lambda i: {"y": i["x"] + kept[0]}, {"x": TensorSpec((2,))})
