"""Passes keep the meaning of random graphs, are idempotent and leave graphs that verify; the text form of the same
graphs round-trips.
"""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array, bind
from coterie.compute.autodiff import grad, value_and_grad
from coterie.compute.interpret import interpret
from coterie.compute.ir import Graph, NDArray
from coterie.compute.passes import PASSES, fixpoint, optimise
from coterie.compute.passes.tune import before_gradients
from coterie.compute.text import parse, to_text
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.compute.verify import verify
from coterie.errors import InputError

SPECS = {
    "x": TensorSpec((3, 4), "float64"),
    "w": TensorSpec((4, 4), "float64"),
    "b": TensorSpec((4,), "float64"),
    "s": TensorSpec((1,), "float64"),
}
UNARY = [
    cnp.negative,
    cnp.tanh,
    ops.relu,
    ops.sigmoid,
    ops.softmax,
    cnp.matrix_transpose,
    ops.stop_gradient,
    lambda v: v * 1.0,
    lambda v: v + 0.0,
    lambda v: v / 1.0,
    lambda v: v - 0.0,
    lambda v: 0.5 * v,
    lambda v: cnp.reshape(cnp.reshape(v, (-1,)), v.shape),
    lambda v: cnp.permute_dims(cnp.expand_dims(v, 0), (1, 0, 2))[:, 0],
    lambda v: cnp.broadcast_to(cnp.sum(v, axis=0, keepdims=True), v.shape),
    lambda v: cnp.sum(cnp.expand_dims(v, 1), axis=1),
    lambda v: v[:, 1:3],
    lambda v: cnp.concat([v, v], axis=1),
    lambda v: cnp.max(v, axis=1, keepdims=True) * v,
    lambda v: cnp.ones((v.shape[0], v.shape[1]), dtype="float64") * v,
    lambda v: v * cnp.arange(v.shape[1], dtype="float64") + cnp.zeros(v.shape, dtype="float64"),
]
BINARY = [cnp.add, cnp.subtract, cnp.multiply, cnp.maximum, cnp.minimum, lambda a, b: a / (1.0 + b * b)]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A graph of random operations, half of the time with the gradient of its sum and an update with it."""
    steps = draw(
        st.lists(
            st.tuples(st.integers(0, 2), st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000)),
            min_size=1,
            max_size=10,
        )
    )
    with_update = draw(st.booleans())

    def body(values: dict[str, Array]) -> list[Array]:
        made = list(values.values())
        for kind, which, left, right in steps:
            a, b = made[left % len(made)], made[right % len(made)]
            if kind == 0:
                matrix = a if a.ndim == 2 else cnp.reshape(a, (1, -1))
                if matrix.size <= 256 and (matrix.shape[1] > 2):
                    made.append(UNARY[which % len(UNARY)](matrix))
            elif kind == 1:
                try:
                    made.append(BINARY[which % len(BINARY)](a, b))
                except InputError:
                    continue
            elif a.ndim == 2 and b.ndim == 2:
                for right_operand in (b, b.T):
                    if a.shape[1] == right_operand.shape[0]:
                        made.append(a @ right_operand)
        return made

    def step(inputs: GraphInputs) -> dict[str, Array]:
        names = list(SPECS)

        def loss(*arrays: Array) -> Array:
            return cnp.sum(cnp.tanh(body(dict(zip(names, arrays, strict=True)))[-1]))

        made = body(dict(inputs))
        outputs = {"last": made[-1], "middle": made[len(made) // 2]}
        if with_update:
            for name, g in zip(names, grad(loss, (0, 1, 2, 3))(*inputs.values()), strict=True):
                outputs[f"next/{name}"] = inputs[name] - inputs["s"] * g
        return outputs

    return trace_named(step, SPECS)


def feeds(seed: int = 0) -> dict[str, NDArray]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=spec.shape) for name, spec in SPECS.items()}


@pytest.mark.capability("C13", "E22")
@pytest.mark.parametrize("name", [*PASSES, "all"])
@settings(max_examples=60)
@given(graph=graphs())
def test_a_pass_keeps_the_meaning_and_is_idempotent(name: str, graph: Graph) -> None:
    run = optimise if name == "all" else lambda g: fixpoint(g, PASSES[name])
    after = run(graph)
    assert verify(after) is after
    assert list(after.inputs) == list(graph.inputs)
    assert run(after) is after
    before, now = interpret(graph, feeds()), interpret(after, feeds())
    assert list(before) == list(now)
    for output, value in before.items():
        np.testing.assert_allclose(now[output], value, rtol=1e-9, atol=1e-9)


@pytest.mark.capability("A4")
@settings(max_examples=60)
@given(graph=graphs())
def test_print_parse_print_gives_the_same_text_and_meaning(graph: Graph) -> None:
    text = to_text(graph)
    again = parse(text)
    assert to_text(again) == text
    for output, value in interpret(graph, feeds()).items():
        np.testing.assert_array_equal(interpret(again, feeds())[output], value)


def primitives(graph: Graph) -> list[str]:
    return [node.primitive for node in graph.nodes]


def optimised(fn: Any, **specs: TensorSpec) -> Graph:
    return optimise(trace_named(fn, specs))


F = TensorSpec


def test_dead_code_goes_and_inputs_stay() -> None:
    def fn(i: GraphInputs) -> dict[str, Array]:
        cnp.exp(i["x"])
        return {"y": cnp.tanh(i["x"])}

    graph = optimised(fn, x=F((2,)), unused=F((3,)))
    assert primitives(graph) == ["tanh"]
    assert list(graph.inputs) == ["x", "unused"]


def test_constants_are_folded_and_broadcasts_are_not_written_out() -> None:
    graph = optimised(lambda i: {"y": i["x"] * (cnp.full((100, 100), 2.0) * 3.0)}, x=F((100, 100)))
    assert primitives(graph) == ["constant", "multiply"]
    assert graph.nodes[0].output.type.size == 1


def test_equal_expressions_are_computed_once() -> None:
    graph = optimised(lambda i: {"y": cnp.exp(i["x"]) * cnp.exp(i["x"])}, x=F((2,)))
    assert primitives(graph) == ["exp", "multiply"]


def test_expressions_that_differ_in_the_sign_of_zero_are_not_equal() -> None:
    def fn(i: GraphInputs) -> dict[str, Array]:
        return {name: 1.0 / cnp.pad(i["x"], [(1, 0)], value=zero) for name, zero in (("y", 0.0), ("z", -0.0))}

    found = interpret(optimised(fn, x=F((1,))), {"x": np.ones(1, np.float32)})
    assert [found[name][0] for name in "yz"] == [np.inf, -np.inf]


@pytest.mark.parametrize(("x", "factor"), [(0.0, 1e30), (1e30, 1e-30), (1.0, 1e-20)])
def test_numbers_are_not_multiplied_where_their_product_leaves_the_range(x: float, factor: float) -> None:
    graph = trace_named(lambda i: {"y": i["x"] * factor * factor}, {"x": F((2,))})
    given = {"x": np.full(2, x, np.float32)}
    np.testing.assert_array_equal(interpret(optimise(graph), given)["y"], interpret(graph, given)["y"])


def test_long_chains_between_transpositions_do_not_exhaust_the_stack() -> None:
    def fn(i: GraphInputs) -> dict[str, Array]:
        short, long = i["x"].T, i["x"].T
        for step in range(2000):
            short, long = ops.relu(short + 1.0) if step < 20 else short, cnp.tanh(long)
        return {"short": short.T, "long": long.T}

    assert primitives(optimised(fn, x=F((2, 3)))).count("transpose") == 2  # those of the long one


def test_adding_zero_stays_because_it_normalises_negative_zero() -> None:
    graph = optimised(lambda i: {"y": i["x"] + 0.0}, x=F((2,)))
    assert primitives(graph) == ["constant", "add"]
    out = interpret(graph, {"x": np.asarray([-0.0, 1.0], np.float32)})["y"]
    assert not np.signbit(out[0])


def test_a_dense_layer_and_its_update_are_one_product_each() -> None:
    def step(i: GraphInputs) -> dict[str, Array]:
        def loss(w: Array, b: Array) -> Array:
            return cnp.sum(cnp.square(i["x"] @ w + b))

        w, b = i["w"], i["b"]
        gw, gb = grad(loss, (0, 1))(w, b)
        return {"next/w": w - i["lr"] * gw, "next/b": b - i["lr"] * gb}

    graph = optimised(step, x=F((8, 64)), w=F((64, 32)), b=F((32,)), lr=F((1,)))
    products = [node for node in graph.nodes if node.primitive in ("matmul", "gemm", "transpose")]
    assert [(node.primitive, len(node.inputs)) for node in products] == [("gemm", 3), ("gemm", 3)]
    assert products[1].attributes["transpose_a"]
    # Nothing else has the size of the weights: no gradient tensor and no pass over it.
    assert sum(node.output.type.size == 64 * 32 for node in graph.nodes) == 1


def test_a_transposed_weight_costs_no_transposition() -> None:
    def step(i: GraphInputs) -> dict[str, Array]:
        gradient = grad(lambda w: cnp.sum(cnp.square(i["x"] @ w.T)))(i["w"])
        return {"next/w": i["w"] - i["lr"] * gradient}

    graph = optimised(step, x=F((8, 64)), w=F((32, 64)), lr=F((1,)))
    found = [node for node in graph.nodes if node.primitive in ("matmul", "gemm", "transpose")]
    assert [(node.primitive, len(node.inputs)) for node in found] == [("gemm", 2), ("gemm", 3)]


def test_a_bias_enters_its_convolution() -> None:
    def fn(i: GraphInputs) -> dict[str, Array]:
        return {"y": ops.conv2d(i["x"], i["w"]) + cnp.reshape(i["b"], (1, 3, 1, 1))}

    graph = optimised(fn, x=F((1, 2, 4, 4)), w=F((3, 2, 2, 2)), b=F((3,)))
    assert primitives(graph) == ["conv"]


def tuned_grad(fn: Any, *arguments: Any) -> Any:
    """The gradient as a step for CPUs takes it."""
    return value_and_grad(fn, before=before_gradients("portable"))(*arguments)[1]


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, 2, 0), (3, 2, 1)])
def test_pooling_goes_before_relu_with_the_same_values_and_gradients(kernel: int, stride: int, padding: int) -> None:
    """Also where all of a window is negative, and where several elements are the greatest."""

    def pooled(x: Array, rectified: Array) -> Array:
        return ops.max_pool2d(rectified, kernel, stride, padding)

    def late(x: Array) -> Array:
        return cnp.sum(pooled(x, ops.relu(x)) * weight)

    def early(x: Array) -> Array:
        rectified = ops.relu(x)  # read twice, so it stays where it is
        return cnp.sum(pooled(x, rectified) * weight) + 0.0 * cnp.sum(rectified)

    x = np.random.default_rng(0).integers(-4, 4, (3, 2, 6, 6)).astype(np.float64)
    weight = Array(np.random.default_rng(1).normal(size=pooled(Array(x), Array(x)).shape))
    np.testing.assert_array_equal(late(Array(x)).numpy(), early(Array(x)).numpy())
    for gradient in (tuned_grad(late, Array(x)), grad(late)(Array(x))):
        np.testing.assert_array_equal(gradient.numpy(), grad(early)(Array(x)).numpy())

    def step(i: GraphInputs) -> dict[str, Array]:
        return {"value": late(i["x"]), "gradient": tuned_grad(late, i["x"])}

    graph = optimised(step, x=TensorSpec(x.shape, "float64"))
    np.testing.assert_array_equal(interpret(graph, {"x": x})["gradient"], grad(late)(Array(x)).numpy())
    (relu,) = [node for node in graph.nodes if node.primitive == "relu"]
    assert relu.output.type.shape == weight.shape


def test_pooling_goes_before_the_bias_of_a_convolution_with_the_same_gradients() -> None:
    """The bias, and the gradient of the bias, pass over the pooled image only."""

    def value(p: dict[str, Array], twice: float | None) -> Array:
        image = ops.conv2d(x, p["w"], p["b"])
        pooled = cnp.sum(ops.max_pool2d(ops.relu(image), 2) * weight)
        return pooled if twice is None else pooled + twice * cnp.sum(image)  # read twice, so it stays

    rng = np.random.default_rng(0)
    x, weight = Array(rng.normal(size=(3, 2, 7, 7))), Array(rng.normal(size=(3, 4, 3, 3)))
    params = {"w": Array(rng.normal(size=(4, 2, 2, 2))), "b": Array(rng.normal(size=4))}
    early, late = grad(lambda p: value(p, 0.0))(params), tuned_grad(lambda p: value(p, None), params)
    for name in params:
        np.testing.assert_allclose(late[name].numpy(), early[name].numpy(), rtol=1e-12)
        np.testing.assert_allclose(
            grad(lambda p: value(p, None))(params)[name].numpy(), early[name].numpy(), rtol=1e-12
        )

    def step(i: GraphInputs) -> dict[str, Array]:
        return dict(tuned_grad(lambda p: value(p, None), {"w": i["w"], "b": i["b"]}))

    graph = optimised(step, w=TensorSpec((4, 2, 2, 2), "float64"), b=TensorSpec((4,), "float64"))
    (conv,) = [node for node in graph.nodes if node.primitive == "conv"]
    assert len(conv.inputs) == 2
    assert [node.inputs[0].type.shape for node in graph.nodes if node.primitive == "sum"] == [weight.shape]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "Line 1"),
        ('input "x" %0: float32[2]\ninput "x" %1: float32[2]', "Line 2 names 'x'"),
        ('input "x" %0: float32[2]\n%1: float32[2] = exp(%7) {}', "Line 2 uses the value %7"),
        ('input "x" %0: float32[2]\n%0: float32[2] = exp(%0) {}', "made twice"),
        ('input "x" %0: float32[2]\n%1: float32[2] = exp(%0) {"a": }', "Line 2 is malformed"),
        ('input "x" %0: float32[2]\n%1: float32[3] = exp(%0) {}', "wrongly typed"),
    ],
)
def test_bad_text_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(text)


@pytest.mark.parametrize(
    "value",
    [np.asarray([np.nan, np.inf, -0.0], np.float32), np.arange(40, dtype=np.int32), np.asarray(True), np.zeros((0, 2))],
)
def test_every_constant_comes_back_bit_for_bit(value: NDArray) -> None:
    graph = trace_named(lambda i: {"y": bind("constant", value=value)}, {})
    again = interpret(parse(to_text(graph)), {})["y"]
    assert again.tobytes() == np.asarray(value).tobytes()
    assert (again.dtype, again.shape) == (value.dtype, value.shape)


def test_names_with_quotes_and_backslashes_round_trip() -> None:
    graph = trace_named(lambda i: {'"\\"': i['a"b\\']}, {'a"b\\': F((2,))})
    assert to_text(parse(to_text(graph))) == to_text(graph)
