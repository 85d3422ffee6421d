"""Variants of a plan's steps for classes of providers: written, proved at compile, and refused by name."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from plan_kit import KEY, PlanParts

from coterie import errors
from coterie.aggregation.compiling import variants as writing
from coterie.aggregation.compiling.agreement import check_variants
from coterie.aggregation.compiling.compile import CompiledPlan, compile_plan
from coterie.aggregation.compiling.sample_rows import sample_rows
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.plan.bundle import load
from coterie.aggregation.plan.check import check_plan
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.plan.needs import Needs
from coterie.aggregation.plan.strategies import strategies
from coterie.compute import nn
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.ir import Graph
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.zoo import gru
from coterie.compute.onnx.providers import ProviderClass
from coterie.compute.optim import sgd
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.privacy import ExampleLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label

LENGTH, WORDS = 6, 8
KINDS: tuple[ProviderClass, ...] = get_args(ProviderClass)
SCHEMA = DataSchema(
    (Feature(name="x", dtype="int32", shape=(LENGTH,), low=0, high=WORDS - 1),),
    Label(name="y", shape=(LENGTH,), low=0, high=WORDS - 1),
)


def looped(**changes: Any) -> Experiment:
    """A recurrent model whose steps are a loop."""
    base = Experiment(
        name="looped",
        model=gru(WORDS, 4, unroll=False),
        schema=SCHEMA,
        loss=softmax_cross_entropy,
        optimizer=sgd(0.1),
        batch_size=4,
        rounds=RoundPolicy(rounds=1, cohort=1, min_updates=1),
    )
    return replace(base, **changes)


@pytest.fixture(scope="module")
def compiled() -> CompiledPlan:
    return compile_plan(looped(variants=KINDS))


@pytest.fixture
def parts(compiled: CompiledPlan) -> PlanParts:
    plan = compiled.plan.sign(KEY)
    return PlanParts(json.loads(plan.manifest.data), dict(plan.graphs), plan.signature, plan.signer, (KEY.public,))


def operators(data: bytes) -> set[str]:
    return {node.op_type for node in onnx.load_from_string(data).graph.node}


def test_a_plan_keeps_its_portable_file_and_has_one_more_for_each_class(compiled: CompiledPlan) -> None:
    portable, plan = compile_plan(looped()), compiled.plan
    assert {name: plan.graphs[name] for name in portable.plan.graphs} == portable.plan.graphs
    assert [file.name for file in plan.manifest.stage("train").files] == ["train", *(f"train.{k}" for k in KINDS)]
    assert plan.graphs.keys() - portable.plan.graphs.keys() == {f"train.{kind}" for kind in KINDS}
    # Loops stay loops where the target runs them.
    assert [kind for kind in KINDS if "Scan" in operators(plan.graphs[f"train.{kind}"])] == ["cpu", "gpu"]
    assert len(plan.graphs["train.cpu"]) < len(plan.graphs["train"]) / 2
    assert not {"Log", "Where", "Equal", "Gather"} & operators(plan.graphs["train.npu"])
    assert compile_plan(looped(variants=KINDS)).plan.id == plan.id
    assert Needs.of(plan.manifest) == Needs.of(portable.plan.manifest)
    assert strategies(plan.manifest)[-1]["parameters"]["train.gpu"] == plan.manifest.stage("train").variants[1].sha256


def test_a_variant_that_is_the_portable_file_is_not_carried(make_experiment: Any) -> None:
    plain = make_experiment()
    assert compile_plan(replace(plain, variants=("cpu", "gpu"))).plan.id == compile_plan(plain).plan.id


def test_whole_plans_and_those_without_some_variants_are_accepted(parts: PlanParts, tmp_path: Path) -> None:
    whole = parts.check()
    whole.save(tmp_path)
    bundle = load(tmp_path)
    assert bundle.graphs == parts.graphs and (tmp_path / "train.gpu.onnx").is_file()
    for kind in KINDS:
        del parts.graphs[f"train.{kind}"]
        parts.check()
    assert check_plan(
        bundle.manifest,
        bundle.graphs,
        signature=bundle.signature,
        signer=bundle.signer,
        allowed_signers=[KEY.public],
    ) == whole  # fmt: skip


def another_signature(parts: PlanParts) -> None:
    swap(parts, "gpu", parts.graphs["eval"])


def an_input_less(parts: PlanParts) -> None:
    model = onnx.load_from_string(parts.graphs["train.gpu"])
    model.graph.output.pop()
    swap(parts, "gpu", model.SerializeToString())


def loops_for_the_web(parts: PlanParts) -> None:
    swap(parts, "web", parts.graphs["train.gpu"])


def swap(parts: PlanParts, kind: str, data: bytes) -> None:
    parts.graphs[f"train.{kind}"] = data
    row = next(row for row in parts.stage("train")["variants"] if row["kind"] == kind)
    row.update(sha256=sha256_hex(data), size=len(data))


def other_bytes(parts: PlanParts) -> None:
    parts.graphs["train.gpu"] = parts.graphs["train.gpu"] + b"\0"


def other_size(parts: PlanParts) -> None:
    parts.stage("train")["variants"][0]["size"] += 1


def no_portable_file(parts: PlanParts) -> None:
    del parts.graphs["train"]


def a_file_of_no_variant(parts: PlanParts) -> None:
    parts.graphs["eval.gpu"] = parts.graphs["eval"]


def variants_of_what_runs_once(parts: PlanParts) -> None:
    parts.stage("finish")["variants"] = parts.stage("train")["variants"]


def two_of_a_class(parts: PlanParts) -> None:
    parts.stage("train")["variants"].append(parts.stage("train")["variants"][0])


def a_class_that_there_is_not(parts: PlanParts) -> None:
    parts.stage("train")["variants"][0]["kind"] = "tpu"


def an_empty_list(parts: PlanParts) -> None:
    parts.stage("eval")["variants"] = []


REFUSED: list[tuple[Callable[[PlanParts], None], str, str]] = [
    (another_signature, "interface", "inputs of the graph of 'train.gpu'"),
    (an_input_less, "interface", "outputs of the graph of 'train.gpu'"),
    (loops_for_the_web, "graph", "'train.web'.*not in the portable subset of its class"),
    (other_bytes, "digest", "'train.gpu' is not the file"),
    (other_size, "digest", "'train.cpu' is not the file"),
    (no_portable_file, "files", "'train' is absent"),
    (a_file_of_no_variant, "files", "'eval.gpu'"),
    (variants_of_what_runs_once, "stages", "'finish' cannot have variants"),
    (two_of_a_class, "stages", "two variants for one class"),
    (a_class_that_there_is_not, "manifest", "kind"),
    (an_empty_list, "manifest", "/stages/3/variants: leave it out"),
]


@pytest.mark.parametrize(("spoil", "code", "message"), REFUSED, ids=[each[0].__name__ for each in REFUSED])
def test_a_plan_with_a_bad_variant_is_refused(
    parts: PlanParts, spoil: Callable[[PlanParts], None], code: str, message: str
) -> None:
    spoil(parts)
    parts.sign()
    with pytest.raises(errors.PlanRefused, match=message) as caught:
        parts.check()
    assert caught.value.reason == f"plan_{code}", caught.value.message


def halved(data: bytes) -> bytes:
    """The same graph with one of its numbers halved: the same interface, other steps."""
    model = onnx.load_from_string(data)
    numbers = (t for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT)
    tensor = next(t for t in numbers if np.abs(numpy_helper.to_array(t)).max() > 0)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(0.5), tensor.name))
    return model.SerializeToString()


def test_a_variant_that_disagrees_with_its_siblings_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    right = writing.write_variant

    def wrong(name: str, graph: Graph, kind: ProviderClass) -> bytes:
        data = right(name, graph, kind)
        return halved(data) if kind == "gpu" else data

    monkeypatch.setattr(writing, "write_variant", wrong)
    with pytest.raises(errors.ExperimentError, match="'train.gpu' of plan 'looped' does not give the update") as caught:
        compile_plan(looped(variants=("cpu", "gpu")))
    assert caught.value.reason == "variant_disagrees" and "Leave 'gpu' out" in (caught.value.hint or "")
    assert compile_plan(looped(variants=("cpu",))).plan.manifest.stage("train").variants[0].kind == "cpu"


def test_the_check_can_be_asked_for(compiled: CompiledPlan) -> None:
    check_variants(compiled.plan, compiled.initial, compiled.frozen)
    spoilt = {**compiled.plan.graphs, "train.web": halved(compiled.plan.graphs["train.web"])}
    with pytest.raises(errors.ExperimentError, match="'train.web'"):
        check_variants(replace(compiled.plan, graphs=spoilt), compiled.initial, compiled.frozen)


class Waves(nn.Module):
    """A layer that no NPU of the list runs."""

    layer = nn.Linear(4, 3)

    def specs(self) -> Any:
        return self.layer.specs()

    def __call__(self, params: Any, x: Array, mode: nn.Mode = nn.EVAL) -> Any:
        return self.layer(params, xp.sin(x), mode)


def test_a_class_that_cannot_run_the_model_is_refused_with_the_line(make_experiment: Any) -> None:
    waves = make_experiment(model=Waves())
    with pytest.raises(errors.ExperimentError, match=r"test_variants\.py:\d+.*npu lacks the operator Sin") as caught:
        compile_plan(replace(waves, variants=("npu",)))
    assert caught.value.reason == "variant_unwritable"
    compile_plan(replace(waves, variants=("gpu",)))


@pytest.mark.parametrize("wrong", [("tpu",), ("cpu", "cpu"), (1,), "cpu"])
def test_variants_must_be_classes_each_once(wrong: Any) -> None:
    with pytest.raises(errors.ExperimentError, match="variants must"):
        looped(variants=wrong)


def test_private_steps_have_no_variants(make_experiment: Any) -> None:
    private = make_experiment(
        privacy=ExampleLevel(clip=0.7, delta=1e-5, noise_multiplier=0.9, rows=50),
        rounds=RoundPolicy(rounds=1, cohort=1, min_updates=1, weight_cap=1, evaluate_every=0),
    )
    with pytest.raises(errors.ExperimentError, match="without ExampleLevel privacy"):
        replace(private, variants=("gpu",))
    plan = compile_plan(private).plan.sign(KEY)
    parts = PlanParts(json.loads(plan.manifest.data), dict(plan.graphs), None, None, (KEY.public,))
    row = parts.stage("train")
    row["variants"] = [{"kind": "gpu", "sha256": row["sha256"], "size": row["size"]}]
    parts.sign()
    with pytest.raises(errors.PlanRefused, match="variant may let a gradient") as caught:
        parts.check()
    assert caught.value.reason == "plan_private"


COLUMNS = (
    Feature(name="wide", low=-1e12, high=1e12),
    Feature(name="near", shape=(3,), low=100.0, high=200.0),
    Feature(name="pixel", dtype="uint8", shape=(2, 2)),
    Feature(name="id", dtype="int32", low=5, high=9),
    Feature(name="small", dtype="int8", shape=(3,), low=-1_000, high=1_000),
    Feature(name="short", dtype="int16", low=30_000, scale=1e-4),
    Feature(name="word", dtype="int32", columns=("word",), vocabulary=("a", "b")),
    Feature(name="free", offset=10.0, scale=0.5),
)
LABELS = (
    Label(name="y", classes=("no", "yes")),
    Label(name="y", low=-3, high=-1),
    Label(name="y", dtype="float32", low=0.0, high=1.0),
    Label(name="y", dtype="float32", shape=(2, 5)),
    Label(name="y", constant=4),
)


@pytest.mark.parametrize("label", LABELS)
def test_made_up_rows_are_rows_of_the_schema(label: Label) -> None:
    schema = DataSchema(COLUMNS, label)
    rows = sample_rows(schema, 50, np.random.default_rng(0))
    bare = replace(label, classes=None, low=0, high=1) if label.classes else label
    for feature in (replace(f, vocabulary=None, columns=(), low=0, high=2) if f.vocabulary else f for f in COLUMNS):
        column = rows[feature.name]
        assert column.shape == (50, *feature.shape) and column.dtype == feature.dtype
        assert np.isfinite(column).all() and (feature.low is None or column.min() >= feature.low)
        assert feature.high is None or column.max() <= feature.high
    y = rows["y"]
    assert y.shape == (50, *bare.shape) and y.dtype == bare.dtype
    assert (bare.low is None or y.min() >= bare.low) and (bare.high is None or y.max() <= bare.high)
    assert (y == 4).all() if label.constant else len(np.unique(y)) > 1


def test_a_manifest_without_variants_is_as_it_was(compiled: CompiledPlan) -> None:
    bare = replace(compiled.plan.manifest, stages=tuple(replace(s, variants=()) for s in compiled.plan.manifest.stages))
    assert b"variants" not in bare.data and bare.id == compile_plan(looped()).plan.id
    assert Manifest.from_bytes(compiled.plan.manifest.data) == compiled.plan.manifest
