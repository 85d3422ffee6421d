"""What a device kept of trainings without noise, and noise that nobody can make: neither says a word of rows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from liar import devices, lying_coordinator, refusals
from sdk_kit import experiment, kinds
from test_lies import ALONE, LOCAL, changed, left, promising

from coterie.aggregation.compiling.compile import compile_plan
from coterie.client_sdk.device.promise import check_own_noise
from coterie.errors import PlanRefused
from coterie.protocol.claims import LocalTerms, PrivacyTerms
from coterie.protocol.device import Task
from coterie.protocol.sections import SectionSpec
from coterie.protocol.update import read_update

STRICT = 'max_epsilon = 0.5\ntrusts = ["device"]\n'
PROMISE = PrivacyTerms(unit="user", epsilon=0.1, delta=1e-6, mechanism="gaussian", trusts="device")
SMALL = LocalTerms(mechanism="gaussian", epsilon=0.1, delta=1e-6, clip=1e-9, top=0.01, outputs=None)


def test_what_a_codec_kept_without_noise_is_not_added_to_an_update_with_noise(tmp_path: Path) -> None:
    """The owner states a limit after a round in clear. The error that the codec kept of that round is larger than all
    the noise of the next one by far, and would be sent beside it.
    """
    wanted = experiment("own", rounds=ALONE, codecs=("topk:0.1+ef",), secure_aggregation=False)

    def noised(task: Task) -> Task:
        return changed(task, privacy=PROMISE.model_dump(), local=SMALL.model_dump(), weight_cap=1)

    with lying_coordinator(tmp_path) as lying:
        run, token = lying.submit(wanted)
        with devices(lying, token, tmp_path, wanted=2) as (device,):
            assert left(device.events()) == ["uploaded"] * 2
        lying.history(run)
        lying.liar.task = noised
        before = len([body for body in lying.bodies("/update") if body])
        with devices(lying, token, tmp_path, policy=STRICT) as (device,):
            events = device.events()
        sent = [body for body in lying.bodies("/update") if body]
    assert (refusals(events), len(sent) - before) == ([], 1)
    specs = compile_plan(wanted).plan.manifest.sections
    told = [float(np.abs(read_update(body, specs).decode("delta")).max()) for body in sent]
    assert min(told[:before]) > 1e-4
    assert told[-1] < 1e-6, "noise of about 1e-7 and no more"
    assert "state_dropped" in kinds(events)


IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "finer than any grid": {"clip": 1e-40},
    "a sign that says nothing": {"mechanism": "randomised_response", "epsilon": 1e-300, "delta": 0.0},
    "a sign that says too much": {"mechanism": "randomised_response", "epsilon": 501.0, "delta": 0.0, "outputs": 1},
    "more signs than there are numbers": {"mechanism": "sign_ds", "epsilon": 1.0, "delta": 0.0, "outputs": 10**6},
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_noise_that_cannot_be_made_is_refused_before_anything_is_trained(case: str, tmp_path: Path) -> None:
    terms = SMALL.model_copy(update=IMPOSSIBLE[case])

    def lie(task: Task) -> Task:
        return changed(promising(1000.0)(task), local=terms.model_dump())

    with lying_coordinator(tmp_path, task=lie) as lying:
        _, token = lying.submit(experiment("own", rounds=ALONE, privacy=LOCAL))
        with devices(lying, token, tmp_path, policy='max_epsilon = 1000.0\ntrusts = ["device"]\n') as (device,):
            events = device.events()
    assert refusals(events) == ["privacy_unkept"]
    assert not left(events) and "trained" not in kinds(events)


def test_a_plan_that_sends_more_than_its_noise_covers_is_refused_before_anything_is_trained() -> None:
    manifest = compile_plan(experiment("own")).plan.manifest
    other = SectionSpec(name="other", length=2, value_range=(-1.0, 1.0))
    asked = Task.model_construct(kind="train", local=SMALL)
    check_own_noise(asked, manifest)
    check_own_noise(Task.model_construct(kind="train", local=None), manifest)
    with pytest.raises(PlanRefused, match="other") as refused:
        check_own_noise(asked, replace(manifest, sections=(*manifest.sections, other)))
    assert refused.value.reason == "local_noise_sections"
