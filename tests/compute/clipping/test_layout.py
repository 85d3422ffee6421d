"""Letting rearrangements settle keeps the meaning of random graphs, ends, and leaves the products that it is for."""

from itertools import permutations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.compute import numpy as xp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.autodiff import grad
from coterie.compute.batching import vmap
from coterie.compute.clipping.layout import settle, sink
from coterie.compute.interpret import interpret
from coterie.compute.ir import Graph, NDArray
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.compute.verify import verify

SPECS = {"x": TensorSpec((2, 3, 4), "float64"), "y": TensorSpec((4, 1, 6), "float64")}
SHAPES = [
    (24,),
    (1, 24),
    (24, 1),
    (2, 12),
    (6, 4),
    (4, 6),
    (2, 3, 4),
    (4, 3, 2),
    (2, 1, 3, 4),
    (6, 1, 4),
    (1, 2, 12, 1),
]
UNARY = [xp.tanh, xp.negative, ops.relu, ops.stop_gradient]
BINARY = [xp.add, xp.subtract, xp.multiply, xp.maximum]


def rearranged(x: Array, choice: int) -> Array:
    """x in another shape or order."""
    if choice % 2:
        return xp.reshape(x, SHAPES[choice % len(SHAPES)])
    orders = list(permutations(range(x.ndim)))
    return xp.permute_dims(x, orders[choice % len(orders)])


def beside(x: Array, choice: int) -> Array:
    """A constant that broadcasts to x: of its shape, or with some axes of size 1 or missing."""
    shape = [n if choice >> axis & 1 else 1 for axis, n in enumerate(x.shape)]
    kept = shape[choice % (x.ndim + 1) :]
    return Array(np.arange(1.0, 1.0 + np.prod(kept, dtype=int)).reshape(kept) / 7)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Rearrangements, elementwise functions and sums in any order; half of the time the gradient of it."""
    steps = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 999)), min_size=1, max_size=12))
    with_gradient = draw(st.booleans())

    def body(x: Array, y: Array) -> list[Array]:
        made = [x, y]
        for kind, choice in steps:
            a = made[-1] if choice % 3 else made[choice % len(made)]
            if kind <= 1:
                made.append(rearranged(a, choice) if a.size == 24 else xp.expand_dims(a, choice % (a.ndim + 1)))
            elif kind == 2:
                made.append(UNARY[choice % len(UNARY)](a))
            elif kind == 3:
                made.append(BINARY[choice % len(BINARY)](a, beside(a, choice)))
            elif kind == 4:
                b = made[choice % len(made)]
                made.append(BINARY[choice % len(BINARY)](a, xp.reshape(b, a.shape) if a.size == b.size else a))
            elif a.ndim:
                reduction = xp.sum if choice % 2 else xp.max
                axes = tuple(axis for axis in range(a.ndim) if choice >> axis & 2)
                made.append(reduction(a, axis=axes, keepdims=choice % 5 == 0) if axes else a)
        return made

    def step(inputs: GraphInputs) -> dict[str, Array]:
        made = body(inputs["x"], inputs["y"])
        outputs = {"last": made[-1], "middle": made[len(made) // 2]}
        if with_gradient:

            def loss(x: Array, y: Array) -> Array:
                return xp.sum(xp.sin(body(x, y)[-1]))

            pulled = grad(loss, (0, 1))(inputs["x"], inputs["y"])
            outputs |= dict(zip(("dx", "dy"), pulled, strict=True))
        return outputs

    return trace_named(step, SPECS)


def feeds() -> dict[str, NDArray]:
    rng = np.random.default_rng(3)
    return {name: rng.normal(size=spec.shape) for name, spec in SPECS.items()}


@settings(max_examples=80)
@given(graph=graphs())
def test_settling_keeps_the_meaning_and_ends(graph: Graph) -> None:
    after = settle(graph)
    assert verify(after) is after
    assert settle(after) is after
    now = interpret(after, feeds())
    for name, value in interpret(graph, feeds()).items():
        np.testing.assert_allclose(now[name], value, rtol=1e-12, atol=1e-12)


@settings(max_examples=40)
@given(graph=graphs())
def test_one_sweep_keeps_the_meaning(graph: Graph) -> None:
    now = interpret(verify(sink(graph)), feeds())
    for name, value in interpret(graph, feeds()).items():
        np.testing.assert_allclose(now[name], value, rtol=1e-12, atol=1e-12)


def test_a_mapped_layer_becomes_one_product_of_matrices() -> None:
    def layer(w: Array, b: Array, x: Array) -> Array:
        return ops.relu(xp.matrix_transpose(w @ xp.matrix_transpose(x) + xp.reshape(b, (5, 1))))

    specs = {"w": TensorSpec((5, 4)), "b": TensorSpec((5,)), "x": TensorSpec((8, 3, 4))}

    def mapped(inputs: GraphInputs) -> dict[str, Array]:
        return {"y": vmap(layer, (None, None, 0))(inputs["w"], inputs["b"], inputs["x"])}

    settled = settle(trace_named(mapped, specs))
    product = next(node for node in settled.nodes if node.primitive == "matmul")
    assert [value.type.shape for value in (*product.inputs, product.output)] == [(5, 4), (4, 24), (5, 24)]
    after = {node.primitive: node for node in settled.nodes if product.output in node.inputs}
    assert list(after) == ["add"]
