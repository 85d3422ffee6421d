"""A plan whose stages fail one after the other: one by what a row holds, a later one for everybody, since no runtime
loads it. The order of the two would answer a question about rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from liar import devices, lying_coordinator, refusals
from onnx import TensorProto, helper, numpy_helper
from sdk_kit import experiment
from test_lies_nonfinite import ASKED, POLICY, SUMS_ALONE, held

from coterie.aggregation.compiling.compile import CompiledPlan, compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.plan.bundle import Plan
from coterie.client_sdk.control import submission
from coterie.client_sdk.device.spending import PrivacyLedger
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.privacy import LocalLevel, Privacy
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.secure_aggregation import SecureAggregation

Nodes = Callable[[str], Sequence[onnx.NodeProto]]


@dataclass(frozen=True)
class Case:
    """privacy, secure: what is promised. policy: of the devices. count: how many take part."""

    privacy: Privacy | None
    secure: SecureAggregation | bool
    policy: str
    count: int


CASES = {
    "noise of the device": Case(
        LocalLevel(mechanism="gaussian", epsilon=4.0, delta=1e-5, clip=0.5), secure=False, policy=POLICY, count=2
    ),
    "masks alone": Case(
        None, SecureAggregation(norm=1.0, corrupt=0.2, dropout=0.2, mode="consistent"), policy=SUMS_ALONE, count=5
    ),
}


def spliced(data: bytes, output: str, nodes: Nodes, constants: dict[str, Any]) -> bytes:
    """A graph in which nodes make an output of what it was before."""
    model: Any = onnx.load_from_string(data)
    before = f"{output}/before"
    for node in model.graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                if name == output:
                    names[place] = before
    model.graph.node.extend(nodes(before))
    model.graph.initializer.extend(numpy_helper.from_array(np.array(value), name) for name, value in constants.items())
    return model.SerializeToString()


def crafted(made: CompiledPlan) -> CompiledPlan:
    """The plan with a look-up in `train` that fails where the asked feature is not zero, and with a `finish` that needs
    a kernel which ONNX Runtime's CPU provider has not: Erf of float64.
    """
    manifest, graphs = made.plan.manifest, dict(made.plan.graphs)
    train, finish = manifest.stage("train"), manifest.stage("finish")
    rows = next(tensor.name for tensor in train.inputs if (tensor.source, tensor.key) == ("batch", "x"))
    total = next(tensor.name for tensor in train.outputs if tensor.dtype == "float32" and tensor.shape == (1,))
    upload = finish.outputs[0].name

    def looked_up(before: str) -> Sequence[onnx.NodeProto]:
        return (
            helper.make_node("Slice", [rows, "from", "to", "axis"], ["column"]),
            helper.make_node("ReduceMax", ["column"], ["greatest"], axes=[0], keepdims=0),
            helper.make_node("Cast", ["greatest"], ["place"], to=TensorProto.INT64),
            helper.make_node("Gather", ["table", "place"], ["found"]),
            helper.make_node("Add", [before, "found"], [total]),
        )

    def unloadable(before: str) -> Sequence[onnx.NodeProto]:
        return (
            helper.make_node("Cast", [before], ["wide"], to=TensorProto.DOUBLE),
            helper.make_node("Erf", ["wide"], ["error"]),
            helper.make_node("Cast", ["error"], [upload], to=TensorProto.FLOAT),
        )

    places = {name: np.array([at], np.int64) for name, at in (("from", ASKED), ("to", ASKED + 1), ("axis", 1))}
    graphs["train"] = spliced(graphs["train"], total, looked_up, {**places, "table": np.zeros(2, np.float32)})
    graphs["finish"] = spliced(graphs["finish"], upload, unloadable, {})
    stages = tuple(
        replace(stage, sha256=sha256_hex(graphs[stage.name]), size=len(graphs[stage.name])) for stage in manifest.stages
    )
    return replace(made, plan=Plan(replace(manifest, stages=stages), graphs))


@pytest.mark.parametrize("name", CASES)
def test_a_plan_of_which_a_late_stage_does_not_load_is_refused_with_such_rows_and_without(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]

    def compiled(wanted: Experiment) -> CompiledPlan:
        return crafted(compile_plan(wanted))

    monkeypatch.setattr(submission, "compile_plan", compiled)
    policy = RoundPolicy(rounds=1, cohort=case.count, weight_cap=1, evaluate_every=0)
    asked = experiment("own", rounds=policy, privacy=case.privacy, secure_aggregation=case.secure)
    data = [held(True), *[held(False)] * (case.count - 1)]
    with lying_coordinator(tmp_path) as lying:
        _, token = lying.submit(asked)
        with devices(lying, token, tmp_path, count=case.count, policy=case.policy, data=data, wanted=1) as running:
            told = [set(refusals(device.events(10))) for device in running]
        sent = [path for _, path, _ in lying.liar.heard if path.endswith(("/update", "/secure/keys"))]
    assert told == [{"graph_refused"}] * case.count
    assert sent == []
    ledgers = [PrivacyLedger(tmp_path / f"device-{number}" / "state" / "ledger.db") for number in range(case.count)]
    assert [ledger.total(1e-5).releases for ledger in ledgers] == [0] * case.count
