"""Versions that are the one before plus levels: small to send, as good to train."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulation_kit import CLIENTS, experiment

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.plan.manifest import DELTA
from coterie.aggregation.server_optimizers import server_sgd
from coterie.aggregation.version import next_version
from coterie.compute.nn import BatchNorm2d, Conv2d, Flatten, Linear, Sequential
from coterie.compute.nn.zoo import mlp
from coterie.errors import ExperimentError
from coterie.protocol.delta import encode_delta
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import simulate_full


def test_every_version_is_a_small_delta_from_the_one_before_and_learns_as_well(tmp_path: Path) -> None:
    policy = RoundPolicy(rounds=6, cohort=6, evaluate_every=1)
    wanted = replace(
        experiment(rounds=policy), model=mlp((4, 64, 64, 3)), server_optimizer=server_sgd(1.0, momentum=0.5)
    )
    plain = simulate_full(wanted, CLIENTS).history
    small = simulate_full(replace(wanted, broadcast="int8"), CLIENTS, folder=tmp_path).history
    names = [record.model for record in small.rounds]
    files = [(tmp_path / f"{name}.safetensors").read_bytes() for name in names]
    for old, new in pairwise(files):
        delta = b"".join(encode_delta(old, new) or ())
        assert delta[4] == 1 and len(delta) < 0.3 * len(new)
    losses = [history.rounds[-1].metrics["loss"] for history in (plain, small)]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def test_changes_below_half_a_step_arrive_in_later_rounds() -> None:
    manifest = compile_plan(replace(experiment(), broadcast="int8")).plan.manifest
    size = manifest.layout.size
    change = np.full(size, 1e-3)
    change[0] = 1.0  # a step is 1/127 in this block: a thousandth vanishes unless it is kept for later
    weights, state = np.zeros(size, np.float32), dict[str, np.ndarray[Any, Any]]()
    for _ in range(40):
        after = next_version(
            manifest, base=weights, sections={DELTA: change}, clients=1, weight=1.0, server=server_sgd(1.0), state=state
        )
        weights, state = after.weights, dict(after.state)
    np.testing.assert_allclose(weights, 40 * change, rtol=0, atol=0.5 / 63)
    np.testing.assert_allclose(weights + state["broadcast/lost"], 40 * change, rtol=0, atol=1e-9)


def test_a_choice_that_there_is_not_is_refused() -> None:
    with pytest.raises(ExperimentError, match="broadcast must be one of float32, int8"):
        replace(experiment(), broadcast="int4")  # pyright: ignore[reportArgumentType]


def test_models_with_running_statistics_are_refused() -> None:
    image = DataSchema((Feature(name="x", shape=(1, 4, 4)),), Label(name="y", low=0, high=2))
    model = Sequential(Conv2d(1, 2, 3), BatchNorm2d(2), Flatten(), Linear(8, 3))
    with pytest.raises(ExperimentError) as caught:
        compile_plan(replace(experiment(), model=model, schema=image, broadcast="int8"))
    assert caught.value.reason == "broadcast_statistics"
