"""Pictures of graphs: a box for every node, graphs inside nodes, and text that Graphviz reads."""

import re
import shutil
import subprocess

import pytest
from hypothesis import given, settings

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.control.functions import cond, scan
from coterie.compute.drawing import to_dot
from coterie.compute.ir import Graph
from coterie.compute.passes import optimise
from coterie.compute.trace import TensorSpec, trace, trace_named
from tests.compute.core.test_passes import graphs
from tests.compute.core.test_steps import MODELS, sgd, step_graph


def held(graph: Graph) -> list[Graph]:
    """A graph and those inside."""
    inner = (value for node in graph.nodes for value in node.attributes.values() if isinstance(value, Graph))
    return [graph, *(found for value in inner for found in held(value))]


def nodes(graph: Graph) -> int:
    return sum(len(each.nodes) for each in held(graph))


def boxes(dot: str) -> int:
    return len(re.findall(r'class="(?:node|constant|holder)"', dot))


def loops() -> Graph:
    def fn(h: Array, xs: Array) -> tuple[Array, Array]:
        last, ys = scan(lambda c, x: (cnp.tanh(c + x), c * 2.0), h, xs)
        return cond(cnp.sum(last) > 0.0, lambda: last * 2.0, lambda: ops.relu(last)), ys

    return optimise(trace(fn, TensorSpec((3,)), TensorSpec((5, 3))).graph)


@pytest.mark.capability("A16")
@settings(max_examples=40)
@given(graph=graphs())
def test_there_are_as_many_boxes_as_nodes(graph: Graph) -> None:
    assert boxes(to_dot(graph)) == nodes(graph)


@pytest.mark.capability("A16")
@pytest.mark.parametrize("graph", [loops(), optimise(step_graph(MODELS["lenet"], sgd))], ids=["loops", "lenet"])
def test_graphs_inside_nodes_and_whole_steps_are_drawn(graph: Graph) -> None:
    dot = to_dot(graph)
    assert boxes(dot) == nodes(graph)
    assert dot.count("subgraph cluster_") == len(held(graph)) - 1
    assert ("body of scan" in dot) == ("scan" in {node.primitive for node in graph.nodes})
    assert "test_drawing.py:" in dot or "test_steps.py:" in dot
    assert to_dot(graph) == dot


def test_arrows_lead_from_what_makes_a_value_to_what_reads_it() -> None:
    def fn(x: Array, y: Array) -> Array:
        return cnp.tanh(x + y) + x

    lines = to_dot(trace(fn, TensorSpec((2,)), TensorSpec((2,))).graph).splitlines()
    names = {
        place: re.findall(r'label="([^"\\]*)', line)[0]
        for line in lines
        if (place := line.split()[0])[1:].isdigit() and "label=" in line
    }
    arrows = [line.strip(" ;").split(" -> ") for line in lines if "->" in line]
    drawn = [f"{names[start]} {names[end]}" for start, end in arrows]
    assert drawn == ["0 add", "1 add", "add tanh", "tanh add", "0 add", "add output"]


def test_names_that_are_markup_stay_names() -> None:
    name = '<b>&"\\\n'
    graph = trace_named(lambda i: {name: i[f"{name}2"] + 1.0}, {f"{name}2": TensorSpec((2,))})
    assert r'label="<b>&\"\\\n"' in to_dot(graph)


def test_characters_that_no_picture_can_hold_are_replaced() -> None:
    graph = trace_named(lambda i: {"a\0\x1b\ud800": i["\x08"] + 1.0}, {"\x08": TensorSpec((2,))})
    assert to_dot(graph).encode().count("\ufffd".encode()) >= 4


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_reads_it() -> None:
    done = subprocess.run(["dot", "-Tplain"], input=to_dot(loops()), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_an_empty_graph_is_an_empty_picture() -> None:
    assert to_dot(Graph({}, (), {})) == 'digraph {\n  node [fontname="sans-serif", fontsize=10];\n  compound=true;\n}\n'
