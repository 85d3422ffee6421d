"""Exports: the file is the model, in a runtime that knows nothing of coterie; the report says what was measured."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from coterie.compute import nn, ops
from coterie.compute import numpy as cnp
from coterie.compute.array import Array, as_array
from coterie.compute.control.functions import scan
from coterie.compute.export import Examples, Exported, Thresholds, export, infer_bare
from coterie.compute.export.names import name_weights
from coterie.compute.interpret import interpret
from coterie.compute.ir import NDArray
from coterie.compute.nn.zoo import lenet
from coterie.compute.onnx.weights import embed_weights
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.passes.inference import optimise_for_inference
from coterie.compute.quant.settings import QuantSettings
from coterie.compute.runtime.executable import Executable
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.errors import GraphRefused, StorageError
from tests.compute.export.files import quick, rows


def plan_file(module: nn.Module, *shape: int) -> tuple[bytes, dict[str, NDArray]]:
    """A model as a plan delivers it, weights as inputs that are then filled, and the weights."""
    weights = {f"shared/{name}": np.asarray(value) for name, value in module.init(0).items()}
    specs = {name: TensorSpec(value.shape, "float32") for name, value in weights.items()}

    def answer(given: GraphInputs) -> dict[str, Array]:
        held = {name.removeprefix("shared/"): given[name] for name in weights}
        return {"output": module(held, given["batch/x"])}

    graph = trace_named(answer, specs | {"batch/x": TensorSpec(shape, "float32")})
    return embed_weights(to_onnx(optimise(graph), name="infer"), weights), weights


@pytest.fixture(scope="module")
def lenet_file() -> tuple[bytes, dict[str, NDArray]]:
    return plan_file(lenet(), 16, 1, 28, 28)


@pytest.fixture(scope="module")
def examples(lenet_file: tuple[bytes, dict[str, NDArray]]) -> Examples:
    """40 rows (the last batch is short) with the labels that the model itself gives to all but four of them."""
    x = rows(40, 1, 28, 28)
    file = Executable(lenet_file[0])
    batches = [np.resize(x[start : start + 16], (16, 1, 28, 28)) for start in (0, 16, 32)]
    told = np.concatenate([file.run({"batch/x": batch})["output"] for batch in batches])[:40].argmax(axis=1)
    told[:4] = (told[:4] + 1) % 10
    return Examples(inputs={"batch/x": x}, labels=told)


@pytest.fixture(scope="module")
def in_float32(lenet_file: tuple[bytes, dict[str, NDArray]], examples: Examples) -> Exported:
    return export(lenet_file[0], quick(), examples=examples)


@pytest.fixture(scope="module")
def in_int8(lenet_file: tuple[bytes, dict[str, NDArray]], examples: Examples) -> Exported:
    return export(lenet_file[0], quick(precision="int8"), examples=examples)


def test_the_file_is_plain_and_its_weights_have_their_names(
    in_float32: Exported, lenet_file: tuple[bytes, dict[str, NDArray]]
) -> None:
    """Convolutions are not interleaved as a plan writes them; layers hold the trained bytes."""
    operators = in_float32.report.after.operators
    assert operators == {"Conv": 2, "Gemm": 3, "MaxPool": 2, "Relu": 4, "Reshape": 1}
    assert in_float32.report.before.operators["Transpose"] > 0
    model = onnx.load_from_string(in_float32.data)
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    weights = {name: value for name, value in lenet_file[1].items() if name.endswith(".weight")}
    assert weights.keys() <= held.keys()
    for name, value in weights.items():
        np.testing.assert_array_equal(held[name], value)
    assert [value.name for value in model.graph.input] == ["batch/x"]
    assert [value.name for value in model.graph.output] == ["output"]


def test_the_report_counts_and_scores_both_files(
    in_float32: Exported, lenet_file: tuple[bytes, dict[str, NDArray]], examples: Examples
) -> None:
    report = in_float32.report
    assert (report.rows, report.batch, report.metric, report.threads) == (40, 16, "accuracy", 1)
    assert report.before.score == report.after.score == 0.9
    assert report.same_answers == 1.0
    assert (report.before.bytes, report.after.bytes) == (len(lenet_file[0]), len(in_float32.data))
    assert report.size_ratio == len(in_float32.data) / len(lenet_file[0])
    assert report.after.operations is not None and report.after.operations <= (report.before.operations or 0)
    assert min(report.before.milliseconds, report.after.milliseconds) > 0
    told = json.loads(json.dumps(report.to_json()))
    assert told["size_ratio"] == report.size_ratio and told["after"]["score"] == 0.9
    assert {line[0] for line in report.rows_of_table()} >= {"size", "accuracy", "same answers"}


def test_int8_is_small_and_answers_the_same(in_int8: Exported, examples: Examples) -> None:
    report = in_int8.report
    assert report.size_ratio <= 0.3
    assert report.calibrated == 40
    assert report.same_answers is not None and report.same_answers >= 0.95
    assert report.after.operations is None  # integer operations are not counted as floating point
    assert report.parity.cosine >= 0.99
    # What it costs to compute with a byte is seen, and not passed over.
    assert report.agreement.largest > 0


def test_int8_sees_features_of_any_unit_as_the_model_scales_them() -> None:
    """A column of thousands beside one of thousandths: had the scaling gone into the weights, one range of 256 levels
    would have to hold both.
    """
    units, weights = np.array([1e3, 1.0, 1e-3], np.float32), rows(3, 4, seed=2)
    graph = trace_named(
        lambda given: {"y": (given["x"] / as_array(units)) @ as_array(weights)}, {"x": TensorSpec((8, 3), "float32")}
    )
    made = export(graph, quick(precision="int8"), examples=Examples(inputs={"x": rows(64, 3) * units}))
    assert made.report.parity.euclidean > 0.98


def test_int8_without_rows_measures_in_every_call(
    lenet_file: tuple[bytes, dict[str, NDArray]], examples: Examples
) -> None:
    made = export(lenet_file[0], quick(precision="int8-dynamic"), examples=examples)
    operators = made.report.after.operators
    assert operators["MatMulInteger"] == operators["DynamicQuantizeLinear"] == 3
    assert operators["Conv"] == 2, "convolutions stay in float32"
    assert made.report.size_ratio < 0.35 and made.report.calibrated == 0 and made.report.after.operations is None
    assert made.report.same_answers is not None and made.report.same_answers >= 0.95


def test_a_row_behind_those_of_the_reference_counts_too() -> None:
    """A number far outside what calibration saw, which comes after the rows that NumPy computes."""
    data, _ = plan_file(nn.Linear(3, 2), 8, 3)
    x = rows(80, 3)
    x[70] = 1e6
    ordinary, options = Examples(inputs={"batch/x": x[:64]}), quick(precision="int8")
    export(data, options, examples=ordinary)
    with pytest.raises(GraphRefused, match="is another model") as refused:
        export(data, options, examples=Examples(inputs={"batch/x": x}), calibration=ordinary)
    assert refused.value.reason == "export_differs"


def test_float16_halves_the_file_and_keeps_its_ends(lenet_file: tuple[bytes, dict[str, NDArray]]) -> None:
    made = export(lenet_file[0], quick(precision="float16"))
    assert 0.48 < made.report.size_ratio < 0.52
    assert made.report.rows == 0 and made.report.metric is None
    model = onnx.load_from_string(made.data)
    ends = {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    assert ends == {TensorProto.FLOAT}
    assert {tensor.data_type for tensor in model.graph.initializer} == {TensorProto.FLOAT16, TensorProto.INT64}
    assert made.report.parity.cosine > 0.9999


def test_a_bare_runtime_runs_what_our_own_runtime_and_the_reference_run(in_float32: Exported) -> None:
    """``infer_bare`` is a process of its own; were coterie in it, it would have raised."""
    x = rows(16, 1, 28, 28, seed=5)
    bare = infer_bare(in_float32.data, {"batch/x": x})
    np.testing.assert_allclose(
        bare["output"], Executable(in_float32.data).run({"batch/x": x})["output"], rtol=1e-5, atol=1e-6
    )


def test_an_exported_file_can_be_exported_again(in_float32: Exported) -> None:
    again = export(in_float32.data, quick())
    assert again.report.after.operators == in_float32.report.after.operators
    assert again.report.agreement.largest == 0
    assert len(again.data) == len(in_float32.data)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_loops_stay_for_providers_that_run_them(precision: str) -> None:
    cell = nn.GRU(4, 4, False)
    weights = {name: as_array(value) for name, value in cell.init(0).items()}
    graph = trace_named(lambda given: {"y": cell(weights, given["x"])}, {"x": TensorSpec((2, 5, 4), "float32")})
    made = export(graph, quick(target="cpu", precision=precision))
    assert made.report.after.operators["Scan"] == 1
    assert made.report.parity.largest < 0.01


def test_a_weight_that_a_loop_reads_too_has_one_name_in_both_places() -> None:
    w = rows(4, 4)

    def fn(x: Array) -> Array:
        total, _ = scan(lambda carry, row: (carry + row @ as_array(w).T, row), x[0], x)
        return total @ as_array(w).T

    graph = trace_named(lambda given: {"y": fn(given["x"])}, {"x": TensorSpec((3, 2, 4), "float32")})
    data = to_onnx(optimise_for_inference(graph), name="loop", target="cpu")
    named = name_weights(data, graph, {"w": w})
    model = onnx.load_from_string(named)
    inside = next(node for node in model.graph.node if node.op_type == "Scan").attribute
    read = [name for held in inside for node in held.g.node for name in node.input]
    assert "w" in read and "w" in [tensor.name for tensor in model.graph.initializer]
    x = rows(3, 2, 4, seed=1)
    np.testing.assert_array_equal(Executable(named).run({"x": x})["y"], Executable(data).run({"x": x})["y"])
    carried = next(held.g.input[0].name for held in inside if held.g.input)
    assert name_weights(data, graph, {carried: w}) == data, "what a loop calls its own is no name for a weight"


def test_a_graph_of_ones_own_is_exported_without_a_file() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    weights = {name: as_array(value) for name, value in net.init(0).items()}
    graph = trace_named(lambda given: {"y": net(weights, given["x"])}, {"x": TensorSpec((4, 3), "float32")})
    x, y = rows(10, 3), rows(10, 1, seed=1)
    made = export(graph, quick(), examples=Examples(inputs={"x": x}, labels=y))
    told = np.concatenate([interpret(graph, {"x": np.resize(x[at : at + 4], (4, 3))})["y"] for at in (0, 4, 8)])[:10]
    assert made.report.metric == "mean_squared_error"
    assert made.report.after.score == pytest.approx(float(np.mean((told - y) ** 2)), rel=1e-4)
    assert made.report.same_answers is None


@pytest.mark.parametrize("last", ["probability", "logit"])
def test_a_binary_model_is_scored_by_what_its_number_is(last: str) -> None:
    """A probability of 0.4 says class 0, a logit of 0.4 class 1."""
    w, x = rows(3, 1), rows(40, 3, seed=1)

    def answer(given: GraphInputs) -> dict[str, Array]:
        logits = given["x"] @ as_array(w)
        return {"y": cnp.reshape(ops.sigmoid(logits) if last == "probability" else logits, (4,))}

    graph = trace_named(answer, {"x": TensorSpec((4, 3), "float32")})
    labels = (x @ w > 0)[:, 0].astype(np.int64)
    assert 0 < labels.mean() < 1
    report = export(graph, quick(), examples=Examples(inputs={"x": x}, labels=labels)).report
    assert (report.metric, report.before.score, report.after.score) == ("accuracy", 1.0, 1.0)


def test_a_file_that_is_another_model_is_refused(lenet_file: tuple[bytes, dict[str, NDArray]]) -> None:
    strict = Thresholds(cosine=1.0, euclidean=1.0, largest=0.0)
    settings = QuantSettings(activations=None, weight_bits=2)
    with pytest.raises(GraphRefused, match="is another model: its cosine similarity") as refused:
        export(lenet_file[0], quick(precision="int8", quantisation=settings, parity=strict))
    assert refused.value.reason == "export_differs"


def test_a_file_is_written_whole_or_not_at_all(in_float32: Exported, tmp_path: Path) -> None:
    written = in_float32.save(tmp_path / "made" / "model.onnx")
    assert written.read_bytes() == in_float32.data
    (tmp_path / "file").write_text("here", encoding="utf-8")
    with pytest.raises(StorageError, match="cannot be written"):
        in_float32.save(tmp_path / "file" / "model.onnx")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "made", "model.onnx"]
