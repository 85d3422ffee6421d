"""What commands say of who will see what."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.promises.promises import PROMISES, AggregationMode
from coterie.cli.output import Output
from coterie.cli.promises import promise, promised
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import sgd
from coterie.protocol.privacy import ExampleLevel, LocalLevel, UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.secure_aggregation import SecureAggregation

MODES: dict[AggregationMode, dict[str, Any]] = {
    "open": {"secure_aggregation": False},
    "semi_honest": {},
    "consistent": {"secure_aggregation": SecureAggregation(mode="consistent")},
    "groups": {"secure_aggregation": SecureAggregation(groups=2), "reducer": "median"},
}


def asked(rounds: RoundPolicy | None = None, **changes: Any) -> Experiment:
    return Experiment(
        name="told",
        model=mlp((4, 3)),
        schema=DataSchema((Feature(name="x", shape=(4,)),), Label(name="y", low=0, high=2)),
        loss=softmax_cross_entropy,
        optimizer=sgd(0.1),
        rounds=rounds or RoundPolicy(rounds=1, cohort=12),
        **changes,
    )


@pytest.mark.parametrize("mode", sorted(PROMISES))
def test_every_mode_says_what_it_promises_and_first_what_it_does_not(
    mode: AggregationMode, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment, table = asked(**MODES[mode]), PROMISES[mode]
    promise(Output(json=False), experiment)
    head, *lines = capsys.readouterr().out.splitlines()
    assert ("open" if mode == "open" else "secure") in head
    assert lines == [*(f"  + {sentence}" for sentence in table.promises), f"  - {table.does_not[0]}"]
    told = promised(experiment)
    assert told["aggregation"] == mode and len(told["promises"]) == len(table.promises) + len(table.does_not)


def test_the_page_that_it_names_is_there() -> None:
    assert (Path(__file__).parents[2] / "docs" / "security.md").is_file()


@pytest.mark.parametrize(
    ("rounds", "secure", "fewest"),
    [
        (RoundPolicy(rounds=1, cohort=3), True, 3),
        (RoundPolicy(rounds=1, cohort=12, min_updates=4), True, 4),
        (RoundPolicy(rounds=1, cohort=12), SecureAggregation(groups=3), 4),
        (RoundPolicy(rounds=1, cohort=5), True, None),
        (RoundPolicy(rounds=1, cohort=3), False, None),
    ],
)
def test_who_asks_for_sums_that_devices_refuse_by_default_is_told(
    rounds: RoundPolicy, secure: SecureAggregation | bool, fewest: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Devices hold the least cohort of their own policy against every task (`DevicePolicy.check_task`)."""
    experiment = replace(
        asked(**MODES["groups"] if isinstance(secure, SecureAggregation) else {}),
        rounds=rounds,
        secure_aggregation=secure,
    )
    promise(Output(json=False), experiment)
    said = capsys.readouterr().out
    told = " ".join(promised(experiment)["promises"])
    for text in (said, told):
        assert (f"min_cohort = {fewest}" in text) if fewest else ("min_cohort" not in text)


PRIVATE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "users": (
        {"privacy": UserLevel(clip=1.0, delta=1e-6, epsilon=1e-4), "secure_aggregation": False},
        {"privacy": UserLevel(clip=1.0, delta=1e-6, epsilon=8.0), "secure_aggregation": False},
    ),
    "updates": (
        {"privacy": LocalLevel(mechanism="gaussian", epsilon=0.01, delta=1e-6, clip=1.0)},
        {"privacy": LocalLevel(mechanism="gaussian", epsilon=8.0, delta=1e-6, clip=1.0)},
    ),
    "rows": (
        {"privacy": ExampleLevel(clip=1.0, delta=1e-6, noise_multiplier=1e4, rows=100), "holdout": 0.0},
        {"privacy": ExampleLevel(clip=1.0, delta=1e-6, epsilon=8.0, rows=100), "holdout": 0.0},
    ),
}


@pytest.mark.usefixtures("by_renyi")
@pytest.mark.parametrize("unit", sorted(PRIVATE))
def test_training_that_noise_drowns_is_said_before_it_begins(unit: str, capsys: pytest.CaptureFixture[str]) -> None:
    for settings, drowned in zip(PRIVATE[unit], (True, False), strict=True):
        alike = RoundPolicy(rounds=5, cohort=12, weight_cap=1, evaluate_every=0)
        experiment = asked(rounds=alike, **settings)
        promise(Output(json=False), experiment)
        assert ("training would follow the noise" in capsys.readouterr().out) is drowned
        assert any("training would follow the noise" in line for line in promised(experiment)["promises"]) is drowned
