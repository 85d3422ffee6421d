"""Passes descend into the graphs of loops and choices, and drop what nothing reads of them."""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.control.functions import cond, scan
from coterie.compute.passes import optimise
from coterie.compute.text import to_text
from coterie.compute.trace import TensorSpec, trace


def test_passes_work_inside_of_loops() -> None:
    def step(c: Array, x: Array) -> tuple[Array, None]:
        cnp.exp(c)
        return (c * 1.0 + x) * (cnp.full((3,), 2.0) * 3.0) + cnp.tanh(x) - cnp.tanh(x), None

    graph = optimise(trace(lambda h, xs: scan(step, h, xs)[0], TensorSpec((3,)), TensorSpec((5, 3))).graph)
    (body,) = (node.attributes["body"] for node in graph.nodes if node.primitive == "scan")
    names = [node.primitive for node in body.nodes]
    assert "exp" not in names and names.count("tanh") == 1 and names.count("multiply") == 1


def test_results_that_nothing_reads_are_not_computed_in_loops_and_branches() -> None:
    def fn(h: Array, xs: Array) -> Array:
        last, _ = scan(lambda c, x: (c + x, (cnp.exp(c), cnp.tanh(x))), h, xs)
        chosen = cond(cnp.sum(h) > 0.0, lambda: (last, cnp.exp(h)), lambda: (h, cnp.log(h)))
        return chosen[0]

    graph = optimise(trace(fn, TensorSpec((3,)), TensorSpec((5, 3))).graph)
    assert {node.primitive: len(node.outputs) for node in graph.nodes if len(node.attributes) > 1}["scan"] == 1
    text = to_text(graph)
    assert not any(name in text for name in ("exp(", "tanh(", "log("))
