"""Several steps in one call of the runtime: the update of single steps, in fewer calls."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from as_simulated import assert_as_simulated
from numpy.typing import NDArray
from sdk_kit import Coordinator

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.client_sdk.device.policy import DevicePolicy, memory_needed
from coterie.client_sdk.device.trainers.base import LocalResult, LocalTask, LocalWork, TrainOptions
from coterie.client_sdk.device.trainers.plan import PlanTrainer
from coterie.compute import nn
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.optim import adam, clipped, cosine
from coterie.compute.runtime.step_loop import StepLoop
from coterie.compute.training import accumulate
from coterie.errors import ExperimentError, PolicyRefused
from coterie.protocol.privacy import ExampleLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import simulate_full
from tests.client_sdk.test_providers import desk, quick, told
from tests.compute.providers.fakes import Recorded

ROWS, BATCH, EPOCHS = 44, 8, 2
STEPS = EPOCHS * -(-ROWS // BATCH)
PRIVATE = ExampleLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0, rows=ROWS, max_batch=24)
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "scheduled": {"schedules": {"lr": cosine(0.05, length=STEPS)}, "max_steps": STEPS},
    "clipped, in groups": {"optimizer": accumulate(clipped(adam(0.02), 0.5), 3)},
    "float16": {"precision": "float16"},
    "recomputed": {"recompute": True},
    "rows private": {"privacy": PRIVATE, "rounds": RoundPolicy(rounds=1, cohort=1, evaluate_every=0, weight_cap=1)},
}


def rows(seed: int = 3) -> dict[str, NDArray[Any]]:
    x = np.random.Generator(np.random.PCG64(seed)).normal(size=(ROWS, 5)).astype(np.float32)
    return {"x": x, "y": x[:, :3].argmax(1).astype(np.int32)}


def asked(**changes: Any) -> Experiment:
    usual: dict[str, Any] = {
        "name": "grouped steps",
        "model": nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 3)),
        "schema": DataSchema((Feature(name="x", shape=(5,)),), Label(name="y", low=0, high=2)),
        "loss": softmax_cross_entropy,
        "optimizer": adam(0.02),
        "batch_size": BATCH,
        "epochs": EPOCHS,
        "holdout": 0.0,
        "rounds": RoundPolicy(rounds=1, cohort=1, evaluate_every=0),
    }
    return Experiment(**usual | changes)


def trained(wanted: Experiment, trainer: PlanTrainer | None = None, **changes: Any) -> LocalResult:
    compiled = compile_plan(wanted)
    task = LocalTask(experiment="grouped", round=1, seed=7)
    work = LocalWork(
        plan=compiled.plan,
        task=task,
        weights=compiled.initial,
        rows=rows(),
        options=TrainOptions(entropy=Random(7).randbytes),
    )
    return (trainer or PlanTrainer()).train(replace(work, **changes))


def assert_equal(found: LocalResult, expected: LocalResult) -> None:
    assert found.steps == expected.steps
    assert found.sections.keys() == expected.sections.keys()
    assert all(np.array_equal(found.sections[name], value) for name, value in expected.sections.items())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("steps", [2, 5, STEPS, 100])
def test_groups_make_the_bits_of_single_steps(name: str, steps: int) -> None:
    """Groups that fill the training, that leave some steps, and that never fill."""
    assert_equal(trained(asked(**CASES[name], steps_per_call=steps)), trained(asked(**CASES[name])))


def test_a_second_training_begins_anew() -> None:
    trainer, wanted = PlanTrainer(), asked(steps_per_call=5)
    assert_equal(trained(wanted, trainer), trained(wanted, trainer))


def test_a_group_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    step = StepLoop.step

    def counted(loop: StepLoop, feeds: Mapping[str, NDArray[Any]]) -> None:
        calls.append(1)
        step(loop, feeds)

    monkeypatch.setattr(StepLoop, "step", counted)
    assert trained(asked(steps_per_call=5)).steps == STEPS == 12
    assert len(calls) == 2 + 2


@pytest.mark.usefixtures(quick.__name__)
def test_a_provider_without_loops_takes_single_steps() -> None:
    providers = desk(Recorded("Recorded", "1"))
    found = trained(asked(steps_per_call=5), PlanTrainer(providers=providers))
    assert told(providers)[-1] == ("Recorded", "chosen")
    assert_equal(found, trained(asked()))


def test_devices_and_a_simulation_take_the_same_groups(coordinator: Coordinator, tmp_path: Path) -> None:
    wanted = asked(
        batch_size=64,
        epochs=5,
        steps_per_call=3,
        model=nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 3)),
        rounds=RoundPolicy(rounds=3, cohort=2, evaluate_every=0),
        evaluation=rows(9),
    )
    assert_as_simulated(coordinator, tmp_path, wanted, [rows(1), rows(2)], tolerance=1e-5)


def test_engines_agree_and_a_resumed_run_goes_on(tmp_path: Path) -> None:
    clients = [rows(1), rows(2)]

    def of(rounds: int, **changes: Any) -> Experiment:
        return asked(
            rounds=RoundPolicy(rounds=rounds, cohort=2, evaluate_every=0),
            steps_per_call=4,
            evaluation=rows(9),
            **changes,
        )

    whole = simulate_full(of(4), clients)
    lanes = simulate_full(of(4), clients, engine="batched")
    simulate_full(of(2), clients, folder=tmp_path)
    resumed = simulate_full(of(4), clients, folder=tmp_path, resume=True)
    for tensor, value in whole.weights.items():
        assert np.array_equal(resumed.weights[tensor], value)
        np.testing.assert_allclose(lanes.weights[tensor], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("value", "words"), [(0, "in 1..1024, not 0"), (1025, "1..1024"), (2.0, "a whole number")])
def test_a_number_of_steps_that_cannot_be_is_refused_by_name(value: Any, words: str) -> None:
    with pytest.raises(ExperimentError, match=f"steps_per_call.*{words}"):
        asked(steps_per_call=value)


def test_clients_with_trainers_of_their_own_take_no_groups() -> None:
    model = ExternalModel({"w": (3,)})
    with pytest.raises(ExperimentError, match="leave steps_per_call out"):
        asked(model=model, loss=None, optimizer=None, steps_per_call=2)


def test_a_policy_counts_the_batches_of_a_group() -> None:
    one, many = (compile_plan(asked(steps_per_call=steps)).plan for steps in (1, 1000))
    assert many.manifest.training.steps_per_call == 1000
    fed = 4 * (BATCH * (5 + 1 + 1 + 12))
    assert memory_needed(many) - memory_needed(one) >= 2 * 1000 * fed
    policy = DevicePolicy(memory_bytes=memory_needed(one))
    policy.check_plan(one)
    with pytest.raises(PolicyRefused, match="this device allows"):
        policy.check_plan(many)
