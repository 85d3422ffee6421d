"""`coterie export`: what its words mean, what it prints, how it refuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from coterie.cli import main
from coterie.cli.export_rows import from_columns
from coterie.cli.failures import BAD_INPUT, OK, USAGE
from coterie.compute import nn
from coterie.compute.array import as_array
from coterie.compute.bundle import read_bundle, verify
from coterie.compute.ir import NDArray
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.trace import TensorSpec, trace_named
from coterie.errors import DataError

NET = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, as a simulation leaves it, and rows that it answers right but for one."""
    monkeypatch.chdir(tmp_path)
    weights = {name: as_array(value) for name, value in NET.init(0).items()}
    graph = trace_named(lambda given: {"output": NET(weights, given["batch/x"])}, {"batch/x": TensorSpec((2, 4))})
    place = tmp_path / ".coterie" / "simulations" / "machines"
    place.mkdir(parents=True)
    (place / "infer.onnx").write_bytes(to_onnx(graph, name="infer"))
    x = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    y = np.asarray(NET(weights, as_array(x)).numpy()).argmax(axis=1)
    y[0] = (y[0] + 1) % 3
    np.savez(tmp_path / "rows.npz", x=x, y=y)
    lines = [
        "a,b,c,d,state",
        *(",".join(f"{n:.8f}" for n in row) + f",{label}" for row, label in zip(x, y, strict=True)),
    ]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = OK) -> list[dict[str, Any]]:
    """The JSON lines of a command."""
    found = main.run(["export", *words, "--repeats", "2", "--json"])
    out = capsys.readouterr()
    assert found == code, out.err
    return [json.loads(line) for line in out.out.splitlines()]


@pytest.mark.parametrize(
    "model", ["machines", ".coterie/simulations/machines", ".coterie/simulations/machines/infer.onnx"]
)
def test_a_model_is_a_file_a_folder_or_a_simulation(
    folder: Path, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    (event,) = told(capsys, model, "--out", "made/model.onnx")
    assert (event["event"], event["model"], event["path"]) == ("exported", model, "made/model.onnx")
    assert event["report"]["after"]["operators"] == {"Gemm": 2, "Relu": 1}
    assert onnx.load_from_string((folder / "made" / "model.onnx").read_bytes()).graph.input[0].name == "batch/x"


def test_rows_give_a_score_and_calibrate_int8(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (event,) = told(capsys, "machines", "--precision", "int8", "--data", "rows.npz", "--calibration", "percentile")
    report = event["report"]
    assert (report["metric"], report["rows"], report["calibrated"]) == ("accuracy", 10, 10)
    assert report["before"]["score"] == 0.9
    assert report["after"]["operators"]["QuantizeLinear"] > 0
    assert (folder / "model.onnx").stat().st_size == report["after"]["bytes"]


@pytest.mark.capability("G19")
def test_g19_a_bundle_holds_the_file_and_checks_that_it_passes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("machines", "--precision", "int8", "--data", "rows.npz", "--bundle", "made/model.zip")
    (event,) = told(capsys, *words)
    bundle = read_bundle(folder / event["bundle"])
    assert bundle.model == (folder / "model.onnx").read_bytes()
    assert bundle.table and verify(bundle).passed
    spoilt = replace(bundle, outputs={name: -value for name, value in bundle.outputs.items()})
    assert not verify(spoilt).passed


def test_int8_that_measures_in_every_call_needs_no_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (event,) = told(capsys, "machines", "--precision", "int8-dynamic", "--per-tensor", "--bundle", "made/model.zip")
    assert event["report"]["after"]["operators"]["MatMulInteger"] == 2
    bundle = read_bundle(folder / event["bundle"])
    assert bundle.table == () and verify(bundle).passed


def test_a_model_of_one_input_takes_the_columns_side_by_side(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (event,) = told(capsys, "machines", "--data", "rows.csv", "--label", "state")
    assert event["report"]["after"]["score"] == 0.9


def test_people_read_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["export", "machines", "--repeats", "2"]) == OK
    out = capsys.readouterr().out
    for word in ("measured", "before", "after", "median of one batch of 2", "cosine similarity", "random numbers"):
        assert word in out


@pytest.mark.parametrize(
    ("words", "code", "reason", "word"),
    [
        (("nowhere.onnx",), BAD_INPUT, "file_unusable", "nowhere.onnx"),
        (("machines", "--precision", "int8"), BAD_INPUT, "calibration_missing", "--data"),
        (("machines", "--size", "batch"), USAGE, "usage", "NAME=N"),
        (("machines", "--precision", "int4"), USAGE, "usage", "int4"),
        (("machines", "--out", "."), BAD_INPUT, "file_unusable", "folder"),
        (("machines", "--data", "rows.npz", "--label", "z"), BAD_INPUT, "data_missing", "'z'"),
        (("machines", "--data", "rows.csv"), BAD_INPUT, "data_shape", "--label"),
        (("machines", "--size", "batch=2"), BAD_INPUT, "export_size", "'batch'"),
        ((".",), BAD_INPUT, "file_unusable", "no infer.onnx"),
        (("else",), BAD_INPUT, "file_unusable", "simulations here: machines"),
        (("machines", "--out", "rows", "--bundle", "./rows"), BAD_INPUT, "file_unusable", "two files"),
        (("machines", "--out", "/dev/null"), BAD_INPUT, "file_unusable", "device"),
        (("machines", "--label", "y"), USAGE, "usage", "--data"),
        (("machines", "--experiment", "nowhere.py"), USAGE, "usage", "--data"),
        (("machines", "--calibration-data", "rows.npz"), USAGE, "usage", "--precision int8"),
        (("machines", "--weights", "asymmetric"), USAGE, "usage", "--precision int8"),
        (("machines", "--per-tensor"), USAGE, "usage", "--precision int8"),
        (("machines", "--precision", "int8-dynamic", "--calibration", "kl"), USAGE, "usage", "--precision int8"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, reason: str, word: str
) -> None:
    (event,) = told(capsys, *words, code=code)
    assert event["code"] == reason
    assert word in f"{event['message']} {event['hint']}"
    assert not (folder / "model.onnx").exists()


def test_the_model_that_is_read_is_never_written_over(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Though ``model.onnx`` is where an export goes when nothing else is said."""
    file = folder / ".coterie" / "simulations" / "machines" / "infer.onnx"
    (folder / "model.onnx").write_bytes(file.read_bytes())
    for words in (("model.onnx",), ("machines", "--out", str(file)), ("machines", "--bundle", str(file))):
        (event,) = told(capsys, *words, code=BAD_INPUT)
        assert (event["code"], "is the model itself" in event["message"]) == ("file_unusable", True)
    assert (folder / "model.onnx").read_bytes() == file.read_bytes()


def test_rows_to_calibrate_on_need_no_label(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "unlabelled.csv").write_text("a,b,c,d\n0.5,1,-1,0\n1,0,2,-2\n", encoding="utf-8")
    words = ("--data", "rows.csv", "--label", "state", "--calibration-data")
    for name, rows in (("unlabelled.csv", 2), ("rows.csv", 10)):
        (event,) = told(capsys, "machines", "--precision", "int8", *words, name)
        assert (event["report"]["calibrated"], event["report"]["metric"]) == (rows, "accuracy")


def _saved(folder: Path, **arrays: NDArray) -> Path:
    np.savez(folder / "some.npz", **arrays)  # pyright: ignore[reportArgumentType]  its stub forgets keywords
    return folder / "some.npz"


def test_columns_go_to_the_inputs_of_their_name(tmp_path: Path) -> None:
    path = _saved(tmp_path, left=np.ones((3, 2)), right=np.zeros((3, 2)), label=np.array([0.0, 1.0, 2.0]))
    made = from_columns(path, ["batch/left", "right"], None)
    assert set(made.inputs) == {"batch/left", "right"}
    assert made.labels is not None and made.labels.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(DataError, match="no column for the model's input 'up'"):
        from_columns(path, ["up", "right"], None)


def test_text_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "text.csv"
    path.write_text("a,b,state\n1,2,idle\n3,4,worn\n", encoding="utf-8")
    with pytest.raises(DataError, match="the label 'state' is text") as refused:
        from_columns(path, ["x"], "state")
    assert "--experiment" in (refused.value.hint or "")
    with pytest.raises(DataError, match="column 'state' is text"):
        from_columns(path, ["x"], None)


def test_a_simulation_that_was_meant_by_name_is_named_by_its_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An experiment on a coordinator may have the same name, so which one was read is said."""
    (event,) = told(capsys, "machines")
    assert event["source"] == ".coterie/simulations/machines/infer.onnx"
    assert main.run(["export", "machines", "--repeats", "2"]) == OK
    assert "The model is .coterie/simulations/machines/infer.onnx." in capsys.readouterr().out
