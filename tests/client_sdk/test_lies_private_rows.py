"""A coordinator that asks by an honest plan whose steps noise single rows: by a row that ends the training, and by
trainings whose price the task says otherwise.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from liar import devices, lying_coordinator, refusals
from sdk_kit import experiment, kinds, rows

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal import FedDyn
from coterie.client_sdk.device.spending import PrivacyLedger
from coterie.client_sdk.device.trainers.base import LocalTask, LocalWork
from coterie.client_sdk.device.trainers.plan import PlanTrainer
from coterie.compute import nn
from coterie.compute.optim import sgd
from coterie.protocol.device import Task
from coterie.protocol.privacy import ExampleLevel, LocalLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.tensors import decode_tensors
from coterie.protocol.update import read_update

WORDS = DataSchema((Feature(name="x", dtype="int32", shape=(4,)),), Label(name="y", low=0, high=2))
LEVEL = ExampleLevel(clip=1.0, delta=1e-6, noise_multiplier=50.0, rows=40)
TRUSTS_THE_DEVICE = 'max_epsilon = 0.9\ntrusts = ["device"]\n'


def worded(*, unknown: bool) -> dict[str, Any]:
    """Forty rows of ids, one of which may lie outside the model's table of ten."""
    drawn = np.random.default_rng(1)
    x = drawn.integers(0, 10, (40, 4)).astype(np.int32)
    if unknown:
        x[7, 2] = 77
    return {"x": x, "y": drawn.integers(0, 3, 40).astype(np.int32)}


def test_a_device_with_an_id_outside_the_table_does_what_one_without_does(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(10, 3), nn.Flatten(), nn.Linear(12, 3))
    policy = RoundPolicy(rounds=1, cohort=2, weight_cap=1, evaluate_every=0)
    wanted = experiment(
        "own", schema=WORDS, model=model, rounds=policy, privacy=LEVEL, secure_aggregation=False, max_steps=12
    )
    with lying_coordinator(tmp_path) as lying:
        _, token = lying.submit(wanted)
        data = [worded(unknown=True), worded(unknown=False)]
        with devices(lying, token, tmp_path, count=2, policy=TRUSTS_THE_DEVICE, data=data) as running:
            told = [device.events() for device in running]
    assert [refusals(events) for events in told] == [[], []]
    assert ["uploaded" in kinds(events) for events in told] == [True, True]
    spent = [PrivacyLedger(tmp_path / f"device-{n}" / "state" / "ledger.db").total(1e-5) for n in (0, 1)]
    assert spent[0] == spent[1]
    assert spent[0].releases == 1


NOISED_UPLOAD = {
    "mechanism": "gaussian",
    "epsilon": 0.001,
    "delta": 1e-9,
    "clip": 1e-9,
    "top": 0.01,
    "outputs": None,
}
OTHERWISE: dict[str, dict[str, Any]] = {
    "noise of the upload": {
        "privacy": {"unit": "user", "epsilon": 0.5, "delta": 1e-5, "mechanism": "gaussian", "trusts": "device"},
        "local": NOISED_UPLOAD,
    },
    "the coordinator's word": {
        "privacy": {"unit": "user", "epsilon": 0.5, "delta": 1e-5, "mechanism": "gaussian", "trusts": "coordinator"}
    },
}


@pytest.mark.parametrize("case", OTHERWISE)
def test_steps_that_noise_rows_are_taken_under_no_other_promise(tmp_path: Path, case: str) -> None:
    """FedDyn keeps what it trained on the device and subtracts it from a later update, after that update's noise."""
    policy = RoundPolicy(rounds=3, cohort=1, weight_cap=1, evaluate_every=0)
    wanted = experiment(
        "own",
        rounds=policy,
        privacy=LEVEL,
        algorithm=FedDyn(clients=1, alpha=1.0),
        secure_aggregation=False,
        max_steps=5,
        holdout=0.0,
    )

    def lie(task: Task) -> Task:
        return Task.model_validate(task.model_dump(mode="json", exclude_unset=True) | OTHERWISE[case])

    with lying_coordinator(tmp_path, task=lie) as lying:
        _, token = lying.submit(wanted)
        text = 'max_epsilon = 0.9\ntrusts = ["device", "coordinator"]\n'
        with devices(lying, token, tmp_path, policy=text) as (device,):
            told = device.events()
        assert not [body for body in lying.bodies("/update") if body]
    assert refusals(told) == ["privacy_unkept"]
    assert not list((tmp_path / "device-0" / "state").glob("states/*.state"))


ASKED = 3
"""Of four features."""


def asked_of(*, has: bool) -> dict[str, Any]:
    """Forty rows, of which one at most has the feature that is asked about."""
    own = dict(rows(40, 1))
    own["x"] = np.array(own["x"])
    own["x"][:, ASKED] = 0
    own["x"][7, ASKED] = 5.0 if has else 0.0
    return own


def question() -> Experiment:
    """Weights such that a row without the feature moves none of the weights that read it, and one with it moves all."""
    initial = {name: np.zeros_like(tensor) for name, tensor in compile_plan(experiment("own")).initial.items()}
    for tensor in initial.values():
        if tensor.shape == (8,):
            tensor[:] = 1.0
        elif tensor.shape == (3, 8):
            tensor[:] = np.array([[1], [-1], [0.5]], np.float32)
    return experiment(
        "own",
        initial=initial,
        optimizer=sgd(1.0),
        privacy=LEVEL,
        secure_aggregation=False,
        max_steps=1,
        holdout=0.0,
        batch_size=32,
        rounds=RoundPolicy(rounds=1, cohort=1, weight_cap=1, evaluate_every=0),
    )


def test_low_bits_of_noised_rows_do_not_say_whether_a_row_is_there() -> None:
    """Weights that no row moves have moved by whole steps of the noise, and so have those that a row moves."""
    made = compile_plan(question())
    manifest = made.plan.manifest
    private = manifest.training.private
    assert private is not None
    layout = manifest.layout
    grid = private.noise(batch=manifest.training.batch_size, length=layout.size).grid
    trainer = PlanTrainer()
    place = next(layout.slices[name] for name, shape in layout.shapes.items() if shape == (8, 4))
    spread: dict[bool, float] = {}
    for has in (True, False):
        told: list[np.ndarray[Any, Any]] = []
        for seed in range(30):
            work = LocalWork(
                plan=made.plan,
                task=LocalTask(experiment="e", round=1, seed=seed, weight_cap=1),
                weights=made.initial,
                rows=asked_of(has=has),
                whole=True,
            )
            delta = np.asarray(trainer.train(work).sections["delta"], np.float64)[slice(*place)]
            told.append(delta.reshape(8, 4)[:, ASKED] * private.expected / grid)
        steps = np.concatenate(told)
        # The expected number of rows is a power of two, so that what was released is read without rounding.
        np.testing.assert_array_equal(steps, np.rint(steps))
        assert (np.abs(steps) < 2**22).sum() > 10, "numbers that would show a fraction of a step"
        spread[has] = float(steps.std())
    assert 0.5 < spread[True] / spread[False] < 2


def test_state_of_a_plan_that_noises_uploads_enters_no_plan_that_noises_rows(tmp_path: Path) -> None:
    """Two honest plans of one method as one experiment without a history: what FedDyn keeps of a training without any
    noise but that of its upload would be in the next update, whose noise is made for single rows alone.
    """
    policy = 'max_epsilon = 2.0\ntrusts = ["device"]\n'
    alone = RoundPolicy(rounds=1, cohort=1, weight_cap=1, evaluate_every=0)
    common: dict[str, Any] = {"rounds": alone, "secure_aggregation": False, "holdout": 0.0}
    method = FedDyn(clients=1, alpha=1000.0)
    own = LocalLevel(mechanism="gaussian", epsilon=0.01, delta=1e-9, clip=1.0)
    uploads = experiment("own", algorithm=method, privacy=own, optimizer=sgd(1.0), max_steps=1, **common)
    steps = experiment("own", algorithm=method, privacy=LEVEL, optimizer=sgd(1.0), max_steps=1, **common)
    names: list[str] = []

    def lie(task: Task) -> Task:
        names.append(task.experiment)
        whole = task.model_dump(mode="json", exclude_unset=True)
        promise = whole["privacy"] | {"epsilon": 1.5, "delta": 1e-5}
        return Task.model_validate(whole | {"experiment": names[0], "lineage": None, "privacy": promise})

    told: list[dict[str, Any]] = []
    kept: list[np.ndarray[Any, Any]] = []
    with lying_coordinator(tmp_path, task=lie) as lying:
        for wanted in (uploads, steps):
            run, token = lying.submit(wanted)
            with devices(lying, token, tmp_path, policy=policy, names=["one"]) as (device,):
                told += device.events()
            if not kept:
                (state,) = (device.folder / "states").iterdir()
                tensors = decode_tensors(state.read_bytes())
                kept.append(np.concatenate([tensors[name].ravel() for name in sorted(tensors)]))
                lying.history(run)
        sent = [body for body in lying.bodies("/update") if body]
    assert (refusals(told), len(set(names)), len(sent)) == ([], 2, 2)
    manifest = compile_plan(steps).plan.manifest
    update, layout = read_update(sent[1], manifest.sections).decode("delta"), manifest.layout
    moved = np.concatenate([update[slice(*layout.slices[name])] for name in sorted(layout.shapes)])
    likeness = float(moved @ kept[0] / np.linalg.norm(moved) / np.linalg.norm(kept[0]))
    assert abs(likeness) < 0.6
    assert "state_dropped" in kinds(told)
