"""Values that are computed again: the same results, fewer bytes at the fullest moment."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.autodiff import value_and_grad
from coterie.compute.control.derived import checkpoint
from coterie.compute.interpret import interpret
from coterie.compute.ir import Graph, NDArray
from coterie.compute.memory.report import memory_report
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.passes.recompute import recompute
from coterie.compute.runtime.executable import Executable
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.compute.verify import verify
from tests.compute.core.test_passes import feeds, graphs

DEPTH, ROWS, WIDTH = 8, 64, 8
SPECS = {f"w{i}": TensorSpec((WIDTH, WIDTH)) for i in range(DEPTH)} | {"x": TensorSpec((ROWS, WIDTH))}


def mish(x: Array) -> Array:
    """x tanh(softplus(x)), written out: four values for each element that the backward pass reads."""
    return x * ops.tanh(ops.softplus(x))


def deep(activation: Callable[[Array], Array]) -> Graph:
    """A step of a deep and narrow MLP: many activations, few weights."""

    def step(i: GraphInputs) -> dict[str, Array]:
        def loss(p: dict[str, Array]) -> Array:
            h = i["x"]
            for index in range(DEPTH):
                h = activation(h @ p[f"w{index}"])
            return cnp.mean(cnp.square(h))

        names = [name for name in SPECS if name != "x"]
        value, gradients = value_and_grad(loss)({name: i[name] for name in names})
        return {"loss": value} | {f"next/{name}": i[name] - 0.1 * gradients[name] for name in names}

    return optimise(trace_named(step, SPECS))


def numbers(graph: Graph) -> dict[str, NDArray]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=v.type.shape).astype(np.float32) / 3 for name, v in graph.inputs.items()}


def peak(graph: Graph) -> int:
    return memory_report(graph).lower_bound_in_place


@settings(max_examples=40)
@given(graph=graphs())
def test_recomputation_keeps_every_bit_and_is_idempotent(graph: Graph) -> None:
    for before in (graph, optimise(graph)):
        after = recompute(before)
        assert verify(after) is after
        assert recompute(after) is after
        assert after is before or peak(after) < peak(before)
        assert list(after.inputs) == list(before.inputs)
        expected, found = interpret(before, feeds()), interpret(after, feeds())
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)


def test_the_peak_of_a_deep_network_falls_and_the_numbers_stay() -> None:
    graph = deep(mish)
    less = recompute(graph)
    assert peak(less) < 0.7 * peak(graph)
    assert memory_report(less).peak < 0.75 * memory_report(graph).peak
    given = numbers(graph)
    expected, found = interpret(graph, given), interpret(less, given)
    run = Executable(to_onnx(less, name="less")).run(given)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
        np.testing.assert_allclose(run[name], value.reshape(run[name].shape), rtol=1e-4, atol=1e-6)


def test_passes_do_not_undo_it() -> None:
    graph = deep(mish)
    less = recompute(graph)
    assert peak(optimise(less)) <= 1.05 * peak(less) < 0.8 * peak(graph)


def test_products_are_not_computed_again() -> None:
    graph = deep(mish)
    before, after = (Counter(node.primitive for node in g.nodes) for g in (graph, recompute(graph)))
    assert after["tanh"] > before["tanh"]
    assert (before["matmul"], before["gemm"]) == (after["matmul"], after["gemm"])


def test_a_budget_says_where_to_stop() -> None:
    graph = deep(mish)
    most, least = peak(graph), peak(recompute(graph))
    between = (most + least) // 2
    some = recompute(graph, between)
    assert least <= peak(some) <= between
    assert len(graph.nodes) < len(some.nodes) <= len(recompute(graph).nodes)
    assert recompute(graph, most) is graph
    assert recompute(some, between) is some


def test_nothing_is_computed_again_where_it_frees_nothing() -> None:
    graph = deep(ops.relu)  # what the backward pass reads of a ReLU is its result, which the next product reads too
    after = recompute(graph)
    assert after is graph


def gated(x: Array) -> Array:
    return ops.relu(x) * ops.sigmoid(x)


@pytest.mark.parametrize("activation", [mish, ops.gelu, ops.softmax, gated])
def test_it_saves_as_the_checkpoint_of_an_activation_does(activation: Callable[[Array], Array]) -> None:
    plain, marked = deep(activation), deep(checkpoint(activation))
    assert peak(recompute(plain)) <= peak(marked)
