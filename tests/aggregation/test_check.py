"""A tampered plan is refused with the reason, whatever part was touched."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from plan_kit import KEY, WRONG, Change, PlanParts, drop_output, moved

from coterie import errors
from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.horizontal import IFCA, FedProx
from coterie.aggregation.plan.bundle import Plan, load
from coterie.aggregation.plan.check import PlanLimits, check_manifest, check_plan
from coterie.aggregation.plan.manifest import Manifest
from coterie.compute.nn import Dropout, Linear, ReLU, Sequential
from coterie.compute.onnx.checker import GraphLimits
from coterie.compute.optim import sgd
from coterie.protocol.signing import SigningKey

STRANGER = SigningKey.from_seed(bytes([1]) * 32)


@pytest.fixture(scope="module")
def plan(make_experiment: Any) -> Plan:
    model = Sequential(Linear(4, 8), ReLU(), Dropout(0.5), Linear(8, 3))
    experiment = make_experiment(model=model, optimizer=sgd(0.1, momentum=0.9), algorithm=FedProx())
    return compile_plan(experiment).plan.sign(KEY)


@pytest.fixture
def parts(plan: Plan) -> PlanParts:
    return PlanParts(json.loads(plan.manifest.data), dict(plan.graphs), plan.signature, plan.signer, (KEY.public,))


def assert_refused(parts: PlanParts, code: str, message: str = ".", limits: PlanLimits | None = None) -> None:
    """That checking these parts raises, with this code and such a message."""
    with pytest.raises(errors.PlanRefused, match=message) as caught:
        parts.check(limits)
    assert caught.value.reason == f"plan_{code}", caught.value.message


def test_the_untouched_plan_is_accepted(parts: PlanParts, plan: Plan) -> None:
    assert parts.check() == plan


FIELDS = [
    "format", "name", "shape", "schema", "layout", "frozen", "client_state", "sections", "codecs",
    "broadcast", "metrics", "hyper", "training", "algorithm", "optimizer", "stages",
]  # fmt: skip


def test_the_list_of_fields_is_whole(parts: PlanParts) -> None:
    assert sorted(FIELDS) == sorted(parts.manifest)


def touched(value: Any) -> Any:
    """A value of the same kind that is not the same."""
    match value:
        case dict():
            fields: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
            first = next(iter(fields), None)
            return {"another": 1.0} if first is None else fields | {first: touched(fields[first])}
        case list():
            items: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
            return [*items[:-1], touched(items[-1])] if items else [{"name": "another", "shape": [1]}]
        case str():
            return "external" if value == "horizontal" else value + "x"
        case None:
            return {"layout": {"tensors": [{"name": "n", "shape": [1]}]}, "sha256": "0" * 64}
        case _:
            return value + 1


@pytest.mark.parametrize("field", FIELDS)
def test_each_field_is_under_the_signature(parts: PlanParts, field: str) -> None:
    parts.manifest[field] = touched(parts.manifest[field])
    with pytest.raises(errors.PlanRefused) as caught:
        parts.check()
    assert caught.value.reason in ("plan_signature", "plan_manifest")


@pytest.mark.parametrize("field", FIELDS)
def test_each_field_must_be_there_and_of_its_type(parts: PlanParts, field: str) -> None:
    parts.manifest[field] = object.__name__ if not isinstance(parts.manifest[field], str) else 7
    parts.sign()
    assert_refused(parts, "manifest", field)
    del parts.manifest[field]
    parts.sign()
    assert_refused(parts, "manifest", field)


@pytest.mark.parametrize("name", ["begin", "train", "finish", "eval", "infer"])
def test_each_byte_of_each_graph_is_under_the_signature(parts: PlanParts, name: str) -> None:
    data = parts.graphs[name]
    for at in (0, len(data) // 2, len(data) - 1):
        parts.graphs[name] = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert_refused(parts, "digest", name)
    parts.graphs[name] = data + b"\0"
    assert_refused(parts, "digest", name)
    del parts.graphs[name]
    assert_refused(parts, "files", name)


def test_a_graph_that_nobody_named_is_refused(parts: PlanParts) -> None:
    parts.graphs["extra"] = b"x"
    assert_refused(parts, "files", "extra")


@pytest.mark.parametrize("name", ["begin", "train", "finish", "eval", "infer"])
def test_a_horizontal_plan_needs_all_its_stages(parts: PlanParts, name: str) -> None:
    parts.drop(name)
    parts.sign()
    assert_refused(parts, "stages", name)


def test_a_stage_of_another_shape_is_refused(parts: PlanParts) -> None:
    parts.stage("infer")["name"] = "spy"
    parts.graphs["spy"] = parts.graphs.pop("infer")
    parts.sign()
    assert_refused(parts, "stages", "no stage 'spy'")


def test_an_external_plan_has_no_stages(parts: PlanParts) -> None:
    parts.manifest["shape"] = "external"
    parts.sign()
    assert_refused(parts, "stages", "no stage 'begin'")


def test_names_of_tensors_mean_nothing(plan: Plan) -> None:
    """Sources and destinations are stated: outputs of other names lead to the same places."""
    manifest = plan.manifest
    renamed = {
        stage.name: {tensor.name: f"out{number}" for number, tensor in enumerate(stage.outputs)}
        for stage in manifest.stages
    }
    stages = tuple(
        replace(stage, outputs=tuple(replace(t, name=renamed[stage.name][t.name]) for t in stage.outputs))
        for stage in manifest.stages
    )
    check_manifest(replace(manifest, stages=stages))


def test_signer_and_signature(parts: PlanParts) -> None:
    signature = parts.signature
    parts.signature = None
    assert_refused(parts, "signer", "not signed")
    parts.sign(STRANGER)
    assert_refused(parts, "signer", "not among the 1 allowed")
    parts.signer = KEY.public
    assert_refused(parts, "signature")
    parts.signature, parts.allowed = signature, ()
    assert_refused(parts, "signer")
    parts.allowed, parts.signature = (KEY.public,), "AA=="
    assert_refused(parts, "signature")


def test_a_manifest_has_one_form(parts: PlanParts) -> None:
    loose = json.dumps(parts.manifest, indent=1).encode()
    with pytest.raises(errors.PlanRefused, match="canonical"):
        Manifest.from_bytes(loose)
    for data in (b"", b"[]", b"{}", b"\xff", parts.data[:-1], b'{"a":1,"a":1}'):
        with pytest.raises(errors.PlanRefused) as caught:
            Manifest.from_bytes(data)
        assert caught.value.reason == "plan_manifest"
    parts.manifest["surplus"] = 1
    assert_refused(parts, "manifest", "surplus")


def rename(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "Erf"


def domain(model: onnx.ModelProto) -> None:
    model.graph.node[0].domain = "com.example"


def external(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.append(onnx.StringStringEntryProto(key="location", value="/etc/passwd"))


def another_output(model: onnx.ModelProto) -> None:
    model.graph.output.append(model.graph.input[0])


def another_input(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info("hyper/secret", onnx.TensorProto.FLOAT, [1]))


HOSTILE_GRAPHS: dict[str, tuple[Callable[[onnx.ModelProto], None], str]] = {
    "operator": (rename, "graph"),
    "domain": (domain, "graph"),
    "external data": (external, "graph"),
    "surplus output": (another_output, "interface"),
    "surplus input": (another_input, "interface"),
}


@pytest.mark.parametrize("kind", sorted(HOSTILE_GRAPHS))
def test_a_signed_but_hostile_graph_is_refused(parts: PlanParts, kind: str) -> None:
    change, code = HOSTILE_GRAPHS[kind]
    parts.graph("train", change)
    parts.sign()
    assert_refused(parts, code, "train")


def test_bytes_that_are_no_graph_are_refused(parts: PlanParts) -> None:
    parts.replace("infer", b"not onnx")
    parts.sign()
    assert_refused(parts, "graph", "infer")


@pytest.mark.parametrize("kind", sorted(WRONG))
def test_a_signed_manifest_that_does_not_fit_together_is_refused(parts: PlanParts, kind: str) -> None:
    change, code, message = WRONG[kind]
    change(parts)
    parts.sign()
    assert_refused(parts, code, message)


@pytest.fixture(scope="module")
def probing(make_experiment: Any) -> Plan:
    return compile_plan(make_experiment(algorithm=IFCA(2))).plan.sign(KEY)


def without_probe(parts: PlanParts) -> None:
    parts.drop("probe")


WRONG_PROBES: dict[str, tuple[Change, str]] = {
    "a sum that nobody makes": (drop_output("probe", "probe/loss1"), "leaves the probe 'loss1'"),
    "a sum of another name": (moved("begin", "probe/loss0", key="loss9"), "leaves the probe 'loss9'"),
    "a sum of another shape": (moved("finish", "probe/loss0", shape=[2]), r"is float32\[2\]"),
    "a probe of the device's state": (moved("probe", "base/0/0.weight", source="client_state"), "does not have"),
    "a step that reads it": (moved("train", "hyper/lr", source="probe"), "does not have"),
    "an inference that reads it": (moved("infer", "base/0/0.weight", source="probe"), "does not have"),
    "no probe": (without_probe, "leaves the probe 'loss0'"),
}


@pytest.mark.parametrize("kind", sorted(WRONG_PROBES))
def test_a_probe_that_does_not_fit_is_refused(probing: Plan, kind: str) -> None:
    change, message = WRONG_PROBES[kind]
    parts = PlanParts(
        json.loads(probing.manifest.data), dict(probing.graphs), probing.signature, probing.signer, (KEY.public,)
    )
    assert parts.check() == probing
    change(parts)
    parts.sign()
    assert_refused(parts, "wiring", message)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (PlanLimits(manifest_bytes=100), "manifest"),
        (PlanLimits(parameters=10), "parameters"),
        (PlanLimits(graph=GraphLimits(graph_bytes=200)), "exceeds"),
    ],
)
def test_limits_are_kept(parts: PlanParts, limits: PlanLimits, message: str) -> None:
    assert_refused(parts, "size", message, limits)


def test_a_plan_survives_its_folder(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan")
    found = load(tmp_path / "plan")
    again = check_plan(
        found.manifest, found.graphs, signature=found.signature, signer=found.signer, allowed_signers={KEY.public}
    )
    assert again == plan
    (tmp_path / "plan" / "train.onnx").write_bytes(bytes(plan.manifest.stage("train").size + 1))
    with pytest.raises(errors.PlanRefused, match="more than"):
        load(tmp_path / "plan")
    (tmp_path / "plan" / "train.onnx").unlink()
    with pytest.raises(errors.PlanRefused, match="cannot be read"):
        load(tmp_path / "plan")


def test_a_broken_signature_file_is_refused_by_name(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path)
    (tmp_path / "signature.json").write_bytes(b"{")
    with pytest.raises(errors.PlanRefused, match="signature.json is unreadable: Malformed JSON"):
        load(tmp_path)


def test_a_plan_that_cannot_be_saved_says_where(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "plan").write_bytes(b"a file where the folder should be")
    with pytest.raises(errors.StorageError, match=str(tmp_path / "plan")):
        plan.save(tmp_path / "plan")


def test_an_unsigned_plan_has_no_signature_file(plan: Plan, tmp_path: Path) -> None:
    Plan(plan.manifest, plan.graphs).save(tmp_path)
    assert load(tmp_path).signature is None


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to every value inside a JSON value."""
    match value:
        case dict():
            items: list[tuple[Any, Any]] = list(value.items())  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
        case list():
            items = list(enumerate(value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case _:
            items = []
    return [path, *(inner for key, item in items for inner in places(item, (*path, key)))]


JUNK: list[Any] = [
    None, True, -1, 0, 1, 2**53 - 1, 0.5, 1e308, "", "x", "n" * 300, "\ud7ff\x00", [], {}, [[1]], {"a": []}, "next/x",
]  # fmt: skip


@settings(max_examples=400)
@given(data=st.data())
def test_whatever_a_manifest_says_the_answer_is_a_plan_or_a_refusal(plan: Plan, data: st.DataObject) -> None:
    manifest = json.loads(plan.manifest.data)
    for _ in range(data.draw(st.integers(1, 2))):
        *path, last = data.draw(st.sampled_from(places(manifest)[1:]))
        inner = manifest
        for key in path:
            inner = inner[key]
        # A copy: the next change may reach into it.
        inner[last] = copy.deepcopy(data.draw(st.sampled_from(JUNK)))
    parts = PlanParts(manifest, dict(plan.graphs), None, None, (KEY.public,))
    parts.sign()
    try:
        parts.check()
    except errors.PlanRefused as error:
        assert error.reason.startswith("plan_") and error.message
