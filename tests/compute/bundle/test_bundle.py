"""Bundles: what they hold is what was written, checks are held, and converted forms must give the answers."""

import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from coterie.compute.bundle import (
    Bundle,
    Converter,
    QuantisedTensor,
    convert,
    file,
    load_converters,
    make_bundle,
    quantisation_table,
    read_bundle,
    verify,
    write_bundle,
)
from coterie.compute.bundle.bundle import FLOAT, QUANTISED
from coterie.compute.export.comparison import Thresholds
from coterie.compute.nn import zoo
from coterie.compute.quant.ptq import quantise
from coterie.compute.quant.settings import QuantSettings
from coterie.compute.runtime.executable import Executable
from coterie.compute.training.cost import inference_file
from coterie.errors import ConfigurationError, CoterieError, GraphRefused, InputError, StorageError

Arrays = Mapping[str, NDArray[Any]]


def float_file() -> tuple[bytes, dict[str, NDArray[Any]]]:
    return inference_file(zoo.mlp((6, 16, 4)), zoo.Input((6,)), batch=8)


@pytest.fixture(scope="module")
def quantised() -> tuple[bytes, bytes, dict[str, NDArray[Any]]]:
    """The float file, the int8 file made of it, and a batch."""
    model, feeds = float_file()
    return model, quantise(model, [feeds], QuantSettings()), feeds


@pytest.fixture(scope="module")
def bundle(quantised: tuple[bytes, bytes, dict[str, NDArray[Any]]]) -> Bundle:
    model, small, feeds = quantised
    return make_bundle(small, feeds, reference=model)


@pytest.fixture
def same_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files run here: a process of its own for each is what tests/compute/export holds, and takes a second."""

    def run(model: bytes, feeds: Arrays) -> Arrays:
        return Executable(model).run(feeds)

    monkeypatch.setattr("coterie.compute.bundle.bundle.infer_bare", run)
    monkeypatch.setattr("coterie.compute.bundle.verification.infer_bare", run)


@pytest.mark.capability("G19")
def test_a_quantised_model_is_verified_against_the_float_model_that_it_was(
    bundle: Bundle, quantised: tuple[bytes, bytes, dict[str, NDArray[Any]]]
) -> None:
    model, _, feeds = quantised
    (answer,) = Executable(model).run(feeds).values()
    np.testing.assert_allclose(bundle.outputs["output"], answer, rtol=1e-6)
    found = verify(bundle)
    assert found.passed and bundle.thresholds == QUANTISED
    close = found.similarities["output"]
    # int8 is near, but not equal; so a stricter bundle fails, and says by how much.
    assert 0.99 < close.cosine < 1 and 0.9 < close.euclidean < 1
    strict = verify(replace(bundle, thresholds=Thresholds(cosine=1.0, euclidean=0.9999)), Executable(bundle.model).run)
    assert not strict.passed and "euclidean similarity 0.99" in strict.misses[0]


@pytest.mark.capability("G19")
@pytest.mark.usefixtures("same_process")
def test_another_model_in_the_bundle_is_noticed(bundle: Bundle) -> None:
    other, _ = inference_file(zoo.mlp((6, 16, 4)), zoo.Input((6,)), batch=8, seed=5)
    found = verify(replace(bundle, model=other))
    assert not found.passed
    assert found.misses[0] == "the quantisation table is not that of the model" and "similarity" in found.misses[1]


@pytest.mark.usefixtures("same_process")
def test_the_thresholds_are_those_of_the_chip_compilers() -> None:
    """tpu-mlir's defaults for int8; a float model must be closer."""
    assert (QUANTISED.cosine, QUANTISED.euclidean) == (0.90, 0.55)
    model, feeds = float_file()
    plain = make_bundle(model, feeds)
    assert plain.table == () and plain.thresholds == FLOAT and verify(plain, Executable(model).run).passed


@pytest.mark.capability("G19")
def test_the_table_says_how_every_tensor_is_held(quantised: tuple[bytes, bytes, dict[str, NDArray[Any]]]) -> None:
    _, small, _ = quantised
    table = quantisation_table(small)
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in ModelProto.FromString(small).graph.initializer}
    stored = [row for row in table if row.tensor in held]
    assert {held[row.tensor].dtype.name for row in stored} >= {"int8"} and len(stored) < len(table)
    for row in table:
        assert len(row.scale) == len(row.zero_point) and all(scale > 0 for scale in row.scale)
        if row.tensor in held:
            assert row.dtype == held[row.tensor].dtype.name
            assert row.axis is None or len(row.scale) == held[row.tensor].shape[row.axis]
        assert QuantisedTensor.from_json(json.loads(json.dumps(row.to_json()))) == row


def _pair(**changes: Any) -> bytes:
    """x → Quantize → Dequantize with one scale and zero point, written by hand."""
    numbers = {"s": np.float32(0.5), "z": np.uint8(3), **changes}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    inputs = [value("x", TensorProto.FLOAT, [2])]
    if numbers["s"] is None:
        inputs.append(value("s", TensorProto.FLOAT, []))
    held = [numpy_helper.from_array(np.asarray(array), name) for name, array in numbers.items() if array is not None]
    graph = helper.make_graph(nodes, "g", inputs, [value("y", TensorProto.FLOAT, [2])], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def test_a_table_by_hand() -> None:
    assert quantisation_table(_pair()) == (
        QuantisedTensor(tensor="x", dtype="uint8", scale=(0.5,), zero_point=(3,), axis=None),
    )


@pytest.mark.capability("G19")
def test_a_bundle_is_read_as_it_was_written(bundle: Bundle, tmp_path: Path) -> None:
    full = replace(bundle, converted={"chip-1": b"\0\1", "other.bin": b""})
    path = write_bundle(tmp_path / "made" / "model.bundle", full)
    read = read_bundle(path)
    assert (read.model, read.table, read.thresholds) == (full.model, full.table, full.thresholds)
    assert dict(read.converted) == dict(full.converted)
    for mine, theirs in ((full.inputs, read.inputs), (full.outputs, read.outputs)):
        assert list(mine) == list(theirs)
        for name in mine:
            assert mine[name].dtype == theirs[name].dtype and np.array_equal(mine[name], theirs[name])
    assert verify(read, Executable(read.model).run).passed
    assert path.read_bytes() == write_bundle(tmp_path / "again.bundle", read).read_bytes()
    assert sorted(file.name for file in path.parent.iterdir()) == ["model.bundle"]
    unlimited = write_bundle(
        tmp_path / "c", replace(bundle, thresholds=Thresholds(cosine=0.5, euclidean=0.5, largest=2))
    )
    assert read_bundle(unlimited).thresholds.largest == 2
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None and "model.onnx" in archive.namelist()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_bundle_is_refused_or_the_same(bundle: Bundle, tmp_path: Path, data: st.DataObject) -> None:
    """A byte changed, bytes cut off, a stretch repeated: never another exception, never other contents."""
    whole = write_bundle(tmp_path / "whole", bundle).read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "repeat"]))
    match kind:
        case "flip":
            broken = whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))]) + whole[place + 1 :]
        case "cut":
            broken = whole[:place]
        case _:
            broken = whole[:place] + whole[place : place + 100] + whole[place:]
    path = tmp_path / "broken"
    path.write_bytes(broken)
    try:
        read = read_bundle(path)
    except InputError as error:
        assert error.reason == "bundle_damaged"
    else:
        assert write_bundle(tmp_path / "again", read).read_bytes() == whole


def _rezipped(path: Path, bundle: Bundle, change: Callable[[dict[str, bytes]], object], **how: Any) -> Path:
    """The bundle's file with other members."""
    with zipfile.ZipFile(write_bundle(path.with_suffix(".whole"), bundle)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w", **how) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def _manifest(**changes: Any) -> Callable[[dict[str, bytes]], object]:
    def change(members: dict[str, bytes]) -> None:
        members["manifest.json"] = json.dumps({**json.loads(members["manifest.json"]), **changes}).encode()

    return change


DAMAGED: dict[str, tuple[Callable[[dict[str, bytes]], object], dict[str, Any], str]] = {
    "another form": (_manifest(format="coterie-bundle-9"), {}, "'coterie-bundle-9', not 'coterie-bundle-1'"),
    "another model": (lambda members: members.update({"model.onnx": b"x"}), {}, "model.onnx in the archive is not"),
    "a member too many": (lambda members: members.update({"../../x": b"x"}), {}, "../../x in the archive is not what"),
    "a member too few": (lambda members: members.pop("table.json"), {}, "table.json in the archive is not what"),
    "no manifest": (lambda members: members.pop("manifest.json"), {}, "no manifest.json"),
    "no digests": (_manifest(sha256=None), {}, "is not what its manifest names"),
    "a list for a manifest": (lambda members: members.update({"manifest.json": b"[]"}), {}, "'None', not"),
    "thresholds missing": (_manifest(thresholds={}), {}, "is not a bundle of the form"),
    "thresholds that are no numbers": (
        _manifest(thresholds={"cosine": nan, "euclidean": 0.5, "largest": None}), {}, "must be finite numbers"),
    "compressed": (lambda members: None, {"compression": zipfile.ZIP_DEFLATED}, "compressed"),
    "too many members": (lambda members: members.update({f"m{i}": b"" for i in range(99)}), {}, "members"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "how", "reason"), DAMAGED.values(), ids=DAMAGED)
def test_what_is_no_bundle_is_refused_by_name(
    change: Callable[[dict[str, bytes]], object], how: dict[str, Any], reason: str, bundle: Bundle, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as refused:
        read_bundle(_rezipped(tmp_path / "b", bundle, change, **how))
    assert refused.value.reason == "bundle_damaged" and reason in refused.value.message


def test_no_bundle_is_written_that_nobody_could_read(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_forms(count: int) -> Bundle:
        return replace(bundle, converted={f"chip{index}": b"form" for index in range(count)})

    path = write_bundle(tmp_path / "b", with_forms(60))
    assert len(read_bundle(path).converted) == 60
    whole = path.read_bytes()
    for limit, excess in ((None, "65 members"), ("_MOST_BYTES", "bytes"), ("_SMALL_BYTES", "manifest.json has")):
        if limit:
            monkeypatch.setattr(file, limit, 500)
        with pytest.raises(InputError, match=excess) as refused:
            write_bundle(path, with_forms(60 if limit else 61))
        assert refused.value.reason == "bundle_too_large"
        monkeypatch.undo()
    assert path.read_bytes() == whole and list(tmp_path.iterdir()) == [path]


def test_files_that_cannot_be_used(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be read"):
        read_bundle(tmp_path / "absent")
    (tmp_path / "file").write_bytes(b"not a zip")
    with pytest.raises(InputError, match="no zip archive"):
        read_bundle(tmp_path / "file")
    with pytest.raises(StorageError, match="cannot be written"):
        write_bundle(tmp_path / "file" / "below", bundle)


def chip(name: str = "chip", *, spoil: float = 0.0, rename: str = "output") -> Converter:
    """A chip that runs ONNX files itself, and adds ``spoil`` to every result."""

    def opened(data: bytes) -> Callable[[Arrays], Arrays]:
        executable = Executable(data.removeprefix(b"CHIP"))
        return lambda feeds: {rename: executable.run(feeds)["output"] + np.float32(spoil)}

    return Converter(name=name, convert=lambda model, table: b"CHIP" + model, open=opened)


def saying(value: NDArray[Any]) -> Converter:
    """A chip that gives one answer to everything."""

    def run(feeds: Arrays) -> Arrays:
        return {"output": value}

    def opened(data: bytes) -> Callable[[Arrays], Arrays]:
        return run

    return replace(chip(), open=opened)


@pytest.mark.capability("G19")
def test_a_converted_form_is_taken_only_if_it_gives_the_answers(bundle: Bundle) -> None:
    taken = convert(convert(bundle, chip("a")), chip("b"))
    assert list(taken.converted) == ["a", "b"] and taken.converted["a"] == b"CHIP" + bundle.model
    assert not bundle.converted
    with pytest.raises(InputError, match="gives other answers: output 'output': cosine similarity") as refused:
        convert(bundle, chip(spoil=5.0))
    assert refused.value.reason == "bundle_mismatch"
    with pytest.raises(InputError, match="output 'output' is absent"):
        convert(bundle, chip(rename="other"))
    with pytest.raises(InputError, match=r"is \[4\], not \[8, 4\]"):
        convert(bundle, saying(np.zeros(4, np.float32)))
    with pytest.raises(InputError, match="similarity"):
        convert(bundle, saying(np.full((8, 4), np.nan, np.float32)))


CHIP = chip("installed")
NOT_ONE = object()


@pytest.mark.capability("G19")
def test_converters_of_installed_packages_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def points(*names: str) -> None:
        found = EntryPoints(EntryPoint(name.lower(), f"{__name__}:{name}", "coterie.converters") for name in names)

        def entry_points(group: str) -> EntryPoints:
            return found.select(group=group)

        def load(point: EntryPoint) -> object:
            return globals()[point.value.partition(":")[2]]

        monkeypatch.setattr("coterie.compute.extension.plugins.entry_points", entry_points)
        monkeypatch.setattr(EntryPoint, "load", load)

    points("CHIP")
    assert load_converters() == (CHIP,)
    points("NOT_ONE")
    with pytest.raises(ConfigurationError, match="no Converter"):
        load_converters()


def _bare(outputs: Arrays, thresholds: Thresholds) -> Bundle:
    return Bundle(model=b"", table=(), inputs={}, outputs=outputs, thresholds=thresholds)


REFUSED: dict[str, tuple[Callable[[], object], type[CoterieError], str]] = {
    "no graph": (lambda: quantisation_table(b"x"), GraphRefused, "not an ONNX graph"),
    "a scale that is an input": (lambda: quantisation_table(_pair(s=None)), GraphRefused, "which is no constant"),
    "scales by blocks": (
        lambda: quantisation_table(_pair(s=np.ones((2, 2), np.float32))), GraphRefused, "shape [2, 2], by blocks"),
    "a row": (lambda: QuantisedTensor.from_json({"tensor": "x"}), InputError, "cannot be read"),
    "a converter without a name": (lambda: chip("../x"), InputError, "no name of letters"),
    "another reference": (
        lambda: make_bundle(*float_file(), reference=inference_file(zoo.mlp((6, 3)), zoo.Input((6,)), batch=8)[0]),
        InputError, "or other shapes"),
    "no answers": (lambda: _bare({}, FLOAT), InputError, "at least one answer"),
    "a threshold of NaN": (
        lambda: _bare({"y": np.zeros(1)}, Thresholds(cosine=nan, euclidean=0.5)), InputError, "must be finite numbers"),
    "a model that does not run": (lambda: make_bundle(b"x", {"x": np.zeros(1)}), GraphRefused, "not an ONNX graph"),
}  # fmt: skip


@pytest.mark.usefixtures("same_process")
@pytest.mark.parametrize(("make", "error", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_by_name(make: Callable[[], object], error: type[CoterieError], reason: str) -> None:
    with pytest.raises(error) as refused:
        make()
    assert reason in refused.value.message
