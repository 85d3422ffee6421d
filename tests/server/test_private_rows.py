"""A request and its plan must mean the same example-level privacy: the ledger prices what devices really do."""

from typing import Any

import pytest

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.requested import check_requested
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import sgd
from coterie.errors import ExperimentError
from coterie.protocol.control import ExperimentCreate, ServerRule
from coterie.protocol.privacy import ExampleLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label

LEVEL = ExampleLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0, rows=40)
POLICY = RoundPolicy(rounds=2, cohort=3, weight_cap=1, evaluate_every=0)


def made(privacy: ExampleLevel | None) -> Any:
    return compile_plan(
        Experiment(
            name="rows",
            model=mlp((4, 3)),
            schema=DataSchema((Feature(name="x", shape=(4,)),), Label(name="y", low=0, high=2)),
            loss=softmax_cross_entropy,
            optimizer=sgd(0.1),
            rounds=POLICY,
            privacy=privacy,
        )
    ).plan.manifest


def request(privacy: ExampleLevel | None) -> ExperimentCreate:
    told: dict[str, Any] = {"name": "rows", "rounds": POLICY, "reducer": "mean", "codecs": ("float32",)}
    told |= {"server": ServerRule(name="sgd", parameters={"lr": 1.0}), "evaluation": None, "secure": None}
    told |= {"privacy": privacy}
    return ExperimentCreate.model_construct(**told)


def test_a_request_that_means_what_its_plan_does_is_taken() -> None:
    check_requested(request(LEVEL), made(LEVEL))
    check_requested(request(None), made(None))
    # More noise than was asked for is no harm.
    check_requested(request(LEVEL.but(noise_multiplier=0.9)), made(LEVEL))


@pytest.mark.parametrize(
    ("asked", "plan"),
    [
        (None, LEVEL),
        (LEVEL, None),
        (LEVEL.but(noise_multiplier=1.1), LEVEL),
        (LEVEL.but(clip=0.5), LEVEL),
        (LEVEL.but(rows=400), LEVEL),
    ],
    ids=["not asked for", "no noise in the plan", "less noise in the plan", "another clip", "more rows"],
)
def test_a_request_that_means_another_privacy_is_refused(asked: ExampleLevel | None, plan: ExampleLevel | None) -> None:
    with pytest.raises(ExperimentError, match="plan") as refused:
        check_requested(request(asked), made(plan))
    assert refused.value.reason == "experiment_combination"
