"""Quantisation after training: files that run in integers, say the same, and are small."""

import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, checker, helper, numpy_helper

from coterie.compute import nn
from coterie.compute.ir import NDArray
from coterie.compute.quant import (
    QuantSettings,
    observe,
    observed,
    quantise,
    quantise_at,
    quantise_dynamic,
    ranges_of,
    report,
)
from coterie.compute.quant import writer as writing
from coterie.compute.quant.reporting import operators_run
from coterie.errors import CoterieError, GraphRefused, InputError
from tests.compute.quant.graphs import exported, small_cnn, stripes

# Settings → by how much outputs may move, relative to the largest; what then runs in integers.
CASES: dict[str, tuple[QuantSettings, float, bool]] = {
    "default": (QuantSettings(), 0.05, True),
    "whole tensors": (QuantSettings(per_channel=False), 0.08, True),
    "symmetric activations": (QuantSettings(activations="symmetric"), 0.08, True),
    "asymmetric weights": (QuantSettings(weights="asymmetric"), 0.05, True),
    "percentile": (QuantSettings(calibration="percentile"), 0.1, True),
    "divergence": (QuantSettings(calibration="kl"), 0.15, True),
    "seven bits": (QuantSettings(weight_bits=7), 0.08, True),
    "weights alone": (QuantSettings(activations=None), 0.05, False),
    "six bits": (QuantSettings(weight_bits=6, activation_bits=6), 0.2, False),
}


def run(model: bytes, x: NDArray, optimised: bool = True) -> NDArray:
    runtime = cast(Any, onnxruntime)
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    levels = runtime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (name,) = [put.name for put in session.get_inputs()]
    size = session.get_inputs()[0].shape[0]
    return np.concatenate([session.run(None, {name: x[i : i + size]})[0] for i in range(0, len(x), size)])


@pytest.mark.capability("G9")
@pytest.mark.parametrize(("case", "rows"), [("default", 1), *((case, 100) for case in CASES)])
def test_a_file_in_levels_says_what_the_float_file_says(case: str, rows: int) -> None:
    chosen, most, integers = CASES[case]
    model, _, _ = small_cnn(rows)
    test = stripes(600, 2)
    after = quantise(model, [{"x": test["x"]}], chosen)
    assert after == quantise(model, [{"x": test["x"]}], chosen), "the same bytes"
    cast(Any, checker).check_model(after, full_check=True)
    plain, levels = run(model, test["x"]), run(after, test["x"])
    assert np.abs(levels - plain).max() <= most * np.abs(plain).max()
    accuracy = [float((outputs.argmax(1) == test["y"]).mean()) for outputs in (plain, levels)]
    assert accuracy[0] > 0.9 and accuracy[1] >= accuracy[0] - 0.015
    graphs = [ModelProto.FromString(file).graph for file in (model, after)]
    ends = [[(end.name, end.type) for end in (*graph.input, *graph.output)] for graph in graphs]
    assert ends[0] == ends[1], "inputs and outputs stay"
    counts = operators_run(after)
    if integers:
        assert (counts["QLinearConv"], counts["QGemm"]) == (2, 2), counts
    else:
        assert not counts["QLinearConv"] + counts["QGemm"], counts


@pytest.mark.capability("G9")
def test_an_int8_lenet_is_small_and_loses_little_on_real_digits(data_dir: Path) -> None:
    from coterie.compute import optim
    from coterie.compute.nn.zoo import lenet
    from coterie.compute.training import Trainer

    with np.load(data_dir / "mnist.npz") as files:
        train, test = (
            {
                "x": (files[f"x_{part}"][:count, None] / 255).astype(np.float32),
                "y": files[f"y_{part}"][:count].astype(np.int32),
            }
            for part, count in (("train", 3000), ("test", 1000))
        )
    trainer = Trainer(lenet(), nn.losses.softmax_cross_entropy, optim.adam(0.002), batch_size=32)
    trainer.fit(train, epochs=2)
    model = exported(lenet(), trainer.params, (1, 1, 28, 28))
    after = quantise(model, [{"x": train["x"][:300]}])
    told = report(model, after, {"x": test["x"]}, test["y"], calls=20)
    assert told.before.score > 0.9
    assert told.size_ratio <= 0.3 and told.score_loss <= 0.005 and told.agreement >= 0.99
    assert (told.after.integer, told.after.float) == (5, 0)
    asymmetric = quantise(model, [{"x": train["x"][:300]}], QuantSettings(weights="asymmetric"))
    shared = report(model, asymmetric, {"x": test["x"]}, test["y"], calls=1)
    assert shared.size_ratio <= 0.3 and shared.score_loss <= 0.005 and shared.agreement >= 0.99
    assert (shared.after.integer, shared.after.float) == (5, 0)


def stays(proto: ModelProto, tensor: str, quantised: set[int]) -> tuple[int, ...]:
    return ()


def test_levels_before_what_passes_numbers_on_are_levels_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moving levels up to where the numbers are made is exact: same bits, in a runtime that joins nothing."""
    model, calibration, _ = small_cnn()
    x = stripes(100, 5)["x"]
    for chosen in (QuantSettings(), QuantSettings(activations="symmetric")):
        moved = quantise(model, [{"x": calibration}], chosen)
        with monkeypatch.context() as patch:
            patch.setattr(writing, "above", stays)
            left = quantise(model, [{"x": calibration}], chosen)
        assert moved != left
        np.testing.assert_array_equal(run(moved, x, optimised=False), run(left, x, optimised=False))


def test_the_runtimes_own_quantiser_comes_to_the_same(tmp_path: Path) -> None:
    """An oracle: ONNX Runtime's static quantiser, on the same rows by the same method, is as near to the float file."""
    from onnxruntime import quantization  # pyright: ignore[reportMissingTypeStubs]

    tools = cast(Any, quantization)
    model, calibration, _ = small_cnn()
    test = stripes(600, 2)

    class Rows(tools.CalibrationDataReader):
        def __init__(self) -> None:
            self.rows = iter(calibration)

        def get_next(self) -> dict[str, NDArray] | None:
            row = next(self.rows, None)
            return None if row is None else {"x": row[None]}

    source, target = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    source.write_bytes(model)
    tools.shape_inference.quant_pre_process(str(source), str(source), skip_symbolic_shape=True)
    tools.quantize_static(str(source), str(target), Rows(), per_channel=True, weight_type=tools.QuantType.QInt8)
    plain = run(model, test["x"])
    mine, theirs = run(quantise(model, [{"x": calibration}]), test["x"]), run(target.read_bytes(), test["x"])
    errors = [float(np.sqrt(np.square(outputs - plain).mean())) for outputs in (mine, theirs)]
    assert errors[0] <= errors[1] * 1.1, errors
    assert (mine.argmax(1) == theirs.argmax(1)).mean() > 0.97


@pytest.mark.parametrize("name", ["mlp_13", "cnn_20", "gru_17", "transformer_17", "transformer_18_dynamo", "sk_mlp_18"])
def test_files_of_other_exporters_are_quantised_too(name: str) -> None:
    from tests.compute.importer.foreign_models import FIXTURES, MODELS, runtime

    model = (FIXTURES / f"{name}.onnx").read_bytes()
    drawn = MODELS[name].draw(np.random.default_rng(1), 4)
    (feed,) = [value.name for value in ModelProto.FromString(model).graph.input]
    plain = runtime(model, drawn)
    for after in (quantise(model, [{feed: drawn}]), quantise_dynamic(model)):
        levels = runtime(after, drawn)
        for output, value in plain.items():
            if value.dtype.kind == "f":
                assert np.abs(levels[output] - value).max() <= 0.03 * np.abs(value).max() + 1e-6, output


def residual() -> bytes:
    """x → two convolutions beside a third, added, then another: what a residual network is made of."""
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.normal(0, 0.4, (3, 3, 1, 1)).astype(np.float32) for i in range(4)}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w1"], ["c"]),
        helper.make_node("Conv", ["x", "w2"], ["d"]),
        helper.make_node("Add", ["c", "d"], ["e"]),
        helper.make_node("Relu", ["e"], ["f"]),
        helper.make_node("Conv", ["f", "w3"], ["g"]),
        helper.make_node("Add", ["g", "f"], ["y"]),
    ]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 3, 6, 6)) for name in "xy"]
    graph = helper.make_graph(
        nodes, "residual", info[:1], info[1:], [numpy_helper.from_array(value, key) for key, value in weights.items()]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def test_a_sum_is_quantised_where_an_integer_kernel_reads_it() -> None:
    model, x = residual(), np.random.default_rng(1).normal(size=(20, 3, 6, 6)).astype(np.float32)
    assert observed(model) == ("x", "b", "c", "d", "f", "g"), "inputs, and what the last convolution makes"
    after = quantise(model, [{"x": x}])
    assert np.abs(run(after, x) - run(model, x)).max() < 0.04 * np.abs(run(model, x)).max()
    counts = operators_run(after)
    assert (counts["QLinearConv"], counts["QLinearAdd"]) == (4, 1), "the last sum is read by nobody in integers"


def test_a_convolution_before_a_float_operator_runs_in_integers_too() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten())
    x = stripes(50, 3)["x"]
    plain = exported(model, model.init(0), (50, 1, 8, 8))
    assert len(observed(plain)) == 4, "two inputs and two results"
    after = quantise(plain, [{"x": x}])
    assert operators_run(after)["QLinearConv"] == 2 and operators_run(after)["QuantizeLinear"] == 2
    assert np.abs(run(after, x) - run(plain, x)).max() < 0.05 * np.abs(run(plain, x)).max()
    known = ranges_of(observe(plain, [{"x": x}]), QuantSettings())
    del known[observed(plain)[-1]]
    assert operators_run(quantise_at(plain, known))["QLinearConv"] == 1, "without its range one stays in floats"


def test_steps_of_a_recurrent_network_share_one_weight_in_levels() -> None:
    model = nn.Sequential(nn.GRU(8, 16), nn.Linear(16, 3))
    x = np.random.default_rng(0).normal(size=(40, 6, 8)).astype(np.float32)
    plain = exported(model, model.init(0), (1, 6, 8))
    after = quantise(plain, [{"x": x}])
    assert np.abs(run(after, x) - run(plain, x)).max() < 0.05 * np.abs(run(plain, x)).max()
    assert operators_run(after)["QGemm"] == 2 * 6 + 3 and not operators_run(after)["Gemm"]
    sizes = [tuple(tensor.dims) for tensor in ModelProto.FromString(after).graph.initializer if tensor.data_type == 3]
    assert len([shape for shape in sizes if len(shape) == 2]) == 5, "each weight stands in the file once"


def test_a_channel_of_tiny_weights_under_a_large_bias_keeps_its_bias() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    weight = np.array([[1, -2, 0.5, 3], [1e-12, 0, 0, 0], [0, 0, 0, 0]], np.float32)
    params = {"0.weight": weight, "0.bias": np.array([0.5, 40.0, -7.0], np.float32)}
    x = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    after = quantise(exported(model, params, (1, 4)), [{"x": x}])
    np.testing.assert_allclose(run(after, x)[:, 1:], np.tile([40.0, -7.0], (50, 1)), rtol=1e-4)


def test_what_cannot_be_quantised_is_refused_by_name() -> None:
    model, calibration, _ = small_cnn()
    after = quantise(model, [{"x": calibration}])
    cases: list[tuple[bytes, str]] = [
        (b"\x08\x01nothing", "not an ONNX graph"),
        (after, "QuantizeLinear .* it is quantised already"),
        (_with_opset(model, 12), "opset 12"),
        (_in_float16(model), "'.*' is FLOAT16"),
        (_with_a_choice(model), "If .*, a graph of its own inside"),
        (exported(nn.Sequential(nn.ReLU()), {}, (1, 1, 8, 8)), "no operator that can be quantised"),
    ]
    for file, named in cases:
        with pytest.raises(GraphRefused, match=named):
            quantise(file, [{"x": calibration}])
    with pytest.raises(InputError, match="range of the activation '.*' is not known"):
        quantise_at(model, {"x": (0.0, 1.0)})
    with pytest.raises(InputError, match="two finite numbers"):
        quantise_at(model, dict.fromkeys(observed(model), (0.0, float("inf"))))
    with pytest.raises(GraphRefused, match="no matrix product"):
        quantise_dynamic(residual())


def test_stacks_of_matrices_are_left_out_where_each_channel_has_a_scale() -> None:
    rng = np.random.default_rng(3)
    stack, flat = (rng.normal(size=size).astype(np.float32) for size in ((3, 6, 6), (6, 5)))
    x = rng.normal(size=(2, 3, 4, 6)).astype(np.float32)
    both, alone = _products(stack, flat), _products(stack)
    for model, per_channel in ((both, True), (both, False), (alone, False)):
        expected = run(model, x)
        found = run(quantise_dynamic(model, per_channel=per_channel), x)
        assert 0 < np.abs(found - expected).max() < 0.05 * np.abs(expected).max()
    with pytest.raises(GraphRefused, match="stacks of matrices") as caught:
        quantise_dynamic(alone)
    assert "--per-tensor" in str(caught.value.hint)


def _products(*weights: NDArray) -> bytes:
    """A file that multiplies x by the weights, one after another; its nodes have no names."""
    names = ["x", *(f"y{index}" for index in range(len(weights)))]
    nodes = [helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]]) for i in range(len(weights))]
    held = [numpy_helper.from_array(weight, f"w{i}") for i, weight in enumerate(weights)]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3, 4, size])
        for name, size in (("x", 6), (names[-1], weights[-1].shape[-1]))
    ]
    graph = helper.make_graph(nodes, "products", ends[:1], ends[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def _with_opset(model: bytes, opset: int) -> bytes:
    proto = ModelProto.FromString(model)
    proto.opset_import[0].version = opset
    return proto.SerializeToString()


def _in_float16(model: bytes) -> bytes:
    proto = ModelProto.FromString(model)
    for tensor in proto.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    return proto.SerializeToString()


def _with_a_choice(model: bytes) -> bytes:
    proto = ModelProto.FromString(model)
    branch = helper.make_graph([], "branch", [], [])
    proto.graph.node.append(helper.make_node("If", ["x"], ["never"], then_branch=branch, else_branch=branch))
    return proto.SerializeToString()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"weights": "both"}, "weights"),
        ({"activations": "none"}, "activations"),
        ({"calibration": "entropy"}, "calibration"),
        ({"weight_bits": 9}, "weight_bits"),
        ({"activation_bits": True}, "activation_bits"),
        ({"percentile": 50}, "percentile"),
    ],
)
def test_settings_that_do_not_exist_are_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        QuantSettings(**fields)


def test_a_file_with_a_name_that_is_no_text_is_refused() -> None:
    model, calibration, _ = small_cnn()
    name = ModelProto.FromString(model).graph.node[-1].name.encode()
    with pytest.raises(GraphRefused, match="a name in it is not UTF-8"):
        quantise(model.replace(name, b"\x80" + name[1:]), [{"x": calibration[:2]}])


@settings(max_examples=60)
@given(data=st.data())
def test_damaged_files_are_refused_and_never_crash(data: st.DataObject) -> None:
    model, calibration, _ = small_cnn()
    damaged = bytearray(model)
    for place, value in data.draw(st.lists(st.tuples(st.integers(0, len(model) - 1), st.integers(0, 255)), max_size=4)):
        damaged[place] = value
    if data.draw(st.integers(0, 4)) == 0:
        del damaged[data.draw(st.integers(0, len(damaged))) :]
    try:
        quantise(bytes(damaged), [{"x": calibration[:2]}])
    except CoterieError as error:
        assert not re.search(r"Traceback|object at 0x", str(error))
