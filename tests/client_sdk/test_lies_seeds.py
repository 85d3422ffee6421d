"""A coordinator that chooses the seed of each device's training, against real devices: of a sum, no part is of one
device by that choice.
"""

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from liar import Lying, devices, lying_coordinator, refusals
from sdk_kit import experiment, rows
from test_lies import ALONE, changed

from coterie.compute import nn
from coterie.draws import batch_order, random_inputs
from coterie.protocol.device import Task
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.secure_aggregation import SecureAggregation
from coterie.protocol.tensors import decode_tensors

CLIENTS, ROWS, RATE, LEARNS = 5, 8, 0.5, 0.1
STRICT = 'require_secure_aggregation = true\nmodes = ["consistent"]\n'
Matrix = npt.NDArray[Any]


def kept(seed: int) -> Matrix:
    """Which of four features of each row Dropout keeps in the only step, as the definition of streams says."""
    return random_inputs(seed, 0, ROWS * 4).reshape(ROWS, 4) >= RATE


def seed_that(keeps: bool) -> int:
    """A seed with which the first feature of every row is kept, or of none."""
    return next(seed for seed in count() if (kept(seed)[:, 0] == keeps).all())


def change_of(data: dict[str, Matrix], seed: int, weight: Matrix, bias: Matrix) -> Matrix:
    """By how much one step moves the weights of the first feature: that of a linear model behind Dropout."""
    order = batch_order(ROWS, seed, 0)
    x, y = data["x"][order] * kept(seed) / (1 - RATE), data["y"][order]
    logits = x @ weight.T + bias
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return -LEARNS * ((chances - np.eye(3)[y]).T @ x)[:, 0] / ROWS


def versions(lying: Lying, run: str) -> list[dict[str, Matrix]]:
    """The weights of every version of an experiment, the oldest first."""

    async def inside() -> list[dict[str, Matrix]]:
        control = lying.control()
        try:
            found = sorted(await control.models(run), key=lambda model: model.round)
            return [dict(decode_tensors(await control.blob(model.sha256))) for model in found]
        finally:
            await control.close()

    return asyncio.run(inside())


def test_seeds_that_silence_all_others_do_not_lay_one_device_open(tmp_path: Path) -> None:
    """Of all but one device Dropout would zero a feature in every row, so that its weights move by that one alone."""
    given: dict[str, int] = {}

    def lie(task: Task) -> Task:
        seed = given.setdefault(task.device, seed_that(not given))
        return changed(task, seed=seed)

    wanted = experiment(
        "own",
        model=nn.Sequential(nn.Dropout(RATE), nn.Linear(4, 3)),
        rounds=RoundPolicy(rounds=1, cohort=CLIENTS, min_updates=CLIENTS, evaluate_every=0, deadline_s=600.0),
        secure_aggregation=SecureAggregation(mode="consistent", dropout=0.0),
        batch_size=ROWS,
        holdout=0.0,
    )
    data = [rows(ROWS, number) for number in range(CLIENTS)]
    with lying_coordinator(tmp_path, task=lie) as lying:
        run, token = lying.submit(wanted)
        with devices(lying, token, tmp_path, count=CLIENTS, policy=STRICT, data=data, wanted=2) as members:
            heard = [device.events() for device in members]
        assert not [code for events in heard for code in refusals(events)]
        lying.history(run)
        before, after = versions(lying, run)
    assert sorted(given.values()) == sorted([seed_that(True), *[seed_that(False)] * (CLIENTS - 1)])
    moved = CLIENTS * (after["1.weight"] - before["1.weight"])[:, 0]
    alone = [change_of(own, seed_that(True), before["1.weight"], before["1.bias"]) for own in data]
    apart = [np.linalg.norm(moved - each) / np.linalg.norm(each) for each in alone]
    assert min(apart) > 0.05


def test_a_task_sets_no_hyper_parameter_that_the_signed_plan_lacks(tmp_path: Path) -> None:
    """A trainer of the owner's would read it as a setting of its own: a seed that is everybody's, or no noise."""

    def lie(task: Task) -> Task:
        return changed(task, hyper={"seed": 7.0})

    with lying_coordinator(tmp_path, task=lie) as lying:
        _, token = lying.submit(experiment("own", rounds=ALONE))
        with devices(lying, token, tmp_path) as (device,):
            events = device.events()
        assert refusals(events) == ["unknown_hyper"]
        assert not lying.bodies("/update")
