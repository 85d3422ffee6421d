"""A client that diverges: its update is left out and counted, and the round goes on, as it does on a coordinator."""

from typing import Any

import numpy as np
import pytest
from simulation_kit import CLIENTS, SCHEMA, experiment, rows, same

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.client_sdk.device.trainers.external import ExternalTrainer, FitResult, FitTask, Params
from coterie.compute.optim import sgd
from coterie.protocol.privacy import LocalLevel, Privacy, UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.simulation import simulate, simulate_full

# Products with the weights overflow, and the loss is infinity less infinity.
FAR: dict[str, Any] = {"x": np.tile(np.array([3e38, -3e38, 3e38, -3e38], np.float32), (40, 1)), "y": rows(40)["y"]}
WITH_ONE = [*CLIENTS, FAR]
POLICY = RoundPolicy(rounds=2, cohort=len(WITH_ONE), min_updates=len(CLIENTS), evaluate_every=0)
OPEN: dict[str, Any] = {"secure_aggregation": False, "rounds": POLICY}


@pytest.mark.parametrize(
    ("engine", "codec"),
    [("threads", "float32"), ("threads", "int8"), ("threads", "topk:0.5+ef"), ("batched:4", "int8")]
    + [("batched:4", "float32"), ("processes", "float32"), ("processes", "int8")],
)
def test_the_round_goes_on_without_a_client_whose_loss_is_not_finite(engine: str, codec: str) -> None:
    found = simulate_full(experiment(codecs=(codec,), **OPEN), WITH_ONE, engine=engine)
    few = POLICY.model_copy(update={"cohort": len(CLIENTS)})
    alone = simulate_full(experiment(codecs=(codec,), secure_aggregation=False, rounds=few), CLIENTS, engine=engine)
    assert [(one.state, one.accepted, one.failed) for one in found.history] == [("committed", len(CLIENTS), 1)] * 2
    assert same(found.weights, alone.weights)


def goes_far(params: Params, task: FitTask) -> FitResult:
    """The client with fewest rows goes farther than float16 can tell."""
    step = 1e6 if len(task.rows["y"]) == len(CLIENTS[0]["y"]) else 1.0
    return {name: value + np.float32(step) for name, value in params.items()}, len(task.rows["y"]), 1, {}


GOES_FAR = ExternalTrainer(goes_far)


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_the_round_goes_on_without_a_client_whose_change_its_codec_cannot_hold(engine: str) -> None:
    own = Experiment(
        name="own",
        model=ExternalModel({"w": (3,)}),
        schema=SCHEMA,
        holdout=0.0,
        codecs=("float16",),
        secure_aggregation=False,
        rounds=POLICY.model_copy(update={"cohort": 3, "min_updates": 2}),
    )
    history = simulate(own, CLIENTS[:3], engine=engine, trainer="test_divergence:GOES_FAR")
    assert [(one.state, one.accepted, one.failed) for one in history] == [("committed", 2, 1)] * 2


def test_under_secret_sums_it_is_left_out_too() -> None:
    history = simulate(experiment(secure_aggregation=True, rounds=POLICY), WITH_ONE)
    assert [(one.state, one.failed) for one in history] == [("committed", 1)] * 2


def test_it_counts_as_missing_where_too_few_are_left() -> None:
    strict = POLICY.model_copy(update={"min_updates": len(WITH_ONE)})
    history = simulate(experiment(secure_aggregation=False, rounds=strict), WITH_ONE)
    assert [(one.state, one.cause, one.failed) for one in history] == [("abandoned", "too_few_updates", 1)] * 2


def test_where_all_diverge_all_count_as_failed() -> None:
    two = POLICY.model_copy(update={"rounds": 1, "cohort": 2, "min_updates": 1})
    (record,) = simulate(experiment(secure_aggregation=False, rounds=two), [FAR, FAR])
    assert (record.cause, record.accepted, record.failed) == ("aggregate_failed", 0, 2)


@pytest.mark.parametrize("secret", [False, True])
def test_an_evaluation_that_is_not_finite_fails_alone(secret: bool) -> None:
    measure = POLICY.model_copy(update={"rounds": 1, "purpose": "evaluate", "evaluate_every": 1})
    twos = {name: np.full_like(tensor, 2) for name, tensor in compile_plan(experiment()).initial.items()}
    (record,) = simulate(experiment(initial=twos, secure_aggregation=secret, rounds=measure), WITH_ONE)
    assert record.state == "committed" and record.fairness["loss"].clients == len(CLIENTS)


def test_rows_on_which_a_version_cannot_be_measured_fail_no_round() -> None:
    history = simulate(experiment(evaluation=FAR, **OPEN), CLIENTS)
    assert [(one.state, one.evaluation) for one in history] == [("committed", None)] * 2


NOISE: dict[str, tuple[Privacy, bool]] = {
    "the coordinator's noise": (UserLevel(clip=1.0, delta=1e-5, noise_multiplier=1e-3), False),
    "the coordinator's noise of a secret sum": (UserLevel(clip=1.0, delta=1e-5, noise_multiplier=1e-3), True),
    "shared noise": (UserLevel(clip=1.0, delta=1e-5, noise_multiplier=0.1, mechanism="discrete_gaussian"), True),
    "local noise": (LocalLevel(mechanism="gaussian", epsilon=1e4, delta=1e-5, clip=1.0), False),
    "local noise in a secret sum": (LocalLevel(mechanism="gaussian", epsilon=1e4, delta=1e-5, clip=1.0), True),
}
HIDDEN = POLICY.model_copy(update={"rounds": 1, "weight_cap": 1, "min_updates": len(WITH_ONE)})


@pytest.mark.parametrize("engine", ["threads", "processes", "batched:4"])
@pytest.mark.parametrize("name", NOISE)
def test_under_a_promise_of_privacy_it_counts_as_zeros_and_nobody_is_told(name: str, engine: str) -> None:
    privacy, secret = NOISE[name]
    asked: dict[str, Any] = {"privacy": privacy, "secure_aggregation": secret, "rounds": HIDDEN}
    found = simulate_full(experiment(**asked), WITH_ONE, engine=engine, workers=2)
    assert [(one.state, one.accepted, one.failed) for one in found.history] == [("committed", len(WITH_ONE), 0)]
    assert all(np.isfinite(tensor).all() for tensor in found.weights.values())


@pytest.mark.parametrize("name", NOISE)
def test_under_a_promise_of_privacy_a_round_in_which_all_diverge_is_noise_and_is_paid_for(name: str) -> None:
    privacy, secret = NOISE[name]
    # So large a rate that no order of these rows leaves a change finite.
    asked = {"privacy": privacy, "secure_aggregation": secret, "rounds": HIDDEN, "optimizer": sgd(1e6)}
    found = simulate_full(experiment(**asked), [FAR] * len(WITH_ONE))
    (record,) = found.history
    assert (record.state, record.accepted, record.failed) == ("committed", len(WITH_ONE), 0)
    assert record.epsilon is not None and record.epsilon > 0
    first = compile_plan(experiment()).initial
    assert not same(found.weights, first)
    assert all(np.abs(found.weights[name] - first[name]).max() < 0.1 for name in first)


def test_under_a_promise_of_privacy_buffered_rounds_count_it_as_zeros_too() -> None:
    buffered = RoundPolicy(rounds=2, cohort=4, mode="buffered", weight_cap=1, evaluate_every=0)
    local = LocalLevel(mechanism="gaussian", epsilon=1e4, delta=1e-5, clip=1.0)
    history = simulate(experiment(privacy=local, secure_aggregation=False, rounds=buffered), [FAR] * 6)
    assert [(one.state, one.accepted, one.failed) for one in history] == [("committed", 4, 0)] * 2


@pytest.mark.parametrize("far", [np.nan, np.inf])
def test_under_a_promise_of_privacy_what_a_trainer_of_ones_own_returns_counts_as_zeros_too(far: float) -> None:
    def nowhere(params: Params, task: FitTask) -> FitResult:
        return {name: np.full_like(value, far) for name, value in params.items()}, 1, 1, {}

    own = Experiment(
        name="own",
        model=ExternalModel({"w": (3,)}),
        schema=SCHEMA,
        holdout=0.0,
        codecs=("float16",),
        secure_aggregation=False,
        privacy=UserLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0),
        rounds=RoundPolicy(rounds=1, cohort=3, weight_cap=1, evaluate_every=0),
    )
    (record,) = simulate(own, CLIENTS[:3], trainer=ExternalTrainer(nowhere))
    assert (record.state, record.accepted, record.failed) == ("committed", 3, 0)


def test_under_a_promise_of_privacy_a_change_that_its_codec_cannot_hold_counts_as_zeros() -> None:
    own = Experiment(
        name="own",
        model=ExternalModel({"w": (3,)}),
        schema=SCHEMA,
        holdout=0.0,
        codecs=("float16",),
        secure_aggregation=False,
        privacy=UserLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0),
        rounds=RoundPolicy(rounds=1, cohort=3, weight_cap=1, evaluate_every=0),
    )
    (record,) = simulate(own, CLIENTS[:3], trainer=GOES_FAR)
    assert (record.state, record.accepted, record.failed) == ("committed", 3, 0)
