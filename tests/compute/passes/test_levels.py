"""From Python to a session, level by level; control flow inside the graph and outside; both ways of capture."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx
import pytest

from coterie.compute import numpy as cnp
from coterie.compute import ops, tree
from coterie.compute.array import Array
from coterie.compute.autodiff import grad
from coterie.compute.control.functions import scan, while_loop
from coterie.compute.interactive.jit import jit
from coterie.compute.interpret import interpret
from coterie.compute.ir import Graph, NDArray
from coterie.compute.onnx.checker import check_graph
from coterie.compute.onnx.operators import OPERATORS
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.runtime.executable import Executable
from coterie.compute.table import PLAIN
from coterie.compute.text import parse, to_text
from coterie.compute.trace import TensorSpec, trace
from coterie.compute.verify import verify
from tests.compute.core.test_steps import MODELS, sgd, step_graph


@pytest.mark.capability("A9")
def test_each_level_can_be_shown_and_is_verified() -> None:
    """IR as text, then operators in a file, then a session; each is checked and means the same."""
    raw = step_graph(MODELS["mlp"], sgd)
    graph = optimise(raw)
    rng = np.random.default_rng(0)
    feeds: dict[str, NDArray] = {}
    for name, value in raw.inputs.items():
        numbers = rng.integers(0, 10, value.type.shape) if not value.type.is_float else rng.random(value.type.shape)
        feeds[name] = numbers.astype(value.type.dtype)
    meaning = interpret(raw, feeds)
    for level in (raw, graph, parse(to_text(graph))):
        assert verify(level) is level
        assert all(node.primitive in PLAIN for node in level.nodes)
        for name, value in interpret(level, feeds).items():
            np.testing.assert_allclose(value, meaning[name], rtol=1e-5, atol=1e-6)
    assert to_text(graph).count(" = ") == len(graph.nodes)
    data = to_onnx(graph, name="step")
    onnx.checker.check_model(onnx.load_from_string(data), full_check=True)  # pyright: ignore[reportUnknownMemberType]
    check_graph(data)
    operators = {str(node.op_type) for node in onnx.load_from_string(data).graph.node}
    assert operators <= set(OPERATORS)
    session = Executable(data)
    assert [tensor.name for tensor in session.inputs] == list(graph.inputs)
    for name, value in session.run(feeds).items():
        np.testing.assert_allclose(value, np.reshape(meaning[name], value.shape), rtol=1e-4, atol=1e-5)


def layered(x: Array, w: Array) -> Array:
    for _ in range(3):
        x = ops.softmax(cnp.tanh(x @ w) * 1.0 + cnp.zeros((4,)))
    return cnp.sum(cnp.square(x))


@pytest.mark.capability("C3")
@pytest.mark.parametrize("position", [0, 1, (0, 1)])
def test_the_backward_graph_is_a_graph_that_passes_make_smaller(position: int | tuple[int, ...]) -> None:
    specs = (TensorSpec((5, 4), "float64"), TensorSpec((4, 4), "float64"))
    raw = trace(grad(layered, position), *specs).graph
    after = optimise(raw)
    assert verify(after) is after
    assert len(after.nodes) < 0.8 * len(raw.nodes)
    rng = np.random.default_rng(0)
    feeds = {name: rng.normal(size=value.type.shape) for name, value in raw.inputs.items()}
    for name, value in interpret(raw, feeds).items():
        np.testing.assert_allclose(interpret(after, feeds)[name], value, rtol=1e-9, atol=1e-12)


def rolled(h: Array, xs: Array) -> Array:
    return scan(lambda c, x: (cnp.tanh(c * 0.5 + x), None), h, xs)[0]


def rolled_sum(h: Array, xs: Array) -> Array:
    return cnp.sum(rolled(h, xs))


@pytest.mark.capability("C5")
@pytest.mark.parametrize("fn", [rolled, grad(rolled_sum, (0, 1))], ids=["value", "gradient"])
def test_unrolling_is_an_option_that_keeps_the_values_and_grows_with_the_steps(fn: Callable[..., Array]) -> None:
    def operators(unroll: bool, steps: int) -> Counter[str]:
        data = jit(fn, unroll=unroll).export(TensorSpec((3,)), TensorSpec((steps, 3)), target="cpu")
        return Counter(str(node.op_type) for node in onnx.load_from_string(data).graph.node)

    sizes = [operators(True, steps).total() for steps in (4, 8, 12)]
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0] > 0
    assert "Scan" not in operators(True, 4) and operators(False, 4)["Scan"] >= 1
    assert operators(False, 4).total() == operators(False, 12).total()
    rng = np.random.default_rng(0)
    h, xs = rng.normal(size=3).astype(np.float32), rng.normal(size=(6, 3)).astype(np.float32)
    one, two = (tree.flatten(jit(fn, unroll=unroll)(h, xs))[0] for unroll in (False, True))
    for a, b in zip(one, two, strict=True):
        np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-5, atol=1e-6)


def test_a_loop_that_data_ends_cannot_be_unrolled() -> None:
    def endless(x: Array) -> Array:
        return while_loop(lambda c: cnp.sum(c) < 10.0, lambda c: c * 2.0, x)

    compiled = jit(endless, unroll=True)
    np.testing.assert_array_equal(compiled(np.ones(2, np.float32)).numpy(), [8, 8])
    assert "depends on data" in compiled.fallbacks[0]


@pytest.mark.capability("D5")
def test_a_loop_in_the_graph_and_one_around_it_agree_and_the_first_crosses_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crossed: list[int] = []
    plain = Executable.run

    def counted(self: Executable, feeds: dict[str, NDArray]) -> dict[str, NDArray]:
        results = plain(self, feeds)
        crossed.append(len(feeds) + len(results))
        return results

    monkeypatch.setattr(Executable, "run", counted)

    def step(x: Array) -> Array:
        return cnp.where(cnp.sum(x) > 4.0, x * 0.5, x * 3.0 + 0.1)

    @jit
    def inside(x: Array) -> Array:
        for _ in range(7):
            x = step(x)
        return x

    @jit
    def looped(x: Array, n: Array) -> Array:
        return while_loop(lambda c: c[1] < n, lambda c: (step(c[0]), c[1] + 1), (x, cnp.asarray(0)))[0]

    x = np.asarray([0.3, 0.7], np.float32)
    one_step = jit(step)
    outside = Array(x)
    for _ in range(7):
        outside = one_step(outside)
    around, crossed[:] = list(crossed), []
    np.testing.assert_allclose(inside(x).numpy(), outside.numpy(), rtol=1e-6)
    np.testing.assert_allclose(looped(x, np.asarray(7)).numpy(), outside.numpy(), rtol=1e-6)
    assert around == [2] * 7  # one array in and one out for every step
    assert crossed == [2, 3]


@pytest.mark.capability("D6")
def test_both_ways_of_capture_make_the_same_graph_and_it_comes_back_from_text() -> None:
    def straight(x: Array) -> Array:
        for factor in (1.0, 2.0):
            x = cnp.tanh(x) * factor
        return x

    def operators(fn: Callable[..., Array], mode: str) -> list[str]:
        data = jit(fn, capture_mode="ast" if mode == "ast" else "trace").export(TensorSpec((3,)))
        return [str(node.op_type) for node in onnx.load_from_string(data).graph.node]

    assert operators(straight, "ast") == operators(straight, "trace")
    x = np.asarray([0.1, -0.4, 2.0], np.float32)
    dynamic = straight(Array(x)).numpy()  # eager: line by line
    graph: Graph = optimise(trace(straight, x).graph)
    again = parse(to_text(graph))
    assert to_text(again) == to_text(graph)
    np.testing.assert_array_equal(interpret(again, {"0": x})["output"], dynamic)

    @jit
    def decided(x: Array) -> Array:
        if cnp.sum(x) > 0.0:
            x = x * 2.0
        else:
            x = -x
        return x

    for sign in (1, -1):  # static, then the same function dynamic again
        np.testing.assert_array_equal(decided(sign * x).numpy(), (2 if sign > 0 else -1) * sign * x)
