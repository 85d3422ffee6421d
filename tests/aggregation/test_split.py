"""A split network trains as the same network in one place does, and its plan is refused where roles do not fit."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from split_kit import Central, InOnePlace, batches, network, rows

from coterie import errors
from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.plan.check import check_manifest
from coterie.aggregation.plan.check_session import SessionPlan, check_session_manifest, check_session_plan
from coterie.aggregation.plan.session_manifest import RolePart, SessionManifest
from coterie.aggregation.vertical.compile import compile_split
from coterie.aggregation.vertical.split import FeatureRole, SplitNetwork
from coterie.compute import nn, optim
from coterie.compute import numpy as xp
from coterie.protocol.canonical import canonical_json
from coterie.protocol.conversion import to_json
from coterie.protocol.cut import CutPolicy, EmbeddingNoise, GradientNoise, RandomisedLabels
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label


def same_steps(split: SplitNetwork) -> tuple[InOnePlace, Central, Any]:
    """The network in its parts and in one place, with the rows that both were trained on, step by step alike."""
    here, given = InOnePlace(compile_split(split)), rows()
    here.begin()
    central = Central(split, here.state)
    for batch in batches(split, given):
        here.batch("train", batch)
        central.step(batch)
    for role, tensors in here.state.items():
        for name, value in tensors.items():
            if not name.startswith("optimizer/"):
                np.testing.assert_allclose(value, central.weights[f"{role}/{name}"], rtol=2e-5, atol=2e-6)
    return here, central, given


@pytest.mark.parametrize(
    "optimizer", [optim.sgd(0.3), optim.adam(0.05), optim.sgd(0.1, momentum=0.9)], ids=lambda o: o.name
)
def test_a_split_network_takes_the_steps_of_the_whole_one(optimizer: Any) -> None:
    split = network(optimizer=optimizer)
    here, central, given = same_steps(split)
    predicted = here.batch(
        "predict",
        {role: {name: np.resize(a, (16, *a.shape[1:])) for name, a in g.items()} for role, g in given.items()},
    )["prediction"]["output"]
    np.testing.assert_allclose(predicted, central.predict(given)[:16], rtol=2e-5, atol=2e-6)


def bare(**changes: Any) -> dict[str, Any]:
    """A clinic that has the label alone."""
    labels = network().labels
    top = nn.Sequential(nn.Tanh(), nn.Linear(6, 2))
    alone = replace(labels, schema=DataSchema((), labels.schema.label), model=None, top=top)
    return {"labels": replace(alone, **changes)}


def test_a_role_with_labels_alone_trains_the_rest_of_the_network() -> None:
    """The gradients are those of the network in one place: of a loss that the roles with features know nothing of."""
    split = network(**bare(), optimizer=optim.sgd(0.3))
    here, _, _ = same_steps(split)
    clinic = here.plan.manifest.part("clinic")
    read = {stage.name: {t.key for t in stage.from_source("batch")} for stage in clinic.stages}
    assert read == {"begin": set(), "fit": {"ill", "sample_weight"}, "eval": {"ill", "sample_weight"}, "infer": set()}
    assert here.plan.manifest.part("clinic").stages[-1].batch == 16


def test_the_bound_of_an_embedding_is_part_of_the_network() -> None:
    """Gradients go through it: the step is that of a network that bounds its embeddings."""
    split = network(cut=CutPolicy(embedding=EmbeddingNoise(clip=0.5, deviation=1.0)), optimizer=optim.sgd(0.3))
    bounded = replace(split, features=tuple(replace(part, model=Bounded(part.model)) for part in split.features))
    here, given = InOnePlace(compile_split(split)), rows()
    here.begin()
    central = Central(replace(bounded, cut=CutPolicy()), here.state)
    for batch in batches(split, given):
        here.batch("train", batch)
        central.step(batch)
    for role in ("registry", "insurer"):
        for name, value in here.state[role].items():
            if not name.startswith("optimizer/"):
                np.testing.assert_allclose(value, central.weights[f"{role}/{name}"], rtol=1e-4, atol=1e-5)


class Bounded(nn.Module):
    """A module whose vectors are no longer than a half."""

    def __init__(self, inner: nn.Module) -> None:
        self._inner = inner

    def specs(self) -> Any:
        return self._inner.specs()

    def __call__(self, params: Any, x: Any, mode: Any = nn.EVAL) -> Any:
        found = self._inner(params, x, mode)
        return found * xp.minimum(1.0, 0.5 / xp.sqrt(xp.sum(found * found, axis=1, keepdims=True)))


def test_a_cut_is_told_and_a_plan_without_one_has_the_bytes_of_before() -> None:
    assert b'"cut"' not in compile_split(network()).manifest.data
    cut = CutPolicy(
        compression="int4",
        embedding=EmbeddingNoise(clip=1.0, deviation=0.5),
        gradient=GradientNoise(kind="max_norm"),
        label=RandomisedLabels(epsilon=2.0),
    )
    manifest = compile_split(network(cut=cut)).manifest
    assert SessionManifest.from_bytes(manifest.data) == manifest and manifest.cut == cut
    told = {(d.sender, d.step, d.key): d for d in manifest.disclosures() if "registry" in (d.sender, d.recipient)}
    embedding, gradient = told["registry", "predict", "embedding"], told["clinic", "train", "gradient"]
    assert (embedding.form, embedding.size) == ("int4", 16 * 4 // 2 + 8)
    assert embedding.protection == "norm at most 1, noise 0.5"
    assert gradient.protection == "labels by randomised response, epsilon 2; max_norm noise, scale 1"


def test_a_plan_is_its_bytes_and_holds_no_weights() -> None:
    one, other = compile_split(network()), compile_split(network())
    assert one.manifest.data == other.manifest.data and one.graphs == other.graphs
    assert SessionManifest.from_bytes(one.manifest.data) == one.manifest
    drawn = [stage for part in one.manifest.parts for stage in part.stages if stage.from_source("random")]
    assert [stage.name for stage in drawn] == ["begin"] * 3
    assert not any(stage.from_source("model") for part in one.manifest.parts for stage in part.stages)


def test_a_plan_says_what_each_role_tells_the_others() -> None:
    plan = compile_split(network()).manifest
    told = [(d.step, d.sender, d.recipient, d.kind, d.numbers, d.size) for d in plan.disclosures()]
    assert ("train", "registry", "clinic", "embeddings", 4, 128) in told
    assert ("train", "clinic", "insurer", "gradients", 2, 64) in told
    assert {d.plan for d in plan.disclosures()} == {plan.id}
    assert {(d.sender, d.recipient) for d in plan.disclosures() if d.step == "predict"} == {
        ("registry", "clinic"),
        ("insurer", "clinic"),
    }


@pytest.mark.parametrize(
    ("init", "mean", "deviation"),
    [(nn.Uniform(0.5), 0.0, 0.5 / 3**0.5), (nn.Normal(2.0), 0.0, 2.0), (nn.Constant(0.25), 0.25, 0.0)],
    ids=["uniform", "normal", "constant"],
)
def test_first_weights_have_the_distribution_of_their_layer(init: Any, mean: float, deviation: float) -> None:
    model = Weighted(init)
    part = FeatureRole(role="registry", features=(Feature(name="scan", shape=(100,)),), model=model)
    labels = network().labels
    here = InOnePlace(compile_split(network(features=(part,), labels=replace(labels, top=nn.Linear(103, 2)))))
    here.begin()
    weight = here.state["registry"]["model/weight"]
    assert np.isfinite(weight).all() and abs(weight.mean() - mean) <= 4 * deviation / 100
    np.testing.assert_allclose(weight.std(), deviation, rtol=0.05)


class Weighted(nn.Module):
    """One matrix of a hundred by a hundred."""

    def __init__(self, init: Any) -> None:
        self._init = init

    def specs(self) -> dict[str, nn.ParameterSpec]:
        return {"weight": nn.ParameterSpec((100, 100), self._init)}

    def __call__(self, params: Any, x: Any, mode: Any = nn.EVAL) -> Any:
        return x @ params["weight"]


class Stacked(nn.Module):
    """What gives a matrix for each row."""

    def specs(self) -> dict[str, nn.ParameterSpec]:
        return {"weight": nn.ParameterSpec((3,), nn.Uniform(1.0))}

    def __call__(self, params: Any, x: Any, mode: Any = nn.EVAL) -> Any:
        return x[:, None, :] * params["weight"]


def _role(**changes: Any) -> dict[str, Any]:
    return {"features": (replace(network().features[0], **changes), network().features[1])}


def _wide() -> dict[str, Any]:
    """Embeddings of which one batch is more than a message may be."""
    return {
        "evaluation_batch": 1 << 20,
        **_role(model=nn.Linear(3, 35)),
        **_labels(top=nn.Linear(40, 2)),
    }


def _labels(**changes: Any) -> dict[str, Any]:
    return {"labels": replace(network().labels, **changes)}


def _labelled(**fields: Any) -> dict[str, Any]:
    schema = network().labels.schema
    return _labels(schema=DataSchema(schema.features, Label(name="ill", **fields)))


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        (_role(model=nn.Linear(4, 4)), "model_mismatch", "role 'registry'"),
        (_role(model=nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5))), "model_mismatch", "random numbers"),
        (_role(model=nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))), "model_mismatch", "running statistics"),
        (_role(model=Stacked()), "model_mismatch", "embedding"),
        (_role(role="clinic"), "split_invalid", "one name"),
        (_role(role="a/b"), "split_invalid", "lower-case"),
        (_role(role="Registry"), "split_invalid", "lower-case"),
        (_role(model="m"), "split_invalid", "module of compute.nn"),
        (_labels(schema="s"), "split_invalid", "DataSchema"),
        ({"metrics": None}, "split_invalid", "mapping"),
        (_wide(), "plan_inconsistent", "bytes for one batch"),
        (_labels(top=nn.Linear(4, 2)), "model_mismatch", "embeddings of all roles"),
        (_labels(top=nn.Linear(9, 1)), "loss_mismatch", "class 1"),
        (
            _labels(schema=DataSchema((Feature(name="blood", shape=(2,)),), Label(
                name="ill", classes=(0, 1), others="dropped"
            ))),
            "split_invalid",
            "out of step",
        ),
        ({"features": ()}, "split_invalid", "1 to 15 roles"),
        ({"features": network().labels}, "split_invalid", "tuple of FeatureRole"),
        ({"batch_size": 0}, "split_invalid", "batch_size"),
        ({"epochs": True}, "split_invalid", "epochs"),
        ({"metrics": {"loss": len}}, "split_invalid", "added by coterie"),
        ({"optimizer": "sgd"}, "split_invalid", "optim.sgd"),
        ({"name": ""}, "split_invalid", "name"),
        (bare(model=nn.Linear(2, 3)), "split_invalid", "a model if it has features"),
        (_labels(model=None), "split_invalid", "a model if it has features"),
        ({"cut": "int8"}, "split_invalid", "CutPolicy"),
        (
            {"cut": CutPolicy(label=RandomisedLabels(epsilon=1.0)), **_labelled(dtype="float32")},
            "split_invalid",
            "noise on labels needs classes",
        ),
        (
            {"cut": CutPolicy(gradient=GradientNoise(kind="marvell")), **_labelled(low=0, high=2)},
            "split_invalid",
            "two classes",
        ),
    ],
)  # fmt: skip
def test_a_network_that_cannot_be_split_is_refused(changes: dict[str, Any], code: str, says: str) -> None:
    with pytest.raises(errors.ExperimentError) as refused:
        compile_split(network(**changes))
    assert refused.value.reason == code
    assert says in f"{refused.value.message} {refused.value.hint}"


def _stage(part: RolePart, name: str, **changes: Any) -> RolePart:
    stages = tuple(replace(stage, **changes) if stage.name == name else stage for stage in part.stages)
    return replace(part, stages=stages)


def _output(part: RolePart, name: str, **changes: Any) -> RolePart:
    (stage,) = (stage for stage in part.stages if stage.name == name)
    return _stage(part, name, outputs=(replace(stage.outputs[0], **changes), *stage.outputs[1:]))


def _message_input(part: RolePart, name: str, **changes: Any) -> RolePart:
    (stage,) = (stage for stage in part.stages if stage.name == name)
    inputs = tuple(replace(t, **changes) if t.source == "message" else t for t in stage.inputs)
    return _stage(part, name, inputs=inputs)


def _dropping(part: RolePart) -> RolePart:
    """A clinic that leaves out rows."""
    return replace(part, schema=replace(part.schema, label=replace(part.schema.label, others="dropped")))


def _valued(part: RolePart) -> RolePart:
    """A clinic whose label is a number."""
    return replace(part, schema=replace(part.schema, label=Label(name="ill")))


def _waiting(part: RolePart) -> RolePart:
    """A registry that wants the gradient before it sends the embedding."""
    (embed,) = (stage for stage in part.stages if stage.name == "embed")
    (descend,) = (stage for stage in part.stages if stage.name == "descend")
    (back,) = descend.from_source("message")
    return _stage(part, "embed", inputs=(*embed.inputs, back))


Change = Callable[[RolePart, RolePart, RolePart], tuple[RolePart, ...]]
"""The parts of clinic, registry and insurer → spoiled ones."""


def _registry(change: Callable[[RolePart], RolePart]) -> Change:
    return lambda clinic, registry, insurer: (clinic, change(registry), insurer)


# (what is spoiled, code, words of the message)
SPOILED: tuple[tuple[Change, str, str], ...] = (
    (lambda clinic, registry, insurer: (clinic, registry), "plan_wiring", "has nothing named"),
    (lambda clinic, registry, insurer: (clinic, registry, registry), "plan_roles", "one role"),
    (lambda clinic, registry, insurer: (registry, insurer), "plan_roles", "must have the labels"),
    (lambda clinic, registry, insurer: (_dropping(clinic), registry, insurer), "plan_roles", "out of step"),
    (_registry(lambda part: _output(part, "embed", partner="nobody")), "plan_wiring", "takes nothing named"),
    (_registry(lambda part: _output(part, "embed", partner=None)), "plan_wiring", "names a partner"),
    (_registry(lambda part: _output(part, "embed", partner="insurer")), "plan_wiring", "takes nothing named"),
    (_registry(lambda part: _output(part, "represent", key="other")), "plan_wiring", "has not sent it"),
    (_registry(lambda part: _output(part, "embed", shape=(8, 3))), "plan_wiring", "another type"),
    (_registry(lambda part: _output(part, "embed", shape=(4, 4))), "plan_wiring", "takes nothing named"),
    (_registry(lambda part: _waiting(part)), "plan_wiring", "message"),
    (_registry(lambda part: _message_input(part, "descend", key="other")), "plan_wiring", "has not sent it"),
    (_registry(lambda part: _stage(part, "embed", over="pass")), "plan_stages", "runs over"),
    (lambda clinic, registry, insurer: (_valued(clinic), registry, insurer), "plan_roles", "two classes"),
    (_registry(lambda part: replace(part, stages=part.stages[1:])), "plan_stages", "needs the stage 'begin'"),
)


@pytest.mark.parametrize(("change", "code", "says"), SPOILED)
def test_a_plan_whose_roles_do_not_fit_is_refused(change: Change, code: str, says: str) -> None:
    plan = compile_split(network(cut=CutPolicy(gradient=GradientNoise(kind="marvell"))))
    spoiled = replace(plan.manifest, parts=change(*plan.manifest.parts))
    with pytest.raises(errors.PlanRefused) as refused:
        check_session_manifest(SessionManifest.from_bytes(spoiled.data))
    assert (refused.value.reason, says in refused.value.message) == (code, True), refused.value.message


def test_a_plan_with_another_graph_is_refused() -> None:
    plan = compile_split(network())
    name = ("registry", "embed")
    for graphs, code in (
        ({**plan.graphs, name: plan.graphs[name] + b"x"}, "plan_digest"),
        ({**plan.graphs, ("registry", "other"): b""}, "plan_files"),
        ({key: data for key, data in plan.graphs.items() if key != name}, "plan_files"),
    ):
        with pytest.raises(errors.PlanRefused) as refused:
            check_session_plan(SessionPlan(plan.manifest, graphs))
        assert refused.value.reason == code


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": "coterie-plan-1"}, "format"),
        ({"parts": []}, "parts"),
        ({"training": {"batch_size": 0, "epochs": 1, "seed": 0}}, "batch_size"),
        ({"more": 1}, "more"),
    ],
)
def test_a_manifest_that_is_none_is_refused(change: dict[str, Any], says: str) -> None:
    value = {**to_json(compile_split(network()).manifest), **change}
    with pytest.raises(errors.PlanRefused) as refused:
        SessionManifest.from_bytes(canonical_json(value))
    assert refused.value.reason == "plan_manifest" and says in refused.value.message


def test_all_columns_are_read_by_the_role_that_has_them() -> None:
    manifest = compile_split(network()).manifest
    columns = {
        part.role: {t.key for stage in part.stages for t in stage.from_source("batch")} for part in manifest.parts
    }
    assert columns == {
        "clinic": {"blood", "ill", "sample_weight"},
        "registry": {"scan"},
        "insurer": {"costs"},
    }


def test_what_one_population_trains_needs_features() -> None:
    """A label alone is for roles of a session."""
    alone = DataSchema((), Label(name="ill", classes=(0, 1)))
    fields: dict[str, Any] = {
        "name": "alone",
        "model": nn.Linear(2, 2),
        "loss": network().loss,
        "optimizer": optim.sgd(0.1),
        "rounds": RoundPolicy(rounds=1, cohort=1),
    }
    with pytest.raises(errors.ExperimentError, match="1 to 1000 features"):
        compile_plan(Experiment(schema=alone, **fields))
    plan = compile_plan(Experiment(schema=DataSchema((Feature(name="blood", shape=(2,)),), alone.label), **fields)).plan
    with pytest.raises(errors.PlanRefused, match="1 to 1000 features") as refused:
        check_manifest(replace(plan.manifest, schema=alone))
    assert refused.value.reason == "plan_manifest"
