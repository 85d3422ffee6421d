"""A device works out by itself what the private steps of a plan cost, and refuses promises that they cannot keep."""

from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coterie.aggregation.plan.manifest import Manifest, Named, Training
from coterie.aggregation.plan.private_steps import PrivateSteps
from coterie.client_sdk.device import private_rows
from coterie.client_sdk.device.private_rows import check_private_rows
from coterie.errors import PolicyRefused
from coterie.privacy.dp.accounting import spent
from coterie.privacy.dp.privacy import ExampleLevel
from coterie.privacy.dp.rounds import whole_cost
from coterie.protocol.claims import PrivacyTerms
from coterie.protocol.device import Task
from coterie.protocol.layout import Layout
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.sections import SectionSpec

LAYOUT = Layout.of({"w": (3,)})
STEPS = PrivateSteps(clip=1.0, noise_multiplier=1.0, expected=8, rows=100)
TRAINING = Training(batch_size=40, epochs=1, max_steps=10, private=STEPS)
MANIFEST = Manifest(
    name="rows",
    trainer="plan",
    schema=DataSchema((Feature(name="x", shape=(4,)),), Label(name="y", low=0, high=2)),
    layout=LAYOUT,
    sections=(SectionSpec.over("delta", LAYOUT),),
    hyper={},
    training=TRAINING,
    algorithm=Named("fedavg", {}),
    optimizer=Named("sgd", {}),
    graphs={},
)
ROUNDS = 5
LEVEL = ExampleLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0, rows=100)
CLAIM = spent(whole_cost(LEVEL, ROUNDS, cohort=3, draws=TRAINING.draws()), 1e-5)


def task(round: int, epsilon: float, **changes: Any) -> Task:
    promise = PrivacyTerms(unit="example", epsilon=epsilon, delta=1e-5, mechanism="dp_sgd", trusts="device")
    return cast(Task, SimpleNamespace(**({"round": round, "kind": "train", "privacy": promise} | changes)))


def test_a_promise_that_the_steps_keep_is_taken_in_every_round() -> None:
    for round in range(1, ROUNDS + 1):
        check_private_rows(task(round, CLAIM.epsilon), MANIFEST)


def test_a_device_without_loss_distributions_takes_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_rows.loss_distribution, "available", lambda: False)
    check_private_rows(task(ROUNDS, CLAIM.epsilon), MANIFEST)
    with pytest.raises(PolicyRefused):
        check_private_rows(task(ROUNDS, CLAIM.epsilon / 2), MANIFEST)


exact_price = pytest.mark.skipif(
    find_spec("dp_accounting") is None,
    reason="without dp-accounting, which the extra server brings, a device lets by what is less than half too dear",
)


@pytest.mark.parametrize(
    ("asked", "training"),
    [
        pytest.param(task(ROUNDS + 1, CLAIM.epsilon), TRAINING, marks=exact_price),
        pytest.param(task(ROUNDS, 0.9 * CLAIM.epsilon), TRAINING, marks=exact_price),
        (task(ROUNDS, CLAIM.epsilon), replace(TRAINING, private=replace(STEPS, noise_multiplier=0.5))),
        (task(ROUNDS, CLAIM.epsilon), replace(TRAINING, private=replace(STEPS, rows=20))),
        (task(ROUNDS, CLAIM.epsilon), replace(TRAINING, batch_size=9)),
        (task(1, CLAIM.epsilon), replace(TRAINING, private=None)),
    ],
    ids=["more rounds", "less epsilon", "less noise", "fewer rows", "batches that overflow", "no noise"],
)
def test_a_promise_that_the_steps_cannot_keep_is_refused(asked: Task, training: Training) -> None:
    with pytest.raises(PolicyRefused) as refused:
        check_private_rows(asked, replace(MANIFEST, training=training))
    assert refused.value.reason == "privacy_unkept"


def test_other_promises_and_evaluations_are_not_its_business() -> None:
    plain = replace(MANIFEST, training=replace(TRAINING, private=None))
    check_private_rows(task(1, 1.0, privacy=None), plain)
    check_private_rows(task(1, 1.0, kind="evaluate"), plain)
    user = PrivacyTerms(unit="user", epsilon=1.0, delta=1e-5, mechanism="gaussian", trusts="coordinator")
    check_private_rows(task(1, 1.0, privacy=user), plain)
