"""Pictures of graphs: a box for every node, arrows downwards, nothing on top of anything else."""

import re
import shutil
import subprocess
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.control.functions import cond, scan
from coterie.compute.drawing.dot import to_dot
from coterie.compute.drawing.layout import arranged
from coterie.compute.drawing.svg import to_svg
from coterie.compute.ir import Graph
from coterie.compute.passes import optimise
from coterie.compute.trace import TensorSpec, trace, trace_named
from tests.compute.core.test_passes import graphs
from tests.compute.core.test_steps import MODELS, sgd, step_graph

SVG = "{http://www.w3.org/2000/svg}"


def nodes(graph: Graph) -> int:
    """Nodes of a graph and of those inside."""
    inner = (held for node in graph.nodes for held in node.attributes.values() if isinstance(held, Graph))
    return len(graph.nodes) + sum(map(nodes, inner))


def boxes(svg: str) -> int:
    groups = ElementTree.fromstring(svg).iter(f"{SVG}g")
    return sum(group.get("class") in ("node", "constant", "holder") for group in groups)


def dot_boxes(dot: str) -> int:
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
    assert boxes(to_svg(graph)) == dot_boxes(to_dot(graph)) == nodes(graph)


@pytest.mark.capability("A16")
@pytest.mark.parametrize("graph", [loops(), optimise(step_graph(MODELS["lenet"], sgd))], ids=["loops", "lenet"])
def test_graphs_inside_nodes_and_whole_steps_are_drawn(graph: Graph) -> None:
    svg, dot = to_svg(graph), to_dot(graph)
    assert boxes(svg) == dot_boxes(dot) == nodes(graph)
    assert dot.count("subgraph cluster_") == svg.count('class="inner"')
    assert ("body of scan" in dot) == ("scan" in {node.primitive for node in graph.nodes})
    assert "test_drawing.py:" in svg or "test_steps.py:" in svg
    assert to_svg(graph) == svg and to_dot(graph) == dot


def test_names_that_are_markup_stay_names() -> None:
    name = '<b>&"\\\n'
    graph = trace_named(lambda i: {name: i[f"{name}2"] + 1.0}, {f"{name}2": TensorSpec((2,))})
    texts = [text.text for text in ElementTree.fromstring(to_svg(graph)).iter(f"{SVG}text")]
    assert name in texts
    assert r'label="<b>&\"\\\n' in to_dot(graph)


def test_characters_that_no_picture_can_hold_are_replaced() -> None:
    graph = trace_named(lambda i: {"a\0\x1b\ud800": i["\x08"] + 1.0}, {"\x08": TensorSpec((2,))})
    texts = [text.text for text in ElementTree.fromstring(to_svg(graph)).iter(f"{SVG}text")]
    assert {"a\ufffd\ufffd\ufffd", "\ufffd"} <= set(texts)
    assert to_dot(graph).encode().count("\ufffd".encode()) >= 4


def test_a_value_that_is_read_everywhere_does_not_fill_the_picture() -> None:
    def fn(x: Array) -> Array:
        y = x
        for _ in range(400):
            y = cnp.tanh(y) + x
        return y

    svg = to_svg(trace(fn, TensorSpec((2,))).graph)
    assert boxes(svg) == 800 and svg.count("<path") == 801 + 400
    assert len(svg) < 800 * 1000


@settings(max_examples=80)
@given(
    sizes=st.lists(st.tuples(st.floats(5, 80), st.floats(5, 40)), min_size=1, max_size=14),
    links=st.lists(st.tuples(st.integers(0, 13), st.integers(0, 13)), max_size=25),
    late=st.lists(st.booleans(), min_size=14, max_size=14),
)
def test_boxes_do_not_touch_and_arrows_point_down(
    sizes: list[tuple[float, float]], links: list[tuple[int, int]], late: list[bool]
) -> None:
    arrows = sorted({(a, b) for a, b in links if a < b < len(sizes)})
    layout = arranged(sizes, arrows, late[: len(sizes)])
    corners = layout.corners
    for i, (x, y) in enumerate(corners):
        assert -1e-6 <= x and x + sizes[i][0] <= layout.size[0] + 1e-6
        assert -1e-6 <= y and y + sizes[i][1] <= layout.size[1] + 1e-6
        for j in range(i):
            apart = (
                x + sizes[i][0] < corners[j][0]
                or corners[j][0] + sizes[j][0] < x
                or y + sizes[i][1] < corners[j][1]
                or corners[j][1] + sizes[j][1] < y
            )
            assert apart
    for (start, end), path in zip(arrows, layout.paths, strict=True):
        assert [y for _, y in path] == sorted(y for _, y in path)
        assert path[0][1] == corners[start][1] + sizes[start][1] and path[-1][1] == corners[end][1]


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_reads_it() -> None:
    done = subprocess.run(["dot", "-Tplain"], input=to_dot(loops()), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_an_empty_graph_is_an_empty_picture() -> None:
    assert boxes(to_svg(Graph({}, (), {}))) == 0
    assert to_dot(Graph({}, (), {})).startswith("digraph {")
