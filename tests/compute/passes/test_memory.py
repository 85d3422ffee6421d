"""Layouts of memory: nothing live overlaps, everything is aligned, and a run inside one arena gives the same bits."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.control.functions import scan
from coterie.compute.interpret import interpret, run
from coterie.compute.ir import Graph, NDArray, Node, Value
from coterie.compute.memory.in_place import in_place
from coterie.compute.memory.lifetimes import VIEWS, Block, lifetimes, lower_bound
from coterie.compute.memory.planners import PLANNERS, Plan, best_fit, two_cursors
from coterie.compute.memory.report import memory_report
from coterie.compute.passes import optimise
from coterie.compute.table import PRIMITIVES
from coterie.compute.trace import GraphInputs, TensorSpec, trace, trace_named
from tests.compute.core.test_passes import feeds, graphs
from tests.compute.core.test_steps import MODELS, sgd, step_graph


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Block, ...]:
    """Random lifetimes; held blocks live from the beginning to the end, as those of a graph do."""
    made: list[Block] = []
    for size, start, length, held in draw(
        st.lists(
            st.tuples(st.integers(1, 500), st.integers(0, 20), st.integers(0, 10), st.booleans()),
            min_size=1,
            max_size=30,
        )
    ):
        made.append(Block(size, -1, 40, "held", "") if held else Block(size, start, start + length, "temporary", ""))
    return tuple(made)


def check(plan: Plan, laid: tuple[Block, ...], alignment: int) -> None:
    assert set(plan.offsets) == set(laid)
    for index, one in enumerate(laid):
        start = plan.offsets[one]
        assert start % alignment == 0
        assert 0 <= start and start + one.bytes <= plan.bytes
        for other in laid[:index]:
            if one.meets(other):
                begin = plan.offsets[other]
                assert start + one.bytes <= begin or begin + other.bytes <= start


@pytest.mark.capability("E14", "E15", "E16")
@pytest.mark.parametrize("name", PLANNERS)
@settings(max_examples=100)
@given(laid=blocks(), alignment=st.sampled_from([1, 16, 64]))
def test_no_two_live_blocks_overlap_and_all_are_aligned(name: str, laid: tuple[Block, ...], alignment: int) -> None:
    plan = PLANNERS[name](laid, alignment)
    check(plan, laid, alignment)
    assert lower_bound(laid) <= plan.bytes <= PLANNERS["no reuse"](laid, alignment).bytes
    assert PLANNERS[name](laid, alignment) == plan


@pytest.mark.capability("E15")
def test_the_two_cursors_put_what_is_held_at_the_head_and_the_rest_at_the_tail() -> None:
    held = [Block(64, -1, 9, "held", "") for _ in range(2)]
    early, late = Block(128, 0, 3, "temporary", ""), Block(192, 4, 8, "temporary", "")
    plan = two_cursors([held[0], early, held[1], late], 64)
    assert [plan.offsets[block] for block in held] == [0, 64]
    assert plan.bytes == 128 + 192
    assert [plan.offsets[block] for block in (early, late)] == [plan.bytes - 128, plan.bytes - 192]


@pytest.mark.capability("E16")
def test_the_best_gap_is_the_smallest_that_fits() -> None:
    stay = [Block(size, 0, 9, "temporary", "") for size in (512, 400, 392)]
    gone = [Block(size, 0, 4, "temporary", "") for size in (450, 395)]
    small = Block(390, 5, 9, "temporary", "")
    laid = (*stay, *gone, small)
    plan = best_fit(laid, 1)
    check(plan, laid, 1)
    assert plan.offsets[small] == plan.offsets[gone[1]]  # not the larger gap before it


def evaluated(node: Node, operands: Sequence[NDArray]) -> Sequence[NDArray]:
    """What a node that holds no graph makes of its operands."""
    return PRIMITIVES[node.primitive].evaluate(run, operands, node.attributes)


def run_in_arena(graph: Graph, plan: Plan, laid: tuple[Block, ...], over: dict[Value, Value]) -> dict[str, NDArray]:
    """Every value lives at its place of one buffer, which begins full of garbage. Results that are written over an
    operand are computed element by element, so that a hazard inside one node shows too.
    """
    arena = np.full(plan.bytes, 0xA5, np.uint8)
    homes = {value: block for block in laid for value in block.values}

    def place(value: Value) -> NDArray:
        start = plan.offsets[homes[value]] if value.type.size else 0
        count = value.type.size * np.dtype(value.type.dtype).itemsize
        return arena[start : start + count].view(value.type.dtype).reshape(value.type.shape)

    for name, array in feeds().items():
        place(graph.inputs[name])[...] = array
    constants = [node for node in graph.nodes if node.primitive == "constant"]
    for node in constants:
        place(node.output)[...] = node.attributes["value"]
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            if node.primitive == "constant" or node.primitive in VIEWS:
                continue
            operands = [place(value) for value in node.inputs]
            out = place(node.output)
            if node.output in over:
                shape = node.output.type.shape
                whole = [np.broadcast_to(x, shape) for x in operands]
                for at in np.ndindex(shape):
                    (out[at],) = evaluated(node, [x[at] for x in whole])
            else:
                (out[...],) = evaluated(node, [x.copy() for x in operands])
    return {name: place(value).copy() for name, value in graph.outputs.items()}


@pytest.mark.capability("E14", "E16", "E18")
@settings(max_examples=60)
@given(graph=graphs(), optimised=st.booleans(), planner=st.sampled_from(sorted(PLANNERS)), merge=st.booleans())
def test_a_run_in_the_planned_arena_gives_the_same_numbers(
    graph: Graph, optimised: bool, planner: str, merge: bool
) -> None:
    graph = optimise(graph) if optimised else graph
    over = in_place(graph) if merge else {}
    laid = lifetimes(graph, over)
    plan = PLANNERS[planner](laid, 64)
    check(plan, laid, 64)
    found = run_in_arena(graph, plan, laid, over)
    for name, expected in interpret(graph, feeds()).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-12, atol=1e-300)


@pytest.mark.capability("E18")
def test_what_is_read_again_or_given_out_is_not_written_over() -> None:
    def fn(i: GraphInputs) -> dict[str, Array]:
        a = cnp.exp(i["x"])  # x is the caller's
        b = cnp.tanh(a)  # a is read again below
        c = ops.relu(b) + a
        return {"b": b, "c": cnp.sqrt(c)}

    graph = trace_named(fn, {"x": TensorSpec((4,))})
    names = {value: node.primitive for node in graph.nodes for value in node.outputs}
    assert {names[new]: names[old] for new, old in in_place(graph).items()} == {"add": "relu", "sqrt": "add"}


@pytest.mark.capability("E16")
def test_the_report_of_a_training_step_of_lenet(record_property: Callable[[str, object], None]) -> None:
    report = memory_report(optimise(step_graph(MODELS["lenet"], sgd)))
    for name, peak in report.peaks.items():
        record_property(f"LeNet {name}", peak)
        bound = report.lower_bound_in_place if "in place" in name else report.lower_bound
        assert bound <= peak <= report.peaks["no reuse"]
    assert report.peaks["best fit"] <= report.peaks["two cursors"] < report.peaks["no reuse"]
    assert report.peaks["best fit"] < 0.7 * report.peaks["no reuse"]
    assert report.peaks["best fit"] <= 1.1 * report.lower_bound
    assert report.peaks["best fit in place"] <= report.peaks["best fit"]
    assert sum(size for _, size in report.lines) == report.lower_bound_in_place
    table = str(report)
    assert "best fit in place" in table and "test_steps.py:" in table
    assert f"{report.lower_bound:,} B" in table


def test_bytes_are_told_by_the_line_that_made_them() -> None:
    def fn(i: GraphInputs) -> dict[str, Array]:
        large = i["x"][:, None] * i["x"][None, :]
        return {"y": cnp.sum(cnp.tanh(large) + large)}

    report = memory_report(trace_named(fn, {"x": TensorSpec((100,))}))
    name, size = report.lines[0]
    assert "test_memory.py:" in name and size >= 100 * 100 * 4


def test_the_body_of_a_loop_is_work_space_of_the_loop() -> None:
    def fn(h: Array, xs: Array) -> Array:
        return scan(lambda c, x: (c + cnp.sum(cnp.tanh(c[:, None] * x[None, :]), axis=1), None), h, xs)[0]

    def scratch(length: int) -> int:
        graph = trace(fn, TensorSpec((50,)), TensorSpec((length, 50))).graph
        found = [block for block in lifetimes(graph) if not block.values]
        return sum(block.bytes for block in found)

    assert scratch(2) == scratch(200) >= 2 * 50 * 50 * 4


def test_an_empty_graph_needs_nothing() -> None:
    report = memory_report(Graph({}, (), {}))
    assert report.peak == report.lower_bound == 0
    assert str(report)
