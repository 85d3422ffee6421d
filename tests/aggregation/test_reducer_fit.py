"""Reducers in experiments: refused when they cannot work, and at work in a simulation with lying clients."""

from inspect import signature
from typing import Any

import numpy as np
import pytest

from coterie import errors
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.aggregation.horizontal import ALGORITHMS
from coterie.aggregation.horizontal.algorithm import Shapes
from coterie.aggregation.reducers.fit import check_reducer
from coterie.client_sdk.device.trainers.external import ExternalTrainer, FitResult, FitTask, Params
from coterie.protocol.layout import Layout
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.secure_aggregation import SecureAggregation
from coterie.simulation import simulate_full


def experiment(**changes: Any) -> Experiment:
    fields: dict[str, Any] = {
        "name": "lies",
        "model": ExternalModel({"w": (3,)}),
        "schema": DataSchema((Feature(name="x"),), Label(name="y", dtype="float32")),
        "rounds": RoundPolicy(rounds=2, cohort=7, evaluate_every=0),
    }
    return Experiment(**(fields | changes))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("mode", "unknown_reducer"),
        ("krum", "reducer_invalid"),
        ("krum(4)", "reducer_updates"),
        ("bulyan(2)", "reducer_updates"),
        ("fltrust", "reducer_reference"),
        ("monna(1)", "reducer_reference"),
    ],
)
def test_a_reducer_that_cannot_work_is_refused_with_the_experiment(text: str, code: str) -> None:
    with pytest.raises(errors.ExperimentError) as caught:
        experiment(reducer=text)
    assert caught.value.reason == code
    assert experiment(reducer="krum(3)").reducer == "krum(3)"


def test_a_cohort_that_a_rule_cannot_work_through_is_refused_with_the_experiment() -> None:
    large = RoundPolicy(rounds=2, cohort=40, min_updates=20, evaluate_every=0)
    with pytest.raises(errors.ExperimentError, match="at most 33 updates, and a round may end with 40") as caught:
        experiment(reducer="smea(4)", rounds=large, secure_aggregation=False)
    assert caught.value.reason == "reducer_work"
    mixed = experiment(reducer="bucketing(2)+smea(4)", rounds=large, secure_aggregation=False)
    assert mixed.rounds.cohort == 40


def test_fltrust_needs_a_trusted_client_whose_update_is_seen_alone_and_one_to_judge() -> None:
    policy = RoundPolicy(rounds=2, cohort=12, trusted="3", evaluate_every=0)
    groups = SecureAggregation(groups=3)
    assert experiment(reducer="fltrust", rounds=policy, secure_aggregation=False).rounds.trusted == "3"
    assert experiment(reducer="nnm(2)+fltrust", rounds=policy, secure_aggregation=False).reducer == "nnm(2)+fltrust"
    for changes, code in (
        ({"rounds": policy}, "reducer_reference"),
        ({"reducer": "fltrust"}, "reducer_reference"),
        ({"reducer": "fltrust", "rounds": policy, "secure_aggregation": groups}, "reducer_reference"),
        ({"reducer": "fltrust", "rounds": policy.model_copy(update={"min_updates": 1})}, "reducer_updates"),
    ):
        with pytest.raises(errors.ExperimentError) as caught:
            experiment(**{"secure_aggregation": False} | changes)
        assert caught.value.reason == code


@pytest.mark.parametrize(
    ("text", "fewest", "has_f"),
    [("fltrust", 2, False), ("bucketing(2)+fltrust", 2, False), ("nnm(1)+fltrust", 4, True), ("monna(2)", 5, True)],
)
def test_too_few_updates_for_a_trusted_client_are_refused_in_words_that_fit(
    text: str, fewest: int, has_f: bool
) -> None:
    """Nobody can lower the f of a rule that has none."""
    with pytest.raises(errors.ExperimentError, match=f"at least {fewest} updates .*the trusted client's") as caught:
        check_reducer(text, fewest - 1, "fedavg", trusted="3")
    assert caught.value.reason == "reducer_updates"
    assert ("2f" in caught.value.message) == has_f == ("lower f" in str(caught.value.hint))
    check_reducer(text, fewest, "fedavg", trusted="3")


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "buffered"},
        {"purpose": "evaluate", "evaluate_every": 1},
        {"over_selection": 1.5},
        {"dropout": 0.2},
        {"rest_rounds": 1},
        {"rest_s": 5.0},
        {"trusted": "no name"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_rounds_that_a_trusted_client_cannot_always_be_in_are_refused(changes: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"rounds": 2, "cohort": 4, "trusted": "3", **changes}
    with pytest.raises(errors.InputError, match="trusted"):
        RoundPolicy(**fields)


def beside(name: str) -> bool:
    """Whether the method's updates hold a mean that is no change of the weights."""
    needed = [at.name for at in signature(ALGORITHMS[name]).parameters.values() if at.default is at.empty]
    method = ALGORITHMS[name](**dict.fromkeys(needed, 2))
    layout = Layout.of({"w": (3,), "beside/w": (3,)})
    shapes = Shapes(tensors={"w": (3,)}, trained={"w": (3,)})
    return any(spec.reduction == "weighted_mean" and spec.is_extra for spec in method.client.sections(shapes, layout))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_updates_with_a_number_beside_the_change_are_not_measured_as_one(name: str) -> None:
    """norm_bound(1) over FedNova's 50 steps and a change of length 0.1 would scale both by 1/50, the step by 1/2500."""
    for text in ("norm_bound(1)", "krum(1)", "bulyan(0)", "nnm(1)+median", "geometric_median"):
        if beside(name):
            with pytest.raises(errors.ExperimentError, match="more than the change") as caught:
                check_reducer(text, 5, name)
            assert caught.value.reason == "reducer_method"
        else:
            check_reducer(text, 5, name)
    check_reducer("mean", 5, name)


def test_coordinates_of_clusters_cannot_be_compared() -> None:
    with pytest.raises(errors.ExperimentError, match="which of several models") as caught:
        check_reducer("median", 5, "ifca")
    assert caught.value.reason == "reducer_method"
    check_reducer("median", 5, "fednova")


@pytest.mark.parametrize(
    ("text", "moved"),
    [("mean", 1000.0), ("nnm(2)+median", 2.0), ("smea(2)", 2.0), ("monna(2)", 2.0), ("norm_bound(3.5)", 6.0)],
)
def test_two_lying_clients_of_seven(text: str, moved: float) -> None:
    def fit(params: Params, task: FitTask) -> FitResult:
        liar = float(task.rows["x"][0]) < 2
        return {"w": params["w"] + (1e4 if liar else 1.0)}, 1, 1, {}

    clients = [{"x": np.full(4, i, np.float32), "y": np.zeros(4, np.float32)} for i in range(7)]
    trusted = "3" if text.startswith("monna") else None
    policy = RoundPolicy(rounds=2, cohort=7, evaluate_every=0, trusted=trusted)
    alone = {} if trusted is None else {"secure_aggregation": False}
    wanted = experiment(reducer=text, holdout=0.0, rounds=policy, **alone)
    result = simulate_full(wanted, clients, trainer=ExternalTrainer(fit))
    assert (abs(result.weights["w"][0]) > moved) == (text == "mean")
    if moved == 2.0:
        np.testing.assert_allclose(result.weights["w"], 2.0, atol=1e-3)
