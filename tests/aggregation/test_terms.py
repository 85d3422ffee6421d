"""What is asked in Python and what is asked by a request is refused, or taken, by the same rules and codes."""

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.aggregation.compiling.compile import CompiledPlan, compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.aggregation.fitting import RULES
from coterie.aggregation.horizontal import FedAvg, FedBuff, FedNova, FedSGD, QFedAvg, Scaffold
from coterie.aggregation.plan.manifest import NamedRule
from coterie.aggregation.requested import check_requested, settled_request
from coterie.aggregation.server_optimizers import ServerOptimizer, server_adam, server_sgd
from coterie.compute import nn, optim
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.optim import sgd
from coterie.errors import CoterieError, ExperimentError
from coterie.protocol.control import ExperimentCreate, ServerRule
from coterie.protocol.device import PlanRef
from coterie.protocol.privacy import ExampleLevel, LocalLevel, UserLevel
from coterie.protocol.rounds import Best, RoundPolicy, Target
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.secure_aggregation import SecureAggregation
from coterie.protocol.signing import SigningKey
from coterie.protocol.wire import BlobRef

SCHEMA = DataSchema((Feature(name="x", shape=(4,)),), Label(name="y", low=0, high=2))
ROWS: dict[str, Any] = {"x": [[0.0] * 4] * 3, "y": [0, 1, 2]}
KEY = SigningKey.generate()
BLOB = BlobRef(sha256="0" * 64, size=8)


def experiment(**changes: Any) -> Experiment:
    base: dict[str, Any] = {
        "name": "terms",
        "model": nn.Sequential(nn.Linear(4, 3)),
        "schema": SCHEMA,
        "loss": softmax_cross_entropy,
        "optimizer": sgd(0.1),
        "secure_aggregation": False,
        "rounds": RoundPolicy(rounds=2, cohort=2),
    }
    return Experiment(**{**base, **changes})


ALIKE = RoundPolicy(rounds=2, cohort=2, weight_cap=1, evaluate_every=0)
PRIVATE_STEPS = ExampleLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0, rows=100)

BASES: dict[str, Experiment] = {
    "fedavg": experiment(),
    "normalised": experiment(model=nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))),
    "in levels": experiment(broadcast="int8"),
    "scaffold": experiment(algorithm=Scaffold(clients=8)),
    "fednova": experiment(algorithm=FedNova(), optimizer=sgd(0.1, momentum=0.5)),
    "q-fedavg": experiment(algorithm=QFedAvg(1.0)),
    "fedsgd": experiment(algorithm=FedSGD(), epochs=1),
    "private steps": experiment(privacy=PRIVATE_STEPS, max_steps=4, rounds=ALIKE),
    "buffered": experiment(algorithm=FedBuff(), rounds=RoundPolicy(rounds=2, cohort=2, mode="buffered")),
    "without held-out rows": experiment(holdout=0.0, rounds=RoundPolicy(rounds=2, cohort=2, evaluate_every=0)),
}
PLANS: dict[str, CompiledPlan] = {name: compile_plan(base) for name, base in BASES.items()}


def request(base: str, asked: dict[str, Any]) -> ExperimentCreate:
    """The request of an experiment with these changes that was never an `Experiment`."""
    plan, server = PLANS[base].plan.sign(KEY), asked.get("server_optimizer", server_sgd())
    evaluation = BLOB if asked.get("evaluation") is not None else None
    said = {
        "name": "terms",
        "population": "people",
        "plan": PlanRef(id=plan.id, signature=plan.signature or "", signer=plan.signer or ""),
        "initial": BLOB,
        "rounds": asked.get("rounds", BASES[base].rounds),
        "server": ServerRule(name=server.name, parameters=dict(server.parameters)),
        "reducer": asked.get("reducer", "mean"),
        "codecs": asked.get("codecs", ("float32",)),
        "evaluation": evaluation,
        "evaluation_metrics": asked.get("evaluation_metrics", ()),
        "secure": asked.get("secure_aggregation") or None,
        "privacy": asked.get("privacy"),
        "hyper": {"lr": asked["optimizer"].hyper["lr"]} if "optimizer" in asked else None,
    }
    return ExperimentCreate.model_validate({name: value for name, value in said.items() if value is not None})


def verdict(call: Any) -> str:
    try:
        call()
    except CoterieError as error:
        return f"{error.reason}: {error.message}"
    return "taken"


def of_python(base: str, asked: dict[str, Any]) -> str:
    def made() -> None:
        compile_plan(replace(BASES[base], **asked))

    return verdict(made)


def of_a_request(base: str, asked: dict[str, Any]) -> str:
    honest = PLANS[base].plan.manifest
    # What the plan says itself is asked for in its manifest, which a hand may have written.
    manifest = replace(honest, training=replace(honest.training, precision=asked.get("precision")))
    return verdict(lambda: check_requested(settled_request(request(base, asked)), manifest))


NOISE = UserLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0)


def mostly(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    """The usual value, or once in a while another, so that most requests have few faults or none."""
    return st.sampled_from([*[usual] * 4 * len(others), *others])


POLICIES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "cohort": st.sampled_from([1, 2, 5, 12]),
        "mode": mostly("synchronous", "buffered"),
        "weight_cap": st.sampled_from([1, 1, 100]),
        "evaluate_every": st.sampled_from([0, 0, 1]),
        "selection": mostly("uniform", "cyclic", "power_of_choice(4)", "nobody"),
        "rest_rounds": mostly(0, 2),
        "labels": mostly((), (1,), (7,)),
        "best": mostly(Best(), Best(metric="accuracy"), Best(metric="auc"), Best(metric="examples")),
        "target": mostly(None, Target(metric="loss", value=0.1, mode="min"), Target(metric="f1", value=1.0)),
        "patience": mostly(None, 2),
        "hyper_schedule": mostly(None, {"lr": (0.1, 0.2)}, {"lr": (0.1, -1.0)}, {"mu": (0.1, 0.1)}),
    }
)
SERVERS: list[ServerOptimizer] = [server_sgd(), server_sgd(lr=0.5), server_adam()]


@st.composite
def wishes(draw: st.DrawFn) -> dict[str, Any]:
    fields = draw(POLICIES)
    asked: dict[str, Any] = {
        "reducer": draw(mostly("mean", "median", "krum(1)", "fltrust", "unheard")),
        "codecs": draw(mostly(("float32",), ("int8",), ("int8+rice",), ("paper",), ("int8", "int8"))),
        "server_optimizer": draw(st.sampled_from(SERVERS)),
        "secure_aggregation": draw(st.sampled_from([False, False, SecureAggregation(), SecureAggregation(groups=2)])),
        "privacy": draw(
            st.sampled_from(
                [
                    *(None, None, NOISE, NOISE.but(mechanism="skellam"), NOISE.but(min_separation=3)),
                    LocalLevel(mechanism="gaussian", epsilon=1.0, delta=1e-5),
                ]
            )
        ),
        "optimizer": draw(mostly(sgd(0.1), sgd(0.0))),
        "evaluation": draw(st.sampled_from([None, ROWS])),
        "evaluation_metrics": draw(mostly((), ("auc",), ("best",))),
    }
    if draw(mostly(None, "bfloat16")):
        asked["precision"] = "bfloat16"
    try:
        asked["rounds"] = RoundPolicy(rounds=2, **fields)
    except CoterieError:
        asked["rounds"] = ALIKE
    return asked


@settings(max_examples=150)
@given(base=st.sampled_from(sorted(BASES)), asked=wishes())
def test_python_and_rest_give_one_verdict_by_one_code(base: str, asked: dict[str, Any]) -> None:
    usual = BASES[base]
    # A request changes the numbers of its plan's optimizer, but neither the rule nor how its steps are noised.
    if usual.optimizer is not None and "momentum" in usual.optimizer.hyper:
        asked["optimizer"] = sgd(asked["optimizer"].hyper["lr"], momentum=usual.optimizer.hyper["momentum"])
    if isinstance(usual.privacy, ExampleLevel):
        asked["privacy"] = usual.privacy
    assert of_python(base, asked) == of_a_request(base, asked)


BROKEN: dict[str, tuple[str, dict[str, Any], str]] = {
    "BatchNorm under noise of the device": (
        "normalised",
        {"privacy": LocalLevel(mechanism="gaussian", epsilon=1.0, delta=1e-5), "rounds": ALIKE},
        "experiment_combination",
    ),
    "BatchNorm in bfloat16": ("normalised", {"precision": "bfloat16"}, "experiment_combination"),
    "a codec that is none": ("fedavg", {"codecs": ("paper",)}, "unknown_codec"),
    "a codec twice": ("fedavg", {"codecs": ("float32", "float32")}, "experiment_invalid"),
    "private steps in float16": (
        "private steps",
        {"precision": "float16", "privacy": PRIVATE_STEPS, "rounds": ALIKE},
        "experiment_combination",
    ),
    "a label that is none": ("fedavg", {"rounds": RoundPolicy(rounds=2, cohort=2, labels=(7,))}, "labels_unknown"),
    "a schedule of nothing": (
        "fedavg",
        {"rounds": RoundPolicy(rounds=2, cohort=2, hyper_schedule={"mu": (0.1, 0.1)})},
        "unknown_hyper",
    ),
    "a best that is not measured": (
        "fedavg",
        {"rounds": RoundPolicy(rounds=2, cohort=2, best=Best(metric="f1"))},
        "unknown_metric",
    ),
    "patience without an evaluation": (
        "without held-out rows",
        {"rounds": RoundPolicy(rounds=2, cohort=2, evaluate_every=0, patience=2)},
        "experiment_combination",
    ),
    "a server optimizer that the method excludes": ("fedavg", {"reducer": "krum(1)"}, "reducer_updates"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_known_refusals_are_the_same_for_both(case: str) -> None:
    base, asked, code = BROKEN[case]
    assert of_python(base, asked).startswith(f"{code}: ")
    assert of_python(base, asked) == of_a_request(base, asked)


@pytest.mark.parametrize(
    ("value", "words"), [(-1.0, "hyper makes lr negative"), (1e300, "hyper sets lr to a number that does not fit")]
)
def test_a_request_brings_in_no_step_size_that_an_optimizer_refuses(value: float, words: str) -> None:
    asked = request("fedavg", {}).model_copy(update={"hyper": {"lr": value}})
    with pytest.raises(ExperimentError, match=words) as refused:
        check_requested(settled_request(asked), PLANS["fedavg"].plan.manifest)
    assert refused.value.reason == "hyper_invalid"


@pytest.mark.parametrize(
    ("base", "rule"),
    [
        ("fednova", optim.adam(0.1)),
        ("fednova", sgd(0.1, momentum=0.9, nesterov=True)),
        ("fedsgd", optim.adam(0.1)),
        ("scaffold", sgd(0.1, momentum=0.9)),
    ],
)
def test_a_plan_whose_optimizer_its_method_cannot_use_is_refused(base: str, rule: optim.Optimizer) -> None:
    python, honest = of_python(base, {"optimizer": rule}), PLANS[base].plan.manifest
    crafted = replace(honest, optimizer=NamedRule(rule.name, dict(rule.hyper)), hyper=dict(rule.hyper))
    assert python.startswith("experiment_combination: ")
    assert verdict(lambda: check_requested(settled_request(request(base, {})), crafted)) == python


def test_a_plan_with_a_column_that_coterie_feeds_itself_is_refused() -> None:
    schema = DataSchema((Feature(name="sample_weight", shape=(4,)),), SCHEMA.label)
    python, honest = of_python("fedavg", {"schema": schema}), PLANS["fedavg"].plan.manifest
    assert python.startswith("experiment_combination: ")
    crafted = replace(honest, schema=schema)
    assert verdict(lambda: check_requested(settled_request(request("fedavg", {})), crafted)) == python


def test_a_plan_whose_metrics_have_one_name_is_refused() -> None:
    python, honest = of_python("fedavg", {"metrics": {"loss": softmax_cross_entropy}}), PLANS["fedavg"].plan.manifest
    assert python.startswith("experiment_invalid: ")
    crafted = replace(honest, metrics=(*honest.metrics, "loss"))
    assert verdict(lambda: check_requested(settled_request(request("fedavg", {})), crafted)) == python


def test_half_precision_of_a_trainer_of_the_clients_own_is_refused() -> None:
    model = ExternalModel({"weight": (4,)})
    asked = {"model": model, "loss": None, "optimizer": None, "precision": "float16"}
    python, honest = of_python("fedavg", asked), PLANS["fedavg"].plan.manifest
    assert python.startswith("experiment_combination: ")
    training = replace(honest.training, precision="float16")
    crafted = replace(honest, shape="external", stages=(), training=training)
    assert verdict(lambda: check_requested(settled_request(request("fedavg", {})), crafted)) == python


def test_statistics_are_not_broadcast_in_levels_whoever_asks() -> None:
    normalised = PLANS["normalised"].plan.manifest
    with pytest.raises(ExperimentError) as refused:
        check_requested(request("normalised", {}), replace(normalised, broadcast="int8"))
    assert refused.value.reason == "broadcast_statistics"
    with pytest.raises(ExperimentError) as refused:
        compile_plan(replace(BASES["normalised"], broadcast="int8"))
    assert refused.value.reason == "broadcast_statistics"


def test_a_request_that_says_no_min_updates_has_room_for_those_who_vanish() -> None:
    said = request("fedavg", {}).model_dump(mode="json", exclude_unset=True)
    said |= {"rounds": {"rounds": 2, "cohort": 20}, "secure": {"dropout": 0.25}}
    wanted = experiment(rounds=RoundPolicy(rounds=2, cohort=20), secure_aggregation=SecureAggregation(dropout=0.25))
    assert settled_request(ExperimentCreate.model_validate(said)).rounds == wanted.rounds
    assert wanted.rounds.min_updates == 15


def test_numbers_of_numpy_are_those_of_python() -> None:
    found = compile_plan(experiment(optimizer=sgd(cast(float, np.float32(0.5))))).plan
    assert found.id == compile_plan(experiment(optimizer=sgd(0.5))).plan.id


def test_every_rule_has_a_code_that_is_explained() -> None:
    assert {"unknown_codec", "experiment_combination"} <= {code for code, _ in RULES}
    assert FedAvg().needs(experiment().terms) == ()
