"""Graphs for a class of providers may hold choices and loops of a known number of steps, and nothing behind them."""

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.autodiff import value_and_grad
from coterie.compute.control.functions import cond, scan
from coterie.compute.ir import Graph
from coterie.compute.onnx.checker import GraphLimits, check_graph
from coterie.compute.onnx.nested import DEEPEST, graphs_of
from coterie.compute.onnx.operators import OPERATORS, operators_of
from coterie.compute.onnx.providers import CLASSES, MEMBERS, PROVIDERS, ProviderClass, class_of
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.errors import GraphRefused

Change = Callable[[ModelProto], Any]
STEPS = 5


def looped() -> Graph:
    """A loop of five steps with its gradient, and a choice inside of it."""

    def step(i: GraphInputs) -> dict[str, Array]:
        def loss(w: Array) -> Array:
            def cell(carry: Array, row: Array) -> tuple[Array, Array]:
                moved = xp.tanh(carry @ w + row)
                return cond(xp.sum(row) > 0, lambda: (moved, moved), lambda: (0.5 * moved, carry))

            last, rows = scan(cell, i["state"], i["rows"])
            return xp.sum(last * last) + xp.mean(rows)

        value, gradient = value_and_grad(loss)(i["w"])
        return {"loss": value, "gradient": gradient}

    specs = {"w": TensorSpec((3, 3)), "state": TensorSpec((2, 3)), "rows": TensorSpec((STEPS, 2, 3))}
    return optimise(trace_named(step, specs))


GRAPH = looped()
FILE = to_onnx(GRAPH, name="step", target="cpu")


def good() -> ModelProto:
    return ModelProto.FromString(FILE)


def scan_of(m: ModelProto) -> Any:
    return next(node for node in m.graph.node if node.op_type == "Scan")


def body_of(m: ModelProto) -> Any:
    return graphs_of(scan_of(m))["body"]


def attribute(m: ModelProto, name: str) -> Any:
    return next(each for each in scan_of(m).attribute if each.name == name)


def test_each_provider_is_of_one_class_and_a_class_runs_what_all_of_it_run() -> None:
    assert sorted(name for names in MEMBERS.values() for name in names) == sorted(PROVIDERS)
    assert tuple(MEMBERS) == get_args(ProviderClass)
    for kind, names in MEMBERS.items():
        row = CLASSES[kind]
        assert row.operators == {
            operator
            for operator in PROVIDERS[names[0]].operators
            if all(operator in PROVIDERS[n].operators for n in names)
        }
        assert all(PROVIDERS[name].quirks <= row.quirks for name in names)
        assert set(operators_of(kind)) <= row.operators
        assert ("Scan" in operators_of(kind)) == row.control
    assert operators_of(None) is OPERATORS and not {"Scan", "If", "Loop"} & set(OPERATORS)
    assert all("Loop" not in operators_of(kind) for kind in MEMBERS)
    assert class_of("CUDAExecutionProvider") == "gpu" and class_of("CPUExecutionProvider") == "cpu"
    assert class_of("Another") is None


@pytest.mark.parametrize("kind", get_args(ProviderClass))
def test_what_is_written_for_a_class_is_accepted_for_it(kind: ProviderClass) -> None:
    data = to_onnx(GRAPH, name="step", target=kind)
    summary = check_graph(data, kind=kind)
    assert ("Scan" in summary.operators) == CLASSES[kind].control
    assert set(summary.operators) <= CLASSES[kind].operators


@pytest.mark.parametrize("kind", [None, "web", "npu"])
def test_loops_are_refused_where_they_do_not_run(kind: ProviderClass | None) -> None:
    with pytest.raises(GraphRefused, match="not in the portable subset"):
        check_graph(FILE, kind=kind)


def test_a_loop_that_data_may_end_is_refused_in_every_class() -> None:
    with pytest.raises(GraphRefused, match="'Loop'"):
        m = good()
        scan_of(m).op_type = "Loop"
        check_graph(m.SerializeToString(), kind="cpu")


def foreign_inside(m: ModelProto) -> None:
    body_of(m).node[0].op_type = "RandomNormalLike"


def custom_inside(m: ModelProto) -> None:
    body_of(m).node[0].domain = "com.microsoft"


def data_inside(m: ModelProto) -> None:
    body_of(m).initializer.append(helper.make_tensor("hidden", TensorProto.FLOAT, [1], [1.0]))


def external_inside(m: ModelProto) -> None:
    tensor = body_of(m).initializer.add(name="hidden", data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL


def no_body(m: ModelProto) -> None:
    scan_of(m).attribute.remove(attribute(m, "body"))


def second_body(m: ModelProto) -> None:
    scan_of(m).attribute.append(helper.make_attribute("then_branch", body_of(m)))


def body_where_none_belongs(m: ModelProto) -> None:
    node = next(node for node in m.graph.node if node.op_type == "Reshape")
    node.attribute.append(helper.make_attribute("body", body_of(m)))


def too_many_stacks(m: ModelProto) -> None:
    attribute(m, "num_scan_inputs").i = 99


def no_stacks(m: ModelProto) -> None:
    attribute(m, "num_scan_inputs").i = 0


def negative_stacks(m: ModelProto) -> None:
    attribute(m, "num_scan_inputs").i = -1


def another_axis(m: ModelProto) -> None:
    scan_of(m).attribute.append(helper.make_attribute("scan_input_axes", [1]))


def another_direction(m: ModelProto) -> None:
    attribute(m, "scan_input_directions").ints[0] = 7


def an_input_less(m: ModelProto) -> None:
    del body_of(m).input[0]


def an_output_less(m: ModelProto) -> None:
    del body_of(m).output[0]


def another_type_inside(m: ModelProto) -> None:
    body_of(m).input[0].type.tensor_type.shape.dim[0].dim_value = 7


def a_lie_about_a_result(m: ModelProto) -> None:
    body_of(m).output[0].type.tensor_type.shape.dim[0].dim_value = 7


def reads_nothing(m: ModelProto) -> None:
    body_of(m).node[0].input[0] = "nowhere"


def reads_what_comes_later(m: ModelProto) -> None:
    body_of(m).node[0].input[0] = m.graph.output[0].name


def a_name_of_outside(m: ModelProto) -> None:
    body = body_of(m)
    body.node.append(helper.make_node("Identity", [body.input[0].name], [m.graph.input[0].name]))


def twice_inside(m: ModelProto) -> None:
    body_of(m).node[1].output[0] = body_of(m).node[0].output[0]


def in_a_wrong_order(m: ModelProto) -> None:
    body = body_of(m)
    nodes = list(body.node)[::-1]
    del body.node[:]
    body.node.extend(nodes)


CHANGES: list[tuple[Change, str]] = [
    (foreign_inside, "body: Node 0 .*'RandomNormalLike', which is not in the portable subset of its class"),
    (custom_inside, "custom domain"),
    (data_inside, "data of its own"),
    (external_inside, "data of its own"),
    (no_body, "must hold the graphs body"),
    (second_body, "kind that is not allowed"),
    (body_where_none_belongs, "kind that is not allowed"),
    (too_many_stacks, "num_scan_inputs 99 does not fit"),
    (no_stacks, "num_scan_inputs 0 does not fit"),
    (negative_stacks, "num_scan_inputs -1 does not fit"),
    (another_axis, "scan_input_axes=0 is not allowed"),
    (another_direction, "must be 1 zeros and ones"),
    (an_input_less, "inputs; it must have"),
    (an_output_less, "outputs for"),
    (another_type_inside, "not its operands|do not fit together"),
    (a_lie_about_a_result, "do not fit together|must be static|not valid"),
    (reads_nothing, "'nowhere', which nothing before it defines"),
    (reads_what_comes_later, "which nothing before it defines"),
    (a_name_of_outside, "defined twice, once in a graph inside"),
    (twice_inside, "there already"),
    (in_a_wrong_order, "topologically sorted"),
]


@pytest.mark.parametrize(("change", "reason"), CHANGES, ids=[change.__name__ for change, _ in CHANGES])
def test_one_change_inside_is_refused_with_its_reason(change: Change, reason: str) -> None:
    model = good()
    check_graph(model.SerializeToString(), kind="cpu")
    change(model)
    with pytest.raises(GraphRefused, match=reason):
        check_graph(model.SerializeToString(), kind="cpu")


def chain(depth: int) -> bytes:
    """Choices, one inside of the other."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [1])

    def branch(level: int, side: str) -> Any:
        name = f"{side}_{level}"
        told = helper.make_tensor_value_info(name, TensorProto.FLOAT, [1])
        if level == depth or side == "else":
            return helper.make_graph([helper.make_node("Identity", ["x"], [name])], name, [], [told])
        return helper.make_graph([choice(level + 1, name)], name, [], [told])

    def choice(level: int, name: str) -> Any:
        sides = {f"{side}_branch": branch(level, side) for side in ("then", "else")}
        return helper.make_node("If", ["flag"], [name], **sides)

    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([choice(1, "y")], "chain", [x, flag], [y])
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


def test_graphs_stand_inside_of_one_another_only_so_deep() -> None:
    # Names of both sides differ by level alone, so a shallow chain is a good file.
    check_graph(chain(2).replace(b"else_1", b"else_9"), kind="cpu")
    with pytest.raises(GraphRefused, match="more than"):
        check_graph(chain(DEEPEST + 2), kind="cpu")


def test_what_is_inside_of_a_loop_counts_at_every_step() -> None:
    assert check_graph(FILE, kind="cpu").operators["Scan"] == 2
    inside = sum(len(graphs_of(node)["body"].node) for node in good().graph.node if node.op_type == "Scan")
    enough = len(good().graph.node) + STEPS * inside
    with pytest.raises(GraphRefused, match="A run of the graph runs"):
        check_graph(FILE, kind="cpu", limits=GraphLimits(runs=enough - 1))
    with pytest.raises(GraphRefused, match="nodes; at most"):
        check_graph(FILE, kind="cpu", limits=GraphLimits(nodes=len(good().graph.node)))
    with pytest.raises(GraphRefused, match="elements together"):
        check_graph(FILE, kind="cpu", limits=GraphLimits(total_elements=600))


def test_any_bytes_are_a_summary_or_a_refusal() -> None:
    generator = np.random.default_rng(3)
    for _ in range(300):
        data = bytearray(FILE)
        for at in generator.integers(0, len(data), 3):
            data[at] = int(generator.integers(0, 256))
        try:
            check_graph(bytes(data), kind="cpu")
        except GraphRefused:
            continue
