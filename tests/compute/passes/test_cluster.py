"""Groups of fusible nodes: convex, without cycles, with the same results, and with fewer bytes to move."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.control.functions import scan
from coterie.compute.interpret import interpret
from coterie.compute.ir import Graph, Node, Value
from coterie.compute.onnx.writer import Target, to_onnx
from coterie.compute.passes import optimise
from coterie.compute.passes.cluster import FUSIBLE, cluster
from coterie.compute.passes.cost import bytes_moved, flops
from coterie.compute.passes.dead_code import remove_dead_code
from coterie.compute.passes.subgraphs import inline_calls
from coterie.compute.runtime.executable import Executable
from coterie.compute.trace import GraphInputs, TensorSpec, trace, trace_named
from coterie.compute.verify import verify
from tests.compute.core.test_passes import feeds, graphs
from tests.compute.core.test_steps import MODELS, adam, sgd, step_graph


def groups(graph: Graph) -> list[Graph]:
    return [node.attributes["graph"] for node in graph.nodes if node.primitive == "call"]


def ancestors(graph: Graph) -> dict[Node, set[Node]]:
    makers = graph.producers()
    found: dict[Node, set[Node]] = {}
    for node in graph.nodes:
        direct = {makers[value] for value in node.inputs if value in makers}
        found[node] = direct.union(*(found[maker] for maker in direct)) if direct else set()
    return found


def check_convex(before: Graph, after: Graph) -> None:
    """Each call's nodes, found again by its results, have no node between them that is outside."""
    above, makers = ancestors(before), before.producers()
    for node in after.nodes:
        if node.primitive != "call":
            continue
        ends = [makers[value] for value in node.outputs]
        outer: set[Value] = set(node.inputs)
        inside: set[Node] = set()
        frontier = list(ends)
        while frontier:
            at = frontier.pop()
            if at not in inside and at.primitive != "constant":
                inside.add(at)
                frontier += [makers[v] for v in at.inputs if v in makers and v not in outer]
        own = [n for n in node.attributes["graph"].nodes if n.primitive != "constant"]
        assert len(inside) == len(own) > 1
        assert all(n.primitive in FUSIBLE for n in own)
        for other in set(before.nodes) - inside:
            leads_out, leads_in = above[other] & inside, any(other in above[n] for n in inside)
            assert not (leads_out and leads_in)


@pytest.mark.capability("E9")
@settings(max_examples=40)
@given(graph=graphs())
def test_groups_are_convex_and_mean_the_same(graph: Graph) -> None:
    for before in (remove_dead_code(inline_calls(graph)), optimise(graph)):
        after = cluster(before)
        assert verify(after) is after  # no cycles
        assert cluster(after) is after
        assert list(after.inputs) == list(before.inputs)
        check_convex(before, after)
        assert bytes_moved(after) <= bytes_moved(before)
        assert flops(after) == flops(before)
        expected, found = interpret(before, feeds()), interpret(after, feeds())
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)


def test_two_groups_that_need_each_other_stay_apart() -> None:
    """a1 → m → a2 and b1 → a2 with m → b1: joining a1 with a2 around the product would make a cycle."""

    def fn(i: GraphInputs) -> dict[str, Array]:
        a = cnp.exp(i["x"])
        product = a @ i["w"]
        return {"y": cnp.tanh(product) + a}

    before = optimise(trace_named(fn, {"x": TensorSpec((4, 4)), "w": TensorSpec((4, 4))}))
    after = cluster(before)
    assert [node.primitive for node in after.nodes] == ["exp", "matmul", "call"]


@pytest.mark.capability("E8", "E9")
@pytest.mark.parametrize("update", [sgd, adam])
@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_a_step_moves_fewer_bytes_in_groups_and_gives_the_same_numbers(
    update: Callable[..., dict[str, Array]], target: Target
) -> None:
    raw = step_graph(MODELS["lenet"], update)
    fused = optimise(raw)
    grouped = cluster(fused)
    assert len(raw.nodes) > len(fused.nodes) > len(grouped.nodes)
    assert bytes_moved(raw) > bytes_moved(fused) > bytes_moved(grouped)
    rng = np.random.default_rng(0)
    given = {
        name: (rng.integers(0, 10, v.type.shape) if v.type.dtype == "int32" else rng.uniform(0.01, 0.1, v.type.shape))
        .astype(v.type.dtype)
        .reshape(v.type.shape or (1,))
        for name, v in raw.inputs.items()
    }
    on, off = (Executable(to_onnx(g, name="step", target=target)).run(given) for g in (grouped, fused))
    for name, value in off.items():
        np.testing.assert_allclose(on[name], value, rtol=1e-5, atol=1e-7)


@pytest.mark.capability("E8")
def test_a_convolution_with_its_bias_and_sum_is_one_node_and_the_rest_one_group() -> None:
    def fn(i: GraphInputs) -> dict[str, Array]:
        y = ops.conv2d(i["x"], i["w"]) + cnp.reshape(i["b"], (1, 3, 1, 1))
        z = ops.conv2d(i["x"], i["v"])
        return {"y": ops.relu(y + z)}

    kernel = TensorSpec((3, 2, 3, 3))
    raw = trace_named(fn, {"x": TensorSpec((2, 2, 8, 8)), "w": kernel, "v": kernel, "b": TensorSpec((3,))})
    after = cluster(optimise(raw))
    assert [node.primitive for node in after.nodes] == ["conv", "conv", "call"]
    assert [node.primitive for node in groups(after)[0].nodes] == ["add", "relu"]
    assert len(after.nodes) < len(raw.nodes) and bytes_moved(after) < bytes_moved(raw)


def test_groups_form_inside_loops() -> None:
    def fn(h: Array, xs: Array) -> Array:
        return scan(lambda c, x: (cnp.tanh(c * 0.5 + x) * c, None), h, xs)[0]

    after = cluster(optimise(trace(fn, TensorSpec((3,)), TensorSpec((5, 3))).graph))
    (loop,) = [node for node in after.nodes if node.primitive == "scan"]
    assert [node.primitive for node in loop.attributes["body"].nodes] == ["call"]
    assert cluster(after) is after
