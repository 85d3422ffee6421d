"""Noise of private steps that differs by round: in the plan, on a device, in its account, and in a whole run."""

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.aggregation.compiling.compile import CompiledPlan, compile_plan
from coterie.aggregation.plan.check import check_manifest
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.plan.needs import Needs
from coterie.aggregation.plan.private_steps import PrivateSteps
from coterie.aggregation.requested import check_requested
from coterie.client_sdk.device.trainers.base import LocalWork, TrainOptions
from coterie.client_sdk.device.trainers.plan import PlanTrainer, step_feeds
from coterie.errors import ArgumentValueError, ExperimentError, PlanRefused
from coterie.privacy.dp.accounting import total_cost
from coterie.privacy.dp.rounds import whole_cost
from coterie.protocol.features import EXAMPLE_LEVEL, NOISE_SCHEDULE
from coterie.simulation import simulate
from tests.aggregation.test_example_level import LEVEL, LINEAR, TASK, rows
from tests.server.test_private_rows import request

FACTORS = (2.0, 1.0, 1.0, 0.25)
SCHEDULED = LEVEL.but(schedule=FACTORS)


@cache
def plan() -> CompiledPlan:
    return compile_plan(replace(LINEAR, privacy=SCHEDULED))


def work(round: int, **options: Any) -> LocalWork:
    compiled, task = plan(), replace(TASK, round=round)
    given = TrainOptions(**options)
    return LocalWork(plan=compiled.plan, task=task, weights=compiled.initial, rows=rows(30), options=given)


def test_the_manifest_states_the_factors_and_devices_must_know_them() -> None:
    manifest = plan().plan.manifest
    stated = json.loads(manifest.data)["training"]["private"]
    assert stated == {"clip": 0.7, "noise_multiplier": 0.9, "expected": 8, "rows": 50, "factors": list(FACTORS)}
    assert Manifest.from_bytes(manifest.data) == manifest
    assert Needs.of(manifest).features == {EXAMPLE_LEVEL, NOISE_SCHEDULE}
    constant = compile_plan(LINEAR).plan
    assert Needs.of(constant.manifest).features == {EXAMPLE_LEVEL}
    assert "factors" not in json.loads(constant.manifest.data)["training"]["private"]


def test_a_plan_of_equal_factors_takes_the_steps_of_the_constant_plan() -> None:
    equal = compile_plan(replace(LINEAR, privacy=LEVEL.but(schedule=(1.0,) * 4)))
    assert equal.plan.graphs["train"] == compile_plan(LINEAR).plan.graphs["train"]


@given(
    clip=st.floats(1e-3, 1e3),
    factors=st.lists(st.floats(0.05, 20.0), min_size=1, max_size=6).map(tuple),
    length=st.integers(1, 10**7),
)
def test_every_round_has_its_share_of_noise_on_one_grid(clip: float, factors: tuple[float, ...], length: int) -> None:
    private = PrivateSteps(clip=clip, noise_multiplier=1.1, expected=8, rows=50, factors=factors)
    loudest = private.noise(batch=16, length=length)
    for number, factor in enumerate(factors, start=1):
        own = private.noise(batch=16, length=length, round=number)
        assert own.grid == loudest.grid and own.deviation <= loudest.deviation * (1 + 1e-12)
        assert own.deviation >= 1.1 * factor * (clip + own.grid * length**0.5)
        alone = PrivateSteps(clip=clip, noise_multiplier=1.1 * factor, expected=8, rows=50)
        # A coarser grid than it would have alone moves sums by more.
        least = alone.noise(batch=16, length=length).deviation
        assert least <= own.deviation * (1 + 1e-12)
        assert own.deviation <= least * (1 + own.grid * length**0.5 / clip)


def test_a_device_draws_the_noise_of_its_round() -> None:
    manifest = plan().plan.manifest
    private = manifest.training.private
    assert private is not None
    names = [tensor.name for tensor in manifest.stepped.from_source("noise")] if manifest.stepped else []
    for round, factor in enumerate(FACTORS, start=1):
        drawn = [feeds[name].ravel() for _ in range(40) for feeds in step_feeds(work(round)) for name in names]
        noise = np.concatenate(drawn) * private.noise(batch=manifest.training.batch_size, length=15).grid
        assert np.std(noise) == pytest.approx(0.9 * factor * 0.7, rel=0.07)
    assert PlanTrainer().train(work(4)).steps == 7


def test_a_round_beyond_the_factors_is_refused_by_the_device() -> None:
    with pytest.raises(ArgumentValueError, match="factors for 4 rounds, and this is round 5"):
        PlanTrainer().train(work(5))


def test_a_schedule_of_another_length_is_refused_when_the_plan_is_made() -> None:
    with pytest.raises(ExperimentError, match="3 factors for 4 rounds") as refused:
        compile_plan(replace(LINEAR, privacy=LEVEL.but(schedule=(1.0, 1.0, 1.0))))
    assert refused.value.reason == "privacy_invalid"


@pytest.mark.parametrize("factors", [(1.0, 1e-8), tuple(1 + n / 100 for n in range(65))], ids=["wide", "many"])
def test_a_device_refuses_a_plan_whose_schedule_no_experiment_may_ask_for(factors: tuple[float, ...]) -> None:
    manifest = plan().plan.manifest
    private = manifest.training.private
    assert private is not None
    wrong = replace(manifest, training=replace(manifest.training, private=replace(private, factors=factors)))
    with pytest.raises(PlanRefused, match="its schedule of noise"):
        check_manifest(wrong)


def test_a_request_and_its_plan_must_mean_one_schedule() -> None:
    manifest = plan().plan.manifest
    rounds = LINEAR.rounds
    asked = request(SCHEDULED)
    check_requested(asked.model_copy(update={"rounds": rounds}), manifest)
    for other in (LEVEL, LEVEL.but(schedule=FACTORS[::-1])):
        with pytest.raises(ExperimentError, match="compile it again"):
            check_requested(request(other).model_copy(update={"rounds": rounds}), manifest)


def test_a_whole_run_spends_what_its_rounds_cost() -> None:
    experiment = replace(LINEAR, privacy=SCHEDULED)
    found = simulate(experiment, [rows(30, seed) for seed in range(3)])
    draws = plan().plan.manifest.training.draws()
    spent = [record.epsilon for record in found.rounds]
    expected = [
        total_cost(whole_cost(LEVEL.but(schedule=FACTORS[:n]), n, cohort=3, draws=draws), 1e-5).epsilon
        for n in range(1, 5)
    ]
    assert spent == pytest.approx(expected, rel=1e-6)
    steps = np.diff([0.0, *expected])
    assert steps[3] > steps[1] > steps[0] and steps[2] > 0
