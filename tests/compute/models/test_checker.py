"""The checker of untrusted graphs: what it accepts, what it refuses and why, and that nothing else comes out of it."""

import resource
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from coterie.compute.onnx.checker import GraphLimits, check_graph
from coterie.compute.runtime.tensors import TensorInfo
from coterie.errors import GraphRefused

FLOAT = TensorProto.FLOAT
INT64 = TensorProto.INT64


def value(name: str, shape: list[int | str] | None, dtype: int = FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def constant(name: str, numbers: list[int]):
    return numpy_helper.from_array(np.array(numbers, np.int64), name)


def good() -> ModelProto:
    """A small graph that is allowed: y = relu(x @ w), s = the sum over its rows."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["z"], name="product"),
            helper.make_node("Relu", ["z"], ["y"]),
            helper.make_node("ReduceSum", ["y", "axes"], ["s"], keepdims=0),
        ],
        "good",
        [value("x", [4, 3]), value("w", [3, 2])],
        [value("y", [4, 2]), value("s", [2])],
        [constant("axes", [0])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_good_graph_is_summarised():
    summary = check_graph(good().SerializeToString())
    assert summary.inputs == (TensorInfo("x", "float32", (4, 3)), TensorInfo("w", "float32", (3, 2)))
    assert summary.outputs == (TensorInfo("y", "float32", (4, 2)), TensorInfo("s", "float32", (2,)))
    assert summary.operators == {"MatMul": 1, "ReduceSum": 1, "Relu": 1}
    assert (summary.opset, summary.ir_version, summary.parameter_bytes) == (17, 8, 8)


def _branch() -> GraphProto:
    return helper.make_graph([helper.make_node("Relu", ["x"], ["inner"])], "branch", [], [value("inner", [4, 3])])


def _add(model: ModelProto, operator: str, inputs: list[str], outputs: list[str], **attributes: Any) -> None:
    model.graph.node.append(helper.make_node(operator, inputs, outputs, **attributes))


def unknown_operator(m: ModelProto) -> None:
    _add(m, "RandomNormal", [], ["r"], shape=[2])


def custom_domain(m: ModelProto) -> None:
    m.opset_import.append(helper.make_opsetid("com.microsoft", 1))


def custom_node(m: ModelProto) -> None:
    m.graph.node[0].domain = "com.microsoft"


def function(m: ModelProto) -> None:
    m.functions.append(helper.make_function("f", "g", ["a"], ["b"], [], [helper.make_opsetid("", 17)]))


def training(m: ModelProto) -> None:
    m.training_info.add()


def opset_too_new(m: ModelProto) -> None:
    m.opset_import[0].version = 28


def opset_too_old(m: ModelProto) -> None:
    m.opset_import[0].version = 7


def no_opset(m: ModelProto) -> None:
    del m.opset_import[:]


def two_opsets(m: ModelProto) -> None:
    m.opset_import.append(helper.make_opsetid("ai.onnx", 13))


def ir_too_new(m: ModelProto) -> None:
    m.ir_version = 11


def subgraph(m: ModelProto) -> None:
    m.graph.node[1].attribute.append(helper.make_attribute("body", _branch()))


def tensor_attribute(m: ModelProto) -> None:
    m.graph.node[1].attribute.append(helper.make_attribute("value", constant("hidden", [1])))


def reference_attribute(m: ModelProto) -> None:
    m.graph.node[1].attribute.add(name="alpha", ref_attr_name="alpha", type=1)


def unknown_attribute(m: ModelProto) -> None:
    m.graph.node[1].attribute.append(helper.make_attribute("colour", 1))


def external_data(m: ModelProto) -> None:
    tensor = m.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")


def sparse(m: ModelProto) -> None:
    m.graph.sparse_initializer.add()


def short_initialiser(m: ModelProto) -> None:
    m.graph.initializer[0].raw_data = b"\0" * 4


def negative_initialiser(m: ModelProto) -> None:
    m.graph.initializer[0].dims[0] = -1


def string_initialiser(m: ModelProto) -> None:
    m.graph.initializer[0].data_type = TensorProto.STRING


def symbolic_input(m: ModelProto) -> None:
    m.graph.input[0].CopyFrom(value("x", ["batch", 3]))


def shapeless_input(m: ModelProto) -> None:
    m.graph.input[0].CopyFrom(value("x", None))


def string_input(m: ModelProto) -> None:
    m.graph.input[0].CopyFrom(value("x", [4, 3], TensorProto.STRING))


def sequence_input(m: ModelProto) -> None:
    m.graph.input[0].CopyFrom(helper.make_tensor_sequence_value_info("x", FLOAT, [4, 3]))


def wrong_output_shape(m: ModelProto) -> None:
    m.graph.output[0].CopyFrom(value("y", [4, 7]))


def shapes_that_do_not_fit(m: ModelProto) -> None:
    m.graph.input[1].CopyFrom(value("w", [5, 2]))


def data_dependent_shape(m: ModelProto) -> None:
    m.graph.input.append(value("where", [2], INT64))
    _add(m, "Reshape", ["y", "where"], ["r"])


def duplicate_name(m: ModelProto) -> None:
    _add(m, "Relu", ["z"], ["y"])


def input_shadowed(m: ModelProto) -> None:
    m.graph.initializer.append(constant("x", [0]))


def dangling_input(m: ModelProto) -> None:
    m.graph.node[0].input[0] = "nowhere"


def out_of_order(m: ModelProto) -> None:
    m.graph.node[0].input[0] = "y"


def dangling_output(m: ModelProto) -> None:
    m.graph.output[0].name = "nowhere"


def doubled_output(m: ModelProto) -> None:
    m.graph.output.append(m.graph.output[0])


def no_output(m: ModelProto) -> None:
    del m.graph.output[:]


def nameless_output(m: ModelProto) -> None:
    m.graph.node[1].output[0] = ""


def two_outputs(m: ModelProto) -> None:
    m.graph.node[0].output.append("second")


def pooling_indices(m: ModelProto) -> None:
    m.graph.input.append(value("image", [1, 1, 4, 4]))
    _add(m, "MaxPool", ["image"], ["p", "indices"], kernel_shape=[2, 2])


def automatic_padding(m: ModelProto) -> None:
    m.graph.input.append(value("image", [1, 1, 4, 4]))
    _add(m, "MaxPool", ["image"], ["p"], kernel_shape=[2, 2], auto_pad="SAME_UPPER")


def cubic_resize(m: ModelProto) -> None:
    m.graph.input.append(value("image", [1, 1, 4, 4]))
    m.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"))
    _add(m, "Resize", ["image", "", "scales"], ["r"], mode="cubic")


REFUSALS: list[tuple[Callable[[ModelProto], None], str]] = [
    (unknown_operator, "'RandomNormal', which is not in the portable subset"),
    (custom_domain, "custom operator domain 'com.microsoft'"),
    (custom_node, "custom domain 'com.microsoft'"),
    (function, "defines a function"),
    (training, "training information"),
    (opset_too_new, "imports opset 28; exactly one of 13 to 18"),
    (opset_too_old, "imports opset 7"),
    (no_opset, "imports opset none"),
    (two_opsets, "imports opset 17, 13"),
    (ir_too_new, "IR version 11"),
    (subgraph, "attribute 'body' of a kind"),
    (tensor_attribute, "attribute 'value' of a kind"),
    (reference_attribute, "attribute 'alpha' of a kind"),
    (unknown_attribute, "not valid ONNX"),
    (external_data, "'axes' points to external data"),
    (sparse, "sparse data"),
    (short_initialiser, "must hold 8 bytes, it holds 4"),
    (negative_initialiser, "negative dimension"),
    (string_initialiser, "element type"),
    (symbolic_input, "must be static"),
    (shapeless_input, "must be a tensor with a shape"),
    (string_input, "element type"),
    (sequence_input, "must be a tensor"),
    (wrong_output_shape, "do not fit together"),
    (shapes_that_do_not_fit, "do not fit together"),
    (data_dependent_shape, "must be an initialiser"),
    (duplicate_name, "'y' is defined twice"),
    (input_shadowed, "'x' is defined twice"),
    (dangling_input, "reads 'nowhere'"),
    (out_of_order, "reads 'y', which nothing before it defines"),
    (dangling_output, "'nowhere' is defined by nothing"),
    (doubled_output, "lists an output twice"),
    (no_output, "has no output"),
    (nameless_output, "name of 0 characters"),
    (two_outputs, "has 2 outputs; it must have one"),
    (pooling_indices, "has 2 outputs; it must have one"),
    (automatic_padding, "auto_pad='SAME_UPPER' is not allowed"),
    (cubic_resize, "mode='cubic' is not allowed"),
]


@pytest.mark.parametrize(("change", "reason"), REFUSALS, ids=lambda item: getattr(item, "__name__", ""))
def test_one_change_is_refused_with_its_reason(change: Callable[[ModelProto], None], reason: str):
    model = good()
    change(model)
    with pytest.raises(GraphRefused) as refused:
        check_graph(model.SerializeToString())
    assert reason in str(refused.value)


LIMITS = [
    (GraphLimits(graph_bytes=50), "bytes; at most 50"),
    (GraphLimits(nodes=2), "3 nodes; at most 2"),
    (GraphLimits(tensors=5), "more than 5 tensors"),
    (GraphLimits(tensor_elements=11), "more than 11 elements"),
    (GraphLimits(total_elements=36), "37 elements together; at most 36"),
    (GraphLimits(rank=1), "rank 2; at most 1"),
    (GraphLimits(name_length=3), "name of 4 characters"),
]


@pytest.mark.parametrize(("limits", "reason"), LIMITS, ids=[reason for _, reason in LIMITS])
def test_each_limit_is_held(limits: GraphLimits, reason: str):
    with pytest.raises(GraphRefused) as refused:
        check_graph(good().SerializeToString(), limits=limits)
    assert reason in str(refused.value)
    check_graph(good().SerializeToString(), limits=GraphLimits(total_elements=37, tensor_elements=12, rank=2, nodes=3))


def test_a_small_file_cannot_ask_for_much_memory():
    model = good()
    model.graph.initializer.append(constant("huge", [2**20, 2**20, 4, 2]))
    _add(model, "Expand", ["y", "huge"], ["bomb"])
    with pytest.raises(GraphRefused, match="more than 268435456 elements"):
        check_graph(model.SerializeToString())


def test_a_small_file_cannot_make_the_check_itself_large():
    model = good()
    doubled = [f"{'axes' if step == 0 else step}" for step in range(29)]
    for once, twice in zip(doubled, doubled[1:], strict=False):
        _add(model, "Concat", [once, once], [twice], axis=0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    check_graph(model.SerializeToString())  # 2 ** 28 known numbers in one tensor: allowed, but not to be held
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_operands_and_numbers_in_attributes_are_counted():
    model = good()
    _add(model, "Concat", ["y"] * 400_000, ["long"], axis=0)
    with pytest.raises(GraphRefused, match="operands and numbers in attributes; at most 320000"):
        check_graph(model.SerializeToString())
    model = good()
    _add(model, "Transpose", ["y"], ["turned"], perm=[0] * 400_000)
    with pytest.raises(GraphRefused, match="operands and numbers in attributes"):
        check_graph(model.SerializeToString())


def test_the_numbers_that_say_a_shape_are_few():
    model = good()
    model.graph.initializer.append(constant("long", [1] * 17))
    _add(model, "Reshape", ["y", "long"], ["r"])
    with pytest.raises(GraphRefused, match="'long', has 17 elements; at most 16 are allowed"):
        check_graph(model.SerializeToString())


def test_intermediate_shapes_claimed_by_the_author_are_not_believed():
    model = good()
    model.graph.value_info.append(value("z", [1, 1]))
    assert check_graph(model.SerializeToString()).inputs[0].shape == (4, 3)


@settings(max_examples=300)
@given(st.binary(max_size=400))
def test_rubbish_is_refused_and_nothing_else_happens(data: bytes):
    with pytest.raises(GraphRefused):
        check_graph(data)


@settings(max_examples=400)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=12), st.integers(0, 10**6))
def test_a_damaged_graph_gives_a_summary_or_a_refusal(changes: list[tuple[int, int]], cut: int):
    data = bytearray(good().SerializeToString())
    for position, byte in changes:
        data[position % len(data)] = byte
    length = len(data) if cut % 3 else cut % len(data)
    try:
        summary = check_graph(bytes(data[:length]))
    except GraphRefused:
        return
    assert summary.outputs
