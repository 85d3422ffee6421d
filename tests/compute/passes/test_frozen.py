"""Gradients of a part of the parameters: the backward pass ends at the last one, told by the number of nodes."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.autodiff import grad, value_and_grad
from coterie.compute.control.derived import checkpoint
from coterie.compute.control.functions import scan
from coterie.compute.interpret import interpret
from coterie.compute.ir import Graph
from coterie.compute.passes import optimise
from coterie.compute.trace import GraphInputs, TensorSpec, trace, trace_named

Parameters = dict[str, Array]


def counts(graph: Graph) -> Counter[str]:
    return Counter(node.primitive for node in graph.nodes if node.primitive != "constant")


def total(graph: Graph) -> int:
    return counts(graph).total()


def trunk_shapes(depth: int) -> dict[str, TensorSpec]:
    return {f"t{i}": TensorSpec((8, 8)) for i in range(depth)}


HEAD = {"head": TensorSpec((8, 3)), "bias": TensorSpec((3,))}
BATCH = {"x": TensorSpec((4, 8)), "y": TensorSpec((4, 3))}


def trunk(p: Parameters, x: Array, depth: int) -> Array:
    for index in range(depth):
        x = ops.relu(x @ p[f"t{index}"])
    return x


def head_loss(p: Parameters, features: Array, y: Array) -> Array:
    z = features @ p["head"] + p["bias"]
    return cnp.mean(ops.logsumexp(z) - cnp.sum(z * y, axis=1))


def update(i: GraphInputs, names: list[str], loss: Callable[[Parameters], Array]) -> dict[str, Array]:
    value, gradients = value_and_grad(loss)({name: i[name] for name in names})
    return {"loss": value} | {f"next/{name}": i[name] - 0.1 * gradients[name] for name in names}


def frozen_trunk(depth: int) -> Graph:
    def step(i: GraphInputs) -> dict[str, Array]:
        return update(i, list(HEAD), lambda p: head_loss(p, trunk(dict(i), i["x"], depth), i["y"]))

    return optimise(trace_named(step, trunk_shapes(depth) | HEAD | BATCH))


@pytest.mark.capability("C6")
@pytest.mark.parametrize("depth", [1, 3, 6])
def test_a_frozen_trunk_costs_its_forward_pass_alone(depth: int) -> None:
    forward = optimise(
        trace_named(lambda i: {"f": trunk(dict(i), i["x"], depth)}, trunk_shapes(depth) | {"x": BATCH["x"]})
    )

    def head_step(i: GraphInputs) -> dict[str, Array]:
        return update(i, list(HEAD), lambda p: head_loss(p, i["f"], i["y"]))

    head = optimise(trace_named(head_step, {"f": TensorSpec((4, 8)), "y": BATCH["y"], **HEAD}))
    assert counts(frozen_trunk(depth)) == counts(forward) + counts(head)


def test_each_frozen_layer_more_adds_two_nodes_and_each_trained_one_more() -> None:
    def trained(depth: int) -> Graph:
        def step(i: GraphInputs) -> dict[str, Array]:
            names = [*trunk_shapes(depth), *HEAD]
            return update(i, names, lambda p: head_loss(p, trunk(p, i["x"], depth), i["y"]))

        return optimise(trace_named(step, trunk_shapes(depth) | HEAD | BATCH))

    assert total(frozen_trunk(5)) - total(frozen_trunk(4)) == 2  # matmul and relu
    assert total(trained(5)) - total(trained(4)) >= 6


@pytest.mark.capability("C6")
@pytest.mark.parametrize("position", [0, 1, (0, 1)])
def test_branches_of_inputs_that_are_not_asked_for_are_not_built(position: int | tuple[int, ...]) -> None:
    def fn(a: Array, b: Array) -> Array:
        return cnp.sum(cnp.tanh(cnp.tanh(a)) * cnp.exp(b))

    spec = TensorSpec((3,))
    graph = trace(grad(fn, position), spec, spec).graph  # before any pass: never built, not removed
    found = counts(graph)
    # d tanh: one subtraction and two products each; d exp: one product.
    assert found["subtract"] == (0 if position == 1 else 2)
    assert ("multiply" in found) and found["tanh"] == 2 and found["exp"] == 1
    both = counts(trace(grad(fn, (0, 1)), spec, spec).graph).total()
    assert (found.total() == both) == (position == (0, 1))


def test_a_term_of_frozen_parameters_in_the_loss_has_a_value_and_no_backward_pass() -> None:
    def step(decayed: bool) -> Graph:
        def fn(i: GraphInputs) -> dict[str, Array]:
            def loss(p: Parameters) -> Array:
                value = head_loss(p, trunk(dict(i), i["x"], 2), i["y"])
                return value + cnp.sum(cnp.square(i["t0"])) if decayed else value

            return update(i, list(HEAD), loss)

        return optimise(trace_named(fn, trunk_shapes(2) | HEAD | BATCH))

    assert counts(step(True)) - counts(step(False)) == Counter({"multiply": 1, "sum": 1, "add": 1})


def test_a_frozen_layer_in_the_middle_passes_the_gradient_on_and_has_none_of_its_own() -> None:
    def step(names: list[str]) -> Graph:
        def fn(i: GraphInputs) -> dict[str, Array]:
            return update(i, names, lambda p: head_loss(dict(i) | p, trunk(dict(i) | p, i["x"], 3), i["y"]))

        return optimise(trace_named(fn, trunk_shapes(3) | HEAD | BATCH))

    everything, some = step(["t0", "t1", "t2"]), step(["t0", "t2"])
    assert counts(everything)["gemm"] - counts(some)["gemm"] == 1  # the update of t1


def test_a_frozen_layer_of_a_loop_has_no_gradient_in_the_loop() -> None:
    def loss(w: Array, u: Array, xs: Array) -> Array:
        return cnp.sum(scan(lambda h, x: (cnp.tanh(h @ w + x @ u), None), cnp.zeros((2, 3)), xs)[0])

    specs = (TensorSpec((3, 3)), TensorSpec((4, 3)), TensorSpec((5, 2, 4)))

    def inner(position: int | tuple[int, int]) -> int:
        graph = optimise(trace(grad(loss, position), *specs).graph)
        bodies = [node.attributes["body"] for node in graph.nodes if node.primitive == "scan"]
        return sum(counts(body)["gemm"] + counts(body)["matmul"] for body in bodies)

    # Two products forward, the same two again and that with w.T backward, and one for each wanted gradient.
    assert (inner(0), inner(1), inner((0, 1))) == (6, 6, 7)


def test_a_checkpoint_over_a_frozen_trunk_computes_nothing_again() -> None:
    def step(wrap: Callable[[Callable[..., Array]], Callable[..., Array]]) -> Graph:
        def fn(i: GraphInputs) -> dict[str, Array]:
            def features(x: Array) -> Array:
                return trunk(dict(i), x, 3)

            return update(i, list(HEAD), lambda p: head_loss(p, wrap(features)(i["x"]), i["y"]))

        return optimise(trace_named(fn, trunk_shapes(3) | HEAD | BATCH))

    assert counts(step(checkpoint)) == counts(step(lambda f: f)) == counts(frozen_trunk(3))


def test_the_values_are_those_of_the_whole_gradient() -> None:
    graph = frozen_trunk(3)
    rng = np.random.default_rng(0)
    given = {name: rng.normal(size=value.type.shape).astype(np.float32) for name, value in graph.inputs.items()}

    def loss(p: Parameters) -> Array:
        return head_loss(p, trunk(p, Array(given["x"]), 3), Array(given["y"]))

    names = [*trunk_shapes(3), *HEAD]
    whole = grad(loss)({name: Array(given[name]) for name in names})
    found = interpret(graph, given)
    for name in HEAD:
        np.testing.assert_allclose(found[f"next/{name}"], given[name] - 0.1 * whole[name].numpy(), atol=1e-5)
