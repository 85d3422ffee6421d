"""Primitives of a user's own under attack: closures, loops, threads, names, memory that is used twice."""

# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportSelfClsParameterName=false, reportGeneralTypeIssues=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

import copy
import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.compute import (
    Array,
    Registry,
    TensorSpec,
    checkpoint,
    custom_vjp,
    grad,
    graph_digest,
    interpret,
    jit,
    optimise,
    parse,
    primitive,
    register,
    register_kernel,
    to_onnx,
    to_text,
    trace,
    use_registry,
    value_and_grad,
    verify,
    vmap,
    while_loop,
)
from coterie.compute import numpy as cnp
from coterie.compute.clipping.transform import clipped_grad
from coterie.compute.drawing import to_dot
from coterie.compute.interactive.tape import Variable, backward, tape
from coterie.compute.ir import Graph, NDArray
from coterie.compute.passes import PASSES, fixpoint
from coterie.errors import InputError, TraceError
from tests.compute.extension.primitives import bare, polar, reversed_sum, spread, swish, tensor_add

V = cnp.asarray(np.asarray([1.0, 2.0, 3.0], np.float32))
W = cnp.asarray(np.asarray([2.0, 2.0, 2.0], np.float32))


@pytest.mark.parametrize("hooks", [{}, {"infer_shape": lambda x: x, "kernel": lambda x: x * W.numpy()}])
def test_a_lowering_that_takes_a_differentiated_array_from_around_is_refused(hooks: dict[str, Any]) -> None:
    members = {key: staticmethod(hook) for key, hook in {**hooks, "lower": lambda x: x * W}.items()}
    row = primitive("test.closing", inputs=("x",))(type("closing", (), members))
    np.testing.assert_array_equal(grad(lambda x: cnp.sum(row(x)))(V).numpy(), W.numpy())  # W is a constant here
    with pytest.raises(InputError, match="'test.closing' is broken: .*not among its operands"):
        grad(lambda x: cnp.sum(row(x)), None, weights=[W])(V)
    outer = primitive("test.around", inputs=("x",))(lambda x: row(x) + 1.0)
    with pytest.raises(InputError, match="'test.closing' is broken"):
        grad(lambda x: cnp.sum(outer(x)), None, weights=[W])(V)

    def traced(x: Any, w: Any) -> Any:
        return primitive("test.inner", inputs=("x",))(lambda v: v * w)(x)

    with pytest.raises(InputError, match="'test.inner' is broken: .*not among its operands"):
        trace(traced, V, W)


def test_loops_checkpoints_and_custom_gradients_take_it() -> None:
    x = Array(spread(3))

    def looped(v: Any) -> Any:
        last = while_loop(lambda c: cnp.sum(c * c) < 50.0, lambda c: tensor_add(c, swish(c)) + 0.5, v)
        return cnp.sum(last)

    def plainly(v: Any) -> Any:
        c = v
        while float(np.sum(np.asarray(_value(c)) ** 2)) < 50.0:
            c = c + swish.lower(c, beta=1.0) + 0.5  # type: ignore[misc]
        return cnp.sum(c)

    def _value(c: Any) -> Any:
        values.append(c)
        return steps[len(values) - 1] if c.recorder is not None else c.numpy()

    steps: list[Any] = []
    values: list[Any] = []
    c = x
    while float(np.sum(c.numpy() ** 2)) < 50.0:
        steps.append(c.numpy())
        c = c + swish.lower(c, beta=1.0) + 0.5  # type: ignore[misc]
    steps.append(c.numpy())
    np.testing.assert_allclose(grad(looped)(x).numpy(), grad(plainly)(x).numpy(), rtol=1e-9)
    np.testing.assert_allclose(jit(grad(looped), fullgraph=True)(x).numpy(), grad(looped)(x).numpy(), rtol=1e-9)
    kept = checkpoint(lambda v: cnp.sum(swish(v) * v))
    np.testing.assert_allclose(grad(kept)(x).numpy(), grad(lambda v: cnp.sum(swish(v) * v))(x).numpy())
    doubled = custom_vjp(lambda v, y, dy: 2.0 * dy * v)(lambda v: swish(v))
    np.testing.assert_allclose(grad(lambda v: cnp.sum(doubled(v)))(x).numpy(), 2.0 * x.numpy())


def test_results_of_floats_and_integers_together() -> None:
    @primitive("test.largest", inputs=("x",), outputs=("value", "place"))
    class largest:
        def infer_shape(x: Any) -> Any:
            return x[:-1], x[:-1]

        def infer_dtype(x: str) -> Any:
            return x, "int32"

        def kernel(x: Any) -> Any:
            return x.max(axis=-1), x.argmax(axis=-1).astype(np.int32)

        def lower(x: Any) -> Any:
            return cnp.max(x, axis=-1), cnp.astype(cnp.argmax(x, axis=-1), "int32")

    x = Array(spread(2, 4))
    value, place = largest(x)
    np.testing.assert_array_equal(cnp.take(x, place, axis=1).numpy().diagonal(), value.numpy())
    expected = np.zeros((2, 4))
    expected[[0, 1], place.numpy()] = 1.0
    np.testing.assert_array_equal(grad(lambda v: cnp.sum(largest(v)[0]))(x).numpy(), expected)
    np.testing.assert_array_equal(grad(lambda v: cnp.sum(v) + 0.0 * cnp.sum(largest(v)[0]))(x).numpy(), np.ones((2, 4)))
    both = vmap(lambda v: largest(v))(x)
    np.testing.assert_array_equal(both[1].numpy(), place.numpy())
    np.testing.assert_array_equal(jit(lambda v: largest(v), fullgraph=True)(x)[1].numpy(), place.numpy())


def test_inference_may_speak_numpy_and_a_primitive_may_have_no_operands() -> None:
    row = bare("test.numpy", infer_shape=lambda x: [np.int64(n) for n in x], infer_dtype=np.dtype, kernel=np.copy)
    assert row(V).type == V.type and all(type(n) is int for n in row(V).shape)
    assert bare("test.class", infer_dtype=lambda x: np.float32, kernel=np.copy)(V).numpy().tolist() == [1.0, 2.0, 3.0]
    pi = primitive("test.pi", inputs=(), outputs=("pi", "tau"))(lambda: (cnp.asarray(np.pi), cnp.asarray(2 * np.pi)))
    assert [round(float(x), 5) for x in pi()] == [3.14159, 6.28319]
    tripled = jit(lambda v: v * pi()[0], fullgraph=True)
    np.testing.assert_allclose(tripled(V).numpy(), V.numpy() * np.pi, rtol=1e-6)


def test_a_kernel_may_use_its_memory_again() -> None:
    buffer = np.zeros(3, np.float32)

    def kernel(x: Any) -> Any:
        np.multiply(x, 2, out=buffer)
        return buffer

    row = bare("test.buffer", kernel=kernel)
    first, second = row(V), row(V * 2.0)
    assert (first.numpy().tolist(), second.numpy().tolist()) == ([2.0, 4.0, 6.0], [4.0, 8.0, 12.0])


class Remembers:
    """A kernel that keeps what it was prepared with."""

    def init(self, inputs: Any, attributes: Any) -> None:
        self.told = repr(attributes["n"])

    def input_bytes(self) -> Sequence[int]:
        return [4]

    def output_bytes(self) -> Sequence[int]:
        return [4]

    def workspace_bytes(self) -> Sequence[int]:
        return []

    def launch(self, inputs: Sequence[NDArray], workspace: Sequence[NDArray], outputs: Sequence[NDArray]) -> None:
        outputs[0][...] = {"1": 1.0, "1.0": 2.0, "True": 3.0}[self.told]


def test_equal_attributes_of_different_kinds_are_different() -> None:
    row = primitive("test.kinds", inputs=("x",), attributes={"n": ...})(
        type("kinds", (), {"infer_shape": staticmethod(lambda x, *, n: x)})
    )
    with use_registry(Registry()):
        register_kernel(row, "float32", Remembers)
        x = np.float32(0.0)
        assert [float(row(x, n=n)) for n in (1, 1.0, True, 1)] == [1.0, 2.0, 3.0, 1.0]
    texts = {to_text(trace(lambda v, n=n: row(v, n=n), TensorSpec(())).graph, sources=False) for n in (1, 1.0, True)}
    assert len(texts) == 3


def test_threads_share_primitives_and_their_kernels() -> None:
    row = bare("test.shared", kernel=lambda x: x * np.float32(2), lower=lambda x: x * 2.0)
    compiled = jit(lambda v: cnp.sum(row(v)))

    def work(n: int) -> float:
        return float(compiled(V * float(n))) + float(cnp.sum(grad(lambda v: cnp.sum(row(v) ** 2.0))(V)))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(8))) == [12.0 * n + 48.0 for n in range(8)]


def test_a_primitive_is_one_thing_and_cannot_be_copied_into_another() -> None:
    assert swish == swish and swish != primitive("test.swish", inputs=("x",))(lambda x: x)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(bare("test.local", kernel=np.copy))
    graph = trace(swish, TensorSpec((3,))).graph
    again = copy.copy(graph)
    assert verify(again).nodes[0].attributes["primitive"] is swish


def test_two_primitives_of_one_name_in_one_graph_each_do_their_own() -> None:
    twice, thrice = (primitive("test.many", inputs=("x",))(lambda x, n=n: x * n) for n in (2.0, 3.0))
    graph = trace(lambda x: twice(x) + thrice(x), V).graph
    assert interpret(graph, {"0": V.numpy()})["output"].tolist() == [5.0, 10.0, 15.0]
    assert interpret(optimise(graph), {"0": V.numpy()})["output"].tolist() == [5.0, 10.0, 15.0]
    with use_registry(Registry()):
        register(twice)
        assert interpret(parse(to_text(graph)), {"0": V.numpy()})["output"].tolist() == [4.0, 8.0, 12.0]  # by name


def test_names_may_be_dotted_or_foreign_and_digests_tell_attributes_apart() -> None:
    with use_registry(Registry()):
        row = register(primitive("pakkage.größe", inputs=("x",), attributes={"n": 1})(lambda x, *, n: x * float(n)))
        graphs = [trace(lambda v, n=n: row(v, n=n), V).graph for n in (1, 2)]
        assert graph_digest(graphs[0]) != graph_digest(graphs[1])
        assert graph_digest(parse(to_text(graphs[1]))) == graph_digest(graphs[1])
        assert to_onnx(graphs[1], name="x")


def test_attributes_keep_their_values_through_text() -> None:
    with use_registry(Registry()):
        row = register(
            primitive("test.kept", inputs=("x",), attributes={"a": ...})(lambda x, *, a: x * float(len(repr(a))))
        )
        for value in (1, -2.5, True, 'text with " and \\ and ü', (1, (2.0, "x"), ()), float("inf")):
            graph = trace(lambda v, a=value: row(v, a=a), V).graph
            again = parse(to_text(graph))
            assert again.nodes[0].attributes["a"] == value
            assert type(again.nodes[0].attributes["a"]) is type(value)
        with pytest.raises(InputError, match="Attributes are numbers"):
            row(V, a={"k": 1})


UNARY = [
    swish,
    lambda v: swish(v, beta=0.5),
    lambda v: polar(v, v * 0.5)[0],
    lambda v: polar(v * 1.0, v)[1],
    lambda v: tensor_add(v, v),
    cnp.tanh,
    lambda v: v * 1.0,
    lambda v: grad(lambda z: cnp.sum(swish(z) * z))(v),
    lambda v: vmap(swish)(cnp.stack([v, v]))[1],
    lambda v: while_loop(lambda c: cnp.sum(c) < -1e9, lambda c: tensor_add(c, c), v),
]


@pytest.mark.capability("C13", "E22")
@pytest.mark.parametrize("name", [*PASSES, "all"])
@settings(max_examples=15)
@given(steps=st.lists(st.integers(0, len(UNARY) - 1), min_size=1, max_size=5), differentiated=st.booleans())
def test_passes_keep_the_meaning_of_graphs_with_it(name: str, steps: list[int], differentiated: bool) -> None:
    def body(v: Any) -> Any:
        for step in steps:
            v = UNARY[step](v)
        return cnp.sum(v)

    graph: Graph = trace(value_and_grad(body) if differentiated else body, TensorSpec((3,), "float64")).graph
    run = optimise if name == "all" else lambda g: fixpoint(g, PASSES[name])
    after = run(graph)
    assert verify(after) is after and run(after) is after
    feeds = {"0": spread(3)}
    for made, expected in zip(interpret(after, feeds).values(), interpret(graph, feeds).values(), strict=True):
        np.testing.assert_allclose(made, expected, rtol=1e-9, atol=1e-12)


def test_a_host_primitive_stops_an_export_wherever_it_hides() -> None:
    hidden = primitive("test.hidden", inputs=("x",))(lambda x: reversed_sum(x) * 2.0)
    graph = trace(lambda v: {"y": checkpoint(lambda z: hidden(z))(v)}, V).graph
    for act in (lambda: to_onnx(graph, name="x"), lambda: to_onnx(graph, name="x", target="cpu")):
        with pytest.raises(TraceError, match="'test.reversed_sum' has no lowering"):
            act()
    compiled = jit(lambda v: hidden(v))
    assert compiled(V).numpy().tolist() == [12.0, 10.0, 6.0] and compiled.fallbacks == ()
    assert len(compiled.host_calls) == 1 and "test.reversed_sum" in compiled.host_calls[0]


def test_a_tape_a_drawing_and_clipping_by_example_take_it_as_they_are() -> None:
    variable = Variable(V)
    with tape():
        loss = cnp.sum(tensor_add(swish(variable), reversed_sum(variable)))
    backward(loss)
    expected = grad(lambda v: cnp.sum(tensor_add(swish(v), reversed_sum(v))))(V)
    assert variable.grad is not None
    np.testing.assert_allclose(variable.grad.numpy(), expected.numpy(), rtol=1e-6)
    graph = trace(lambda v: reversed_sum(swish(v)), V).graph
    assert "test.swish" in to_dot(graph) and "test.reversed_sum" in to_dot(graph)
    params, x = {"w": spread(4, 3), "v": spread(3)}, spread(5, 4, seed=3)

    def losses(activation: Any) -> Any:
        return clipped_grad(lambda p, rows: cnp.sum(activation(rows @ p["w"]) * p["v"], axis=1), 0.5)(params, x)

    own, plain = losses(swish).gradient, losses(lambda z: z / (1.0 + cnp.exp(-z))).gradient
    for name in params:
        np.testing.assert_allclose(own[name].numpy(), plain[name].numpy(), rtol=1e-9, atol=1e-12)
