"""Work on zeros goes, formulas get shorter, and the estimates of cost say so."""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array, bind
from coterie.compute.autodiff import grad
from coterie.compute.interpret import interpret
from coterie.compute.ir import Graph
from coterie.compute.passes import optimise
from coterie.compute.passes.algebra import simplify
from coterie.compute.passes.cost import bytes_moved, flops
from coterie.compute.passes.formulas import simplify_formulas
from coterie.compute.passes.zeros import eliminate_zeros
from coterie.compute.trace import GraphInputs, TensorSpec, trace, trace_named
from coterie.compute.verify import verify
from tests.compute.core.test_passes import feeds, graphs

PASSES = {"zeros": eliminate_zeros, "formulas": simplify_formulas}
X, Y = TensorSpec((3, 4), "float64"), TensorSpec((3, 4), "float64")


def names(graph: Graph) -> list[str]:
    return [node.primitive for node in graph.nodes if node.primitive != "constant"]


def numbers(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        name: rng.normal(size=value.type.shape)
        if value.type.is_float
        else rng.integers(-2, 3, value.type.shape).astype(value.type.dtype)
        for name, value in graph.inputs.items()
    }


def same(before: Graph, after: Graph) -> None:
    given = numbers(before)
    expected, found = interpret(before, given), interpret(after, given)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-12, atol=1e-12)


@pytest.mark.capability("C9", "C11")
@pytest.mark.parametrize("name", PASSES)
@settings(max_examples=30)
@given(graph=graphs())
def test_the_meaning_stays_and_a_second_run_changes_nothing(name: str, graph: Graph) -> None:
    for before in (graph, optimise(graph)):
        after = PASSES[name](before)
        assert verify(after) is after
        assert PASSES[name](after) is after
        assert list(after.inputs) == list(before.inputs)
        if name == "zeros":
            assert flops(after) <= flops(before)
        expected, found = interpret(before, feeds()), interpret(after, feeds())
        for output, value in expected.items():
            np.testing.assert_allclose(found[output], value, rtol=1e-9, atol=1e-9)


def zero(*shape: int) -> Array:
    return cnp.zeros(shape, dtype="float64")


ZEROS: dict[str, tuple[Callable[[Array, Array], Array], list[str]]] = {
    "a product with zeros": (lambda x, y: x * zero(3, 4), ["broadcast_to"]),
    "a matrix product with zeros": (lambda x, y: y + x @ zero(4, 4), []),
    "a sum with zeros": (lambda x, y: cnp.exp(x + zero(4)), ["exp"]),
    "a difference from zeros": (lambda x, y: zero(3, 4) - x, ["negative"]),
    "a function of zeros": (lambda x, y: y + ops.relu(cnp.sum(zero(3, 4).T, axis=0, keepdims=True)).T, []),
    "the greatest of x and -inf": (lambda x, y: cnp.maximum(x, cnp.full((4,), -np.inf, dtype="float64")), []),
    "the least of x and inf": (lambda x, y: cnp.minimum(x, np.inf), []),
    "a padding cut off": (lambda x, y: cnp.pad(x, ((1, 2), (0, 3)))[1:4, :4], []),
    "a padding cut in part": (lambda x, y: cnp.pad(x, ((1, 2), (0, 3)))[2:6, 1:5], ["slice", "pad"]),
    "nothing but padding": (lambda x, y: cnp.pad(x, ((0, 2), (0, 0)))[3:], ["broadcast_to"]),
    "a padding of a padding": (lambda x, y: cnp.pad(cnp.pad(x, ((1, 0), (0, 0))), ((0, 1), (2, 0))), ["pad"]),
    "the sum of a padding": (lambda x, y: cnp.sum(cnp.pad(x, ((2, 1), (0, 0))), axis=0), ["sum"]),
    "a part of a concatenation": (lambda x, y: cnp.concat([x, y], axis=1)[:, 4:7], ["slice"]),
    "paddings beside each other": (
        lambda x, y: cnp.pad(x, ((0, 0), (1, 5))) + cnp.pad(y, ((0, 0), (5, 1))),
        ["concat", "pad"],
    ),
    "a product with a padding": (
        lambda x, y: cnp.pad(x, ((0, 3), (0, 0))) * cnp.concat([y, y], axis=0),
        ["multiply", "pad"],
    ),
}


@pytest.mark.capability("C9")
@pytest.mark.parametrize("name", ZEROS)
def test_zeros_are_not_computed_with(name: str) -> None:
    fn, expected = ZEROS[name]
    before = trace(fn, X, Y).graph
    after = eliminate_zeros(before)
    assert [found for found in names(after) if found != "transpose"] == expected
    assert flops(after) <= flops(before)
    same(before, after)


@pytest.mark.capability("C9")
def test_the_gradient_of_parts_is_their_concatenation() -> None:
    def fn(x: Array) -> Array:
        q, k, v = x[:, :4], x[:, 4:8], x[:, 8:]
        return cnp.sum(cnp.tanh(q) * cnp.exp(k) * v)

    before = optimise(trace(grad(fn), TensorSpec((5, 12), "float64")).graph)
    after = optimise(eliminate_zeros(before))
    assert Counter(names(after))["pad"] == 0 and Counter(names(after))["concat"] >= 1
    assert flops(after) < flops(before) and bytes_moved(after) < bytes_moved(before)
    same(before, after)


@pytest.mark.capability("C9")
def test_the_gradient_of_a_look_up_touches_only_its_rows() -> None:
    def step(i: GraphInputs) -> dict[str, Array]:
        def loss(table: Array) -> Array:
            return cnp.sum(cnp.square(bind("gather", table, i["ids"], axis=0)))

        return {"next/table": i["table"] - 0.1 * grad(loss)(i["table"])}

    specs = {"table": TensorSpec((100, 8), "float64"), "ids": TensorSpec((6,), "int32")}
    before = optimise(trace_named(step, specs))
    after = eliminate_zeros(before)
    assert "scatter_add" in names(after) and "gemm" not in names(after)
    assert flops(after) < flops(before) / 20
    same(before, after)  # some of the indices count from the end


FORMULAS: dict[str, tuple[Callable[[Array, Array], Array], list[str]]] = {
    "log exp": (lambda x, y: cnp.log(cnp.exp(x)), []),
    "log sigmoid": (lambda x, y: cnp.log(ops.sigmoid(x)), ["negative", "softplus", "negative"]),
    "log sqrt": (lambda x, y: cnp.log(cnp.sqrt(x * x + 1.0)), ["multiply", "add", "log", "multiply"]),
    "sqrt of a square": (lambda x, y: cnp.sqrt(x * x), ["negative", "maximum"]),
    "exp exp": (lambda x, y: cnp.exp(x) * cnp.exp(y), ["add", "exp"]),
    "minus minus": (lambda x, y: (-x) * (-y), ["multiply"]),
    "x - x": (lambda x, y: x - x, ["broadcast_to"]),
    "a quotient by a number": (lambda x, y: x / 3.0, ["multiply"]),
    "a common factor": (lambda x, y: x * y + x * x, ["add", "multiply"]),
    "a common factor of a difference": (lambda x, y: x * y - y * 2.0, ["subtract", "multiply"]),
}


@pytest.mark.capability("C11")
@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_are_shortened(name: str) -> None:
    fn, expected = FORMULAS[name]
    before = trace(fn, X, Y).graph
    after = simplify_formulas(before)
    assert names(after) == expected
    same(before, after)


EXACT: dict[str, Callable[[Array, Array], Array]] = {
    "x * 1": lambda x, y: cnp.exp(x * 1.0),
    "1 * x": lambda x, y: cnp.exp(1.0 * x),
    "x / 1": lambda x, y: cnp.exp(x / 1.0),
    "x - 0": lambda x, y: cnp.exp(x - 0.0),
    "--x": lambda x, y: cnp.exp(cnp.negative(-x)),
    "x.T.T": lambda x, y: cnp.exp(x.T.T),
    "a reshape back": lambda x, y: cnp.exp(cnp.reshape(cnp.reshape(x, (12,)), (3, 4))),
}


@pytest.mark.capability("C11")
@pytest.mark.parametrize("name", EXACT)
def test_exact_identities_are_part_of_every_compilation(name: str) -> None:
    graph = optimise(trace(EXACT[name], X, Y).graph)
    assert names(graph) == ["exp"]
    assert simplify(graph) is graph
    given = numbers(graph)
    np.testing.assert_array_equal(interpret(graph, given)["output"], np.exp(given["0"]))


ROUNDED: dict[str, Callable[[Array], Array]] = {
    "0 · x": lambda x: x * 0.0,
    "x - x": lambda x: x - x,
    "log exp x": lambda x: cnp.log(cnp.exp(x)),
}


@pytest.mark.capability("C9", "C11")
@pytest.mark.parametrize("name", ROUNDED)
def test_no_compilation_applies_what_holds_for_finite_numbers_alone(name: str) -> None:
    before = trace(ROUNDED[name], TensorSpec((2,), "float64")).graph
    given = {"0": np.asarray([-np.inf, 1000.0])}
    expected = interpret(before, given)["output"]
    np.testing.assert_array_equal(interpret(optimise(before), given)["output"], expected)
    analysed = interpret(simplify_formulas(eliminate_zeros(before)), given)["output"]
    assert not np.array_equal(analysed, expected, equal_nan=True)


LAYOUTS: dict[str, Callable[[Array, Array], Array]] = {
    "one function": lambda x, y: ops.relu(x.T).T,
    "a chain": lambda x, y: (cnp.exp(ops.relu(x.T).T.T) * 2.0).T,
    "two tensors": lambda x, y: (x.T * y.T + 1.0).T,
}


@pytest.mark.capability("C11", "E12")
@pytest.mark.parametrize("name", LAYOUTS)
def test_transpositions_there_and_back_cancel_around_elementwise_functions(name: str) -> None:
    before = trace(LAYOUTS[name], X, Y).graph
    after = optimise(before)
    assert "transpose" not in names(after)
    given = numbers(before)
    np.testing.assert_array_equal(interpret(after, given)["output"], interpret(before, given)["output"])


@pytest.mark.capability("C11")
def test_adding_zero_goes_with_the_zeros() -> None:
    graph = trace(lambda x, y: cnp.exp(x + 0.0), X, Y).graph
    assert names(eliminate_zeros(graph)) == ["exp"]


def test_zero_over_what_may_be_zero_is_computed() -> None:
    graph = trace(lambda x, y: (cnp.zeros(x.shape) / x, cnp.zeros(x.shape) / 2.0), X, Y).graph
    after = eliminate_zeros(graph)
    assert names(after).count("divide") == 1
    given = {name: np.zeros(value.type.shape, value.type.dtype) for name, value in graph.inputs.items()}
    assert np.isnan(interpret(after, given)["0"]).all() and not interpret(after, given)["1"].any()


def test_operations_and_bytes_are_counted() -> None:
    def cost(fn: Callable[..., Array], *specs: TensorSpec) -> tuple[int, int]:
        graph = trace(fn, *specs).graph
        return flops(graph), bytes_moved(graph)

    a, b = TensorSpec((2, 3)), TensorSpec((3, 5))
    assert cost(lambda x, y: x @ y, a, b) == (2 * 2 * 3 * 5, 4 * (6 + 15 + 10))
    assert cost(lambda x: x * x, a) == (6, 4 * 12)
    assert cost(lambda x: cnp.reshape(x, (6,)), a) == (0, 0)
    assert cost(lambda x: cnp.sum(x), a) == (6, 4 * 7)
    image, kernel = TensorSpec((2, 4, 6, 5)), TensorSpec((8, 2, 3, 3))
    window = lambda x, w: ops.conv2d(x, w, groups=2)  # noqa: E731
    assert cost(window, image, kernel)[0] == 2 * (2 * 8 * 4 * 3) * (2 * 3 * 3)
    assert cost(lambda x: ops.max_pool2d(x, 2), image)[0] == 2 * 4 * 3 * 2 * 4
