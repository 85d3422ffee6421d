"""Operators scheduled one at a time, as NumPy or as sessions of their own, give what the whole graph gives."""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coterie.compute import Array, TensorSpec, grad, interpret, ops, optimise, to_onnx, trace
from coterie.compute import numpy as cnp
from coterie.compute.ir import Graph, NDArray, Node, Value
from coterie.compute.runtime.executable import Executable


def network(x: Any, w: Any, v: Any) -> Any:
    hidden = ops.relu(ops.conv2d(x, w, padding=1))
    pooled = cnp.reshape(ops.max_pool2d(hidden, 2), (x.shape[0], -1))
    return cnp.mean(-ops.log_softmax(pooled @ v)[:, 0])


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "elementwise": (lambda a, b: cnp.tanh(a * b + 1.0) / (1.0 + cnp.exp(-b)), ((3, 4), (4,))),
    "attention": (lambda q, k: ops.softmax(q @ cnp.matrix_transpose(k) * 0.5) @ k, ((3, 4), (5, 4))),
    "network": (network, ((2, 3, 4, 4), (2, 3, 3, 3), (8, 3))),
    "its gradient": (grad(network, (1, 2)), ((2, 3, 4, 4), (2, 3, 3, 3), (8, 3))),
}


def run(graph: Graph, feeds: dict[str, NDArray]) -> dict[str, NDArray]:
    """In one session; tensors of rank 0 as themselves."""
    outputs = {f"result/{name}": value for name, value in graph.outputs.items()}
    shaped = {name: value.reshape(value.shape or (1,)) for name, value in feeds.items()}
    made = Executable(to_onnx(Graph(graph.inputs, graph.nodes, outputs), name="whole", target="cpu")).run(shaped)
    return {name: made[f"result/{name}"].reshape(value.type.shape) for name, value in graph.outputs.items()}


def run_one_by_one(graph: Graph, feeds: dict[str, NDArray]) -> dict[str, NDArray]:
    """A session for every node, whose results go to the host and back."""
    held: dict[Value, NDArray] = {value: feeds[name] for name, value in graph.inputs.items()}
    for node in graph.nodes:
        if node.primitive == "constant":
            held[node.output] = node.attributes["value"]
            continue
        distinct = list(dict.fromkeys(node.inputs))
        inputs = {str(index): value for index, value in enumerate(distinct)}
        own = Value(node.output.type)
        single = Graph(inputs, (Node(node.primitive, node.inputs, (own,), node.attributes),), {"output": own})
        held[node.output] = run(single, {name: held[value] for name, value in inputs.items()})["output"]
    return {name: held[value] for name, value in graph.outputs.items()}


@pytest.mark.capability("E19")
@pytest.mark.parametrize(("fn", "shapes"), PROGRAMS.values(), ids=PROGRAMS.keys())
def test_e19_single_operators_and_whole_graphs_give_the_same(
    fn: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]
) -> None:
    rng = np.random.default_rng(0)
    graph = trace(fn, *(TensorSpec(shape) for shape in shapes)).graph
    feeds = {name: rng.normal(size=v.type.shape).astype(np.float32) for name, v in graph.inputs.items()}
    returned = fn(*(Array(array) for array in feeds.values()))  # eager: operator by operator, as Python calls them
    eager = [array.numpy() for array in (returned if isinstance(returned, tuple) else (returned,))]
    ways = [interpret(graph, feeds), run_one_by_one(graph, feeds), run(graph, feeds), run(optimise(graph), feeds)]
    for way in ways:
        for value, expected in zip(way.values(), eager, strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)
