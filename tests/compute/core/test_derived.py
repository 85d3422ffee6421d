"""custom_vjp and checkpoint (C12, section 4.1; recompute)."""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from typing import Any

import numpy as np
import onnx
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
import pytest

from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.autodiff import grad, value_and_grad
from coterie.compute.batching import vmap
from coterie.compute.control.derived import checkpoint, custom_vjp
from coterie.compute.interactive.jit import jit
from coterie.compute.interpret import interpret
from coterie.compute.ir import Graph
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.text import parse, to_text
from coterie.compute.trace import TensorSpec, trace
from coterie.errors import InputError

X = Array(np.asarray([-1.5, 0.2, 3.0]))


def plain_sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + cnp.exp(-x))


@custom_vjp(lambda x, y, dy: dy * y * (1.0 - y))
def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + cnp.exp(-x))


def primitives(graph: Graph) -> list[str]:
    return [node.primitive for node in graph.nodes]


@pytest.mark.capability("C12")
def test_c12_the_gradient_of_sigmoid_reuses_its_result_and_takes_no_second_exponential() -> None:
    graph = optimise(trace(value_and_grad(lambda x: cnp.sum(sigmoid(x))), TensorSpec((3,))).graph)
    assert primitives(graph).count("exp") == 1
    assert "divide" in primitives(graph) and primitives(graph).count("divide") == 1
    assert primitives(graph).count("multiply") == 1  # y (1 - y); the cotangent is 1
    plain = optimise(trace(value_and_grad(lambda x: cnp.sum(plain_sigmoid(x))), TensorSpec((3,))).graph)
    assert len(graph.nodes) < len(plain.nodes)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_a_custom_gradient_is_differentiated_again(order: int) -> None:
    def derivative(fn: Any) -> Any:
        for _ in range(order):
            fn = (lambda f: lambda x: cnp.sum(grad(lambda z: cnp.sum(f(z)))(x)))(fn)
        return fn

    ways: tuple[Any, Any] = (lambda f: f, jit)
    for run in ways:
        ours, theirs = run(derivative(sigmoid))(X), derivative(plain_sigmoid)(X)
        assert ours.item() == pytest.approx(theirs.item(), rel=1e-9)


def test_a_custom_gradient_wins_over_the_true_one_everywhere() -> None:
    @custom_vjp(lambda x, y, dy: 100.0 * dy)
    def odd(x: Array) -> Array:
        return x * x

    total = lambda x: cnp.sum(odd(x))  # noqa: E731
    assert grad(total)(X).numpy().tolist() == [100.0] * 3
    assert jit(grad(total))(X).numpy().tolist() == [100.0] * 3
    assert vmap(grad(odd))(X).numpy().tolist() == [100.0] * 3
    assert grad(lambda x: cnp.sum(vmap(odd)(x)))(X).numpy().tolist() == [100.0] * 3
    assert odd(X).numpy().tolist() == (X.numpy() ** 2).tolist()


def test_trees_integers_and_several_results() -> None:
    def bprop(p: dict[str, Array], ids: Array, out: Any, dout: Any) -> Any:
        assert dout[1] is None  # an integer has no cotangent
        return {"a": dout[0] * 2.0, "b": dout[0] * 3.0}, None

    @custom_vjp(bprop)
    def fn(p: dict[str, Array], ids: Array) -> Any:
        return p["a"] + p["b"], ids + 1

    ids = cnp.asarray([1, 2, 3])
    (value, more), g = value_and_grad(lambda p: (cnp.sum(fn(p, ids)[0]), fn(p, ids)[1]), has_aux=True)({"a": X, "b": X})
    assert value.item() == pytest.approx(2 * X.numpy().sum()) and more.numpy().tolist() == [2, 3, 4]
    assert (g["a"].numpy().tolist(), g["b"].numpy().tolist()) == ([2.0] * 3, [3.0] * 3)


@pytest.mark.parametrize(
    ("bprop", "message"),
    [
        (lambda x, y, out, dout: dout, "cotangents of 1 arguments, not of 2"),
        (
            lambda x, y, out, dout: (dout, cnp.sum(dout)),
            r"returned \(float64\[\]\) for an argument of \(float64\[3\]\)",
        ),
        (lambda x, y, out, dout: (dout, None), r"returned \(\) for an argument"),
    ],
)
def test_a_bprop_that_does_not_fit_is_refused(bprop: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        grad(lambda x: cnp.sum(custom_vjp(bprop)(lambda a, b: a * b)(x, x)))(X)


def test_arrays_from_around_a_custom_function_are_refused() -> None:
    def outer(w: Array) -> Array:
        return cnp.sum(custom_vjp(lambda x, y, dy: dy)(lambda x: x * w)(w))

    with pytest.raises(InputError, match="not among its arguments.*Pass the array"):
        grad(outer)(X)


def layer(x: Array, w: Array) -> Array:
    return cnp.tanh(cnp.tanh(x @ w) @ w)


def network(wrap: Any) -> Any:
    def loss(w: Array, x: Array) -> Array:
        block = wrap(lambda v: layer(v, w))  # the weights come by closure
        return cnp.sum(block(block(x)))

    return loss


def test_a_checkpointed_function_is_computed_again_in_its_gradient() -> None:
    specs = TensorSpec((3, 3)), TensorSpec((2, 3))
    kept = optimise(trace(value_and_grad(network(lambda f: f)), *specs).graph)
    again = optimise(trace(value_and_grad(network(checkpoint)), *specs).graph)
    # Two blocks of two layers each: four tanh forward; four more where they are computed again.
    assert (primitives(kept).count("tanh"), primitives(again).count("tanh")) == (4, 8)
    w, x = (np.random.default_rng(i).normal(size=s.shape).astype(np.float32) for i, s in enumerate(specs))
    expected = interpret(kept, {"0": w, "1": x})["1"]
    np.testing.assert_allclose(interpret(again, {"0": w, "1": x})["1"], expected, rtol=1e-5)
    np.testing.assert_allclose(jit(grad(network(checkpoint)))(w, x).numpy(), expected, rtol=1e-4)


def test_the_runtime_does_not_undo_it(tmp_path: Any) -> None:
    graph = optimise(trace(value_and_grad(network(checkpoint)), TensorSpec((3, 3)), TensorSpec((2, 3))).graph)
    graph = Graph(graph.inputs, graph.nodes, {f"result/{name}": value for name, value in graph.outputs.items()})
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(to_onnx(graph, name="again"), options, providers=["CPUExecutionProvider"])
    operators = [node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node]
    assert operators.count("Tanh") == 8


def test_a_checkpoint_outside_a_trace_is_the_function_and_gradients_agree_to_second_order() -> None:
    w, x = Array(np.random.default_rng(0).normal(size=(3, 3))), Array(np.random.default_rng(1).normal(size=(2, 3)))
    assert network(checkpoint)(w, x).item() == network(lambda f: f)(w, x).item()
    second = lambda loss: grad(lambda v: cnp.sum(cnp.square(grad(loss)(v, x))))(w).numpy()  # noqa: E731
    np.testing.assert_allclose(second(network(checkpoint)), second(network(lambda f: f)), rtol=1e-10)
    each = vmap(grad(network(checkpoint)), in_axes=(None, 0))(w, x[:, None])
    np.testing.assert_allclose(each.numpy().sum(0), grad(network(checkpoint))(w, x).numpy(), rtol=1e-10)


def test_graphs_inside_nodes_have_a_text_form() -> None:
    graph = trace(
        lambda w, x: network(checkpoint)(w, x) + cnp.sum(sigmoid(x)), TensorSpec((3, 3)), TensorSpec((2, 3))
    ).graph
    assert to_text(parse(to_text(graph))) == to_text(graph)
    assert {"checkpoint", "custom"} <= set(primitives(graph))
