"""The verifier refuses what is not a graph, and says what and where."""

from collections.abc import Callable

import numpy as np
import pytest

from coterie.compute.ir import Graph, Node, Type, Value, constant_node
from coterie.compute.verify import verify, verify_pass
from coterie.errors import TraceError

F = Type("float32", (2,))


def node(primitive: str, *inputs: Value, type_: Type = F, **attributes: object) -> Node:
    return Node(primitive, inputs, (Value(type_),), attributes, "train.py:7")


def graph_of(*nodes: Node, x: Value, out: Value | None = None) -> Graph:
    return Graph({"x": x}, nodes, {"y": out if out is not None else nodes[-1].output})


def test_a_good_graph_passes_and_is_returned() -> None:
    x = Value(F)
    graph = graph_of(node("exp", x), x=x)
    assert verify(graph) is graph


def test_what_a_pass_leaves_is_taken_as_read_and_what_it_makes_is_not() -> None:
    x = Value(F)
    kept = node("exp", x)
    before = graph_of(kept, x=x)
    good = graph_of(kept, node("log", kept.output), x=x)
    assert verify_pass(before, good) is good
    with pytest.raises(TraceError, match="node 1 .*no primitive of that name"):
        verify_pass(before, graph_of(kept, node("melt", kept.output), x=x))
    with pytest.raises(TraceError, match="node 0 .*dangles"):
        verify_pass(before, Graph({"x": Value(F)}, (kept,), {"y": kept.output}))


def cyclic() -> Graph:
    x, a, b = Value(F), Value(F), Value(F)
    return Graph({"x": x}, (Node("add", (x, b), (a,)), Node("exp", (a,), (b,))), {"y": b})


def own_result() -> Graph:
    x, a = Value(F), Value(F)
    return Graph({"x": x}, (Node("add", (x, a), (a,)),), {"y": a})


def unordered() -> Graph:
    x = Value(F)
    first = node("exp", x)
    return graph_of(node("log", first.output), first, x=x)


def dangling_operand() -> Graph:
    x = Value(F)
    return graph_of(node("add", x, Value(F)), x=x)


def dangling_output() -> Graph:
    x = Value(F)
    return graph_of(node("exp", x), x=x, out=Value(F))


def made_twice() -> Graph:
    x, a = Value(F), Value(F)
    return Graph({"x": x}, (Node("exp", (x,), (a,)), Node("log", (x,), (a,))), {"y": a})


def makes_an_input() -> Graph:
    x = Value(F)
    return Graph({"x": x}, (Node("exp", (x,), (x,)),), {"y": x})


def one_value_two_inputs() -> Graph:
    x = Value(F)
    return Graph({"x": x, "z": x}, (), {"y": x})


def wrong_result_type() -> Graph:
    x = Value(F)
    return graph_of(node("exp", x, type_=Type("float32", (3,))), x=x)


def wrong_operands() -> Graph:
    x, z = Value(F), Value(Type("float32", (3,)))
    return Graph({"x": x, "z": z}, (node("add", x, z),), {"y": x})


def mixed_dtypes() -> Graph:
    x = Value(F)
    ids = constant_node(np.asarray([1, 2], np.int32))
    return graph_of(ids, node("add", x, ids.output), x=x)


def unknown_primitive() -> Graph:
    x = Value(F)
    return graph_of(node("frobnicate", x), x=x)


def missing_attribute() -> Graph:
    x = Value(F)
    return graph_of(node("reshape", x), x=x)


def too_many_operands() -> Graph:
    x = Value(F)
    return graph_of(node("exp", x, x), x=x)


def two_outputs() -> Graph:
    x = Value(F)
    return Graph({"x": x}, (Node("exp", (x,), (Value(F), Value(F))),), {"y": x})


def unknown_dtype() -> Graph:
    x = Value(Type("complex64", (2,)))
    return Graph({"x": x}, (), {"y": x})


REFUSALS: list[tuple[Callable[[], Graph], str]] = [
    (cyclic, r"node 0 \(add\): the graph is cyclic: .*node 1 \(exp\)"),
    (own_result, "cyclic"),
    (unordered, r"node 0 \(log, train.py:7\): it stands before node 1"),
    (dangling_operand, r"train.py:7.*dangles"),
    (dangling_output, "Output 'y' .* dangles"),
    (made_twice, r"node 1 \(log\): its output was already made by node 0"),
    (makes_an_input, "already made by 'x'"),
    (one_value_two_inputs, "one value"),
    (wrong_result_type, r"wrongly typed.*float32\[2\].*not float32\[3\]"),
    (wrong_operands, r"wrongly typed.*float32\[2\], float32\[3\].*broadcast"),
    (mixed_dtypes, "wrongly typed.*dtypes"),
    (unknown_primitive, "frobnicate.*no primitive"),
    (missing_attribute, "attributes"),
    (too_many_operands, "wrong number of operands"),
    (two_outputs, "2 outputs"),
    (unknown_dtype, "complex64"),
]


@pytest.mark.capability("D9")
def test_d9_a_cyclic_graph_is_refused_with_its_path() -> None:
    x, *made = (Value(F) for _ in range(6))
    a, b, c, d, e = made
    nodes = (
        Node("exp", (x,), (a,)),
        Node("add", (a, d), (b,), {}, "train.py:3"),
        Node("tanh", (b,), (c,), {}, "train.py:4"),
        Node("add", (c, e), (d,), {}, "train.py:5"),
        Node("exp", (x,), (e,)),
    )
    path = r"node 1 \(add, train.py:3\) → node 2 \(tanh, train.py:4\) → node 3 \(add, train.py:5\) → node 1 \(add,"
    with pytest.raises(TraceError, match=rf"node 1 \(add, train.py:3\): the graph is cyclic: {path}"):
        verify(Graph({"x": x}, nodes, {"y": d}))
    held = Node("call", (x,), (Value(F),), {"graph": cyclic()}, "train.py:9")
    with pytest.raises(
        TraceError, match=r"call, train.py:9.*in its graph 'graph': node 0 \(add\): the graph is cyclic"
    ):
        verify(Graph({"x": x}, (held,), {"y": held.output}))


@pytest.mark.capability("A4")
@pytest.mark.parametrize(("make", "message"), REFUSALS, ids=[make.__name__ for make, _ in REFUSALS])
def test_a_bad_graph_is_refused_by_name(make: Callable[[], Graph], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        verify(make())
