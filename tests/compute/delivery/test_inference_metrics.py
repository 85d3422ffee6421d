"""What an inference costs, measured in a process of its own; power is told only where there is a counter."""

import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from coterie.compute.nn import zoo
from coterie.compute.runtime.inference_metrics import NOT_MEASURED, inference_metrics
from coterie.compute.training.cost import inference_file
from coterie.errors import GraphRefused, InputError

EVERYTHING = {"self_contained", "stock_operators", "finite", "repeatable"}


@pytest.mark.capability("G14")
def test_the_report_has_latency_memory_size_and_safety_and_no_invented_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "intel-rapl:0" / "energy_uj"
    file.parent.mkdir()
    file.write_text("7\n")

    def refused(path: Path, mode: int) -> bool:
        return False

    # Since 2020 only root may read the counters, and one that may not be read is none.
    monkeypatch.setattr("coterie.compute.runtime.inference_metrics.access", refused)
    entry = zoo.entry("images", "fedavg_cnn")
    model, feeds = inference_file(entry.build(), entry.inputs, batch=4)
    found = inference_metrics(model, feeds, runs=20, counters=tmp_path)
    assert found.size_bytes == len(model) and found.runs == 20 and found.load_ms > 0
    ordered = [found.latency_ms[name] for name in ("least", "p50", "p90", "p99", "most")]
    assert ordered == sorted(ordered) and ordered[0] > 0
    assert found.examples_per_s == pytest.approx(4 / found.latency_ms["p50"] * 1e3)
    # Its 6.6 MB of weights are in memory, and the runtime itself is not counted.
    assert found.memory_bytes is not None and 6e6 < found.memory_bytes < 200e6
    assert found.safety == dict.fromkeys(EVERYTHING, True)
    said = found.to_json()
    assert said["power_w"] == NOT_MEASURED == "not measured" and json.loads(json.dumps(said)) == said


@pytest.mark.capability("G14")
def test_power_is_told_where_a_counter_can_be_read(tmp_path: Path) -> None:
    """Counters of two processors, each moved on by a thread at 5 W; a part of a processor is not counted twice."""
    rate = 5e6
    files = [tmp_path / f"intel-rapl:{number}" / "energy_uj" for number in (0, 1)]
    part = tmp_path / "intel-rapl:0:0" / "energy_uj"
    for file in (*files, part):
        file.parent.mkdir()
        file.write_text("0\n")
    stop = threading.Event()

    def run() -> None:
        start = time.perf_counter()
        while not stop.wait(0.001):
            for file in files:
                partial = file.with_suffix(".new")
                partial.write_text(f"{int((time.perf_counter() - start) * rate)}\n")
                partial.replace(file)

    clock = threading.Thread(target=run)
    clock.start()
    try:
        model, feeds = inference_file(zoo.mlp((64, 512, 512, 10)), zoo.Input((64,)), batch=256)
        found = inference_metrics(model, feeds, runs=150, counters=tmp_path)
    finally:
        stop.set()
        clock.join()
    assert found.power_w == pytest.approx(10, rel=0.5)
    assert found.to_json()["power_w"] == found.power_w


def _logarithm(domain: str = "") -> bytes:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Log", ["x"], ["y"])], "g",
        [value("x", TensorProto.FLOAT, [2])], [value("y", TensorProto.FLOAT, [2])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


@pytest.mark.capability("G14")
def test_what_is_not_safe_is_said() -> None:
    x = {"x": np.array([1, -1], np.float32)}
    assert inference_metrics(_logarithm(), x, runs=1).safety == {**dict.fromkeys(EVERYTHING, True), "finite": False}
    foreign = inference_metrics(_logarithm("com.example"), {"x": np.ones(2, np.float32)}, runs=1)
    assert foreign.safety["stock_operators"] is False and foreign.safety["finite"] is True


def test_what_cannot_be_measured_is_refused_by_name() -> None:
    model, feeds = inference_file(zoo.mlp((4, 3)), zoo.Input((4,)))
    with pytest.raises(InputError, match="at least one run, thread and input, got 0, 1, 1"):
        inference_metrics(model, feeds, runs=0)
    with pytest.raises(InputError, match="got 1, 1, 0"):
        inference_metrics(model, {}, runs=1)
    with pytest.raises(GraphRefused, match="not an ONNX graph"):
        inference_metrics(b"\xff", feeds)
    with pytest.raises(GraphRefused, match="does not run the file") as refused:
        inference_metrics(model, {"x": np.zeros((1, 9), np.float32)}, runs=1)
    assert refused.value.reason == "bare_runtime"
    outside = ModelProto.FromString(model)
    outside.graph.initializer[0].data_location = TensorProto.EXTERNAL
    outside.graph.initializer[0].external_data.add(key="location", value="absent.bin")
    with pytest.raises(GraphRefused):
        inference_metrics(outside.SerializeToString(), feeds, runs=1)
