"""The uses of a weight in many steps are joined: one product and one sum, of the same meaning."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.compute import numpy as xp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.autodiff import grad
from coterie.compute.interpret import interpret
from coterie.compute.ir import Graph
from coterie.compute.passes import PASSES, fixpoint, optimise
from coterie.compute.passes.shared_weights import join_uses
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.compute.verify import verify


def recurrent(steps: int, rows: int, size: int, *, twice: bool = False) -> Graph:
    """The gradients of a weight and a bias that every step uses; with ``twice`` one term is an output too."""

    def step(inputs: GraphInputs) -> dict[str, Array]:
        def loss(w: Array, b: Array) -> Array:
            h, total = inputs["h"], xp.zeros(())
            for t in range(steps):
                h = ops.tanh(h @ w.T + b + inputs["x"][t])
                total = total + xp.sum(h * h)
            return total

        dw, db = grad(loss, (0, 1))(inputs["w"], inputs["b"])
        extra = {"twice": xp.exp(dw)} if twice else {}
        return {"w": inputs["w"] - 0.1 * dw, "b": inputs["b"] - 0.1 * db} | extra

    shapes = {"h": (rows, size), "x": (steps, rows, size), "w": (size, size), "b": (size,)}
    return trace_named(step, {name: TensorSpec(shape, "float64") for name, shape in shapes.items()})


@settings(max_examples=30)
@given(st.integers(1, 7), st.integers(1, 5), st.integers(1, 6), st.booleans())
def test_joining_keeps_the_meaning_and_is_idempotent(steps: int, rows: int, size: int, twice: bool) -> None:
    graph = recurrent(steps, rows, size, twice=twice)
    alone = fixpoint(graph, PASSES["update_fusion"], join_uses)
    for after in (alone, optimise(graph)):
        assert verify(after) is after and join_uses(after) is after
        rng = np.random.default_rng(steps)
        feeds = {name: rng.normal(size=value.type.shape) for name, value in graph.inputs.items()}
        before, now = interpret(graph, feeds), interpret(after, feeds)
        for name, value in before.items():
            np.testing.assert_allclose(now[name], value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("steps", [4, 16])
def test_a_weight_of_many_steps_has_one_gradient_product(steps: int) -> None:
    graph = optimise(recurrent(steps, 2, 16))
    transposed = [node for node in graph.nodes if node.primitive == "gemm" and node.attributes["transpose_a"]]
    assert len(transposed) <= 2  # the last step's cotangent has no further term, so its product may stand alone
    assert sum(node.primitive == "sum" and node.output.type.shape == (16,) for node in graph.nodes) <= 2


def test_few_uses_and_small_weights_stay() -> None:
    """Where joining would copy more than it saves."""
    graph = recurrent(5, 64, 2)
    assert not [
        node
        for node in optimise(graph).nodes
        if node.primitive == "concat"
        and node.output.type.rank == 2
        and node.attributes["axis"] == 0
        and len(node.inputs) > 5
    ]
    two = fixpoint(recurrent(2, 2, 16), PASSES["update_fusion"])
    assert join_uses(two) is two
