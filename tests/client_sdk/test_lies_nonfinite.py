"""A coordinator that asks a question with weights: they overflow for a device that has a certain feature, and for no
other. Under a promise of privacy, both devices send the same kinds of messages of the same sizes, and neither says why.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from liar import DeviceProcess, Lying, devices, lying_coordinator, refusals
from sdk_kit import Arrays, experiment, rows

from coterie.aggregation.compiling.compile import compile_plan
from coterie.client_sdk.control.client import ControlClient
from coterie.protocol.claims import LocalTerms
from coterie.protocol.conversion import from_json
from coterie.protocol.header import UpdateHeader
from coterie.protocol.privacy import ExampleLevel, LocalLevel, Privacy, UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.secagg import SecureMode
from coterie.protocol.secure_aggregation import SecureAggregation
from tests.patience import patience

ASKED = 3
"""The feature that the weights ask for."""
LOCAL: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-5, "clip": 0.5}
OPEN: dict[str, Privacy] = {
    "the coordinator's noise": UserLevel(clip=1.0, delta=1e-5, noise_multiplier=2.0),
    "correlated noise": UserLevel(
        clip=1.0, delta=1e-5, noise_multiplier=2.0, mechanism="blt", min_separation=1, max_participations=1
    ),
    "local gaussian": LocalLevel(mechanism="gaussian", **LOCAL),
    "local randomised response": LocalLevel(mechanism="randomised_response", epsilon=4.0, clip=0.5),
    "local sign_ds": LocalLevel(mechanism="sign_ds", epsilon=4.0, clip=0.5),
    "example level": ExampleLevel(clip=1.0, delta=1e-5, noise_multiplier=2.0, rows=40),
}
SECRET: dict[str, Privacy] = {
    "the coordinator's noise": UserLevel(clip=1.0, delta=1e-5, noise_multiplier=2.0),
    "shared noise": UserLevel(clip=1.0, delta=1e-5, noise_multiplier=2.0, mechanism="discrete_gaussian"),
    "local gaussian": LocalLevel(mechanism="gaussian", **LOCAL),
}
POLICY = """
max_epsilon = 1000.0
units = ["user", "example"]
trusts = ["device", "cohort", "coordinator"]
"""
SUMS_ALONE = "require_secure_aggregation = true\nmin_cohort = 5\n"


def question() -> Arrays:
    """Weights whose products overflow where the feature is not zero, and are zeros where it is."""
    made: Arrays = {}
    for name, tensor in compile_plan(experiment("own")).initial.items():
        made[name] = np.zeros_like(tensor)
        if tensor.shape == (8, 4):
            made[name][:, ASKED] = 3e38
        elif tensor.shape == (3, 8):
            made[name][:] = np.array([[1], [-1], [1]], np.float32)
    assert sum(int((tensor == np.float32(3e38)).sum()) for tensor in made.values()) == 8
    return made


def held(has: bool) -> Arrays:
    """The same rows but for one cell."""
    own = rows(40, 1)
    own["x"][:, ASKED] = 0
    own["x"][7, ASKED] = 5.0 if has else 0.0
    return own


def shape(body: bytes) -> object:
    """What anybody can tell of a message without knowing keys: the fields of an object, the size of anything else."""
    try:
        read = json.loads(body)
    except ValueError:
        return len(body)
    return tuple(sorted(_fields(read, "")))


def _fields(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, part in cast(dict[str, Any], value).items():
            yield from _fields(part, f"{place}/{'#' if name.isdigit() else name}")
    elif isinstance(value, list):
        yield from {field for part in cast(list[Any], value) for field in _fields(part, f"{place}[]")}
    else:
        yield place


def said(lying: Lying) -> dict[str, list[tuple[str, object]]]:
    """By task: the paths and the shapes of all that was said of it, but for questions and signs of life."""
    found: dict[str, list[tuple[str, object]]] = {}
    for _, path, body in list(lying.liar.heard):
        match = re.search(r"/tasks/(task_[0-9a-f]+)(/.*)", path)
        if match is not None and body and match[2] != "/progress":
            found.setdefault(match[1], []).append((match[2], shape(body)))
    return {task: sorted(set(messages), key=str) for task, messages in found.items()}


def published(lying: Lying, experiment: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All events of an experiment that has ended, and the record of its only round."""

    async def inside() -> tuple[list[dict[str, Any]], dict[str, Any]]:
        control = ControlClient(lying.url, token=lying.admin)
        try:
            heard: list[dict[str, Any]] = []
            async for event in control.events(experiment):
                heard.append({"type": event.type, **event.data})
                if event.type == "experiment.finished":
                    break
            history = await control.history(experiment)
            return heard, history.rounds[0].to_dict()
        finally:
            await control.close()

    return asyncio.run(asyncio.wait_for(inside(), patience(60)))


def told_alike(lying: Lying, running: list[DeviceProcess], wanted: str) -> list[list[dict[str, Any]]]:
    """Check that the first device, which has the feature, cannot be told from the others; what each told its owner."""
    told = [device.events() for device in running]
    assert [refusals(events) for events in told] == [[]] * len(told)
    assert not [path for _, path, _ in lying.liar.heard if path.endswith("/abort")]
    messages = said(lying)
    own = [next(event["task"] for event in events if event["event"] == "task") for events in told]
    assert set(messages) == set(own)
    assert all(messages[task] == messages[own[0]] for task in own), messages
    events, record = published(lying, wanted)
    assert not {event["type"] for event in events} & {"task.aborted", "update.refused"}
    assert (record["state"], record["accepted"], record["failed"]) == ("committed", len(told), 0), record
    return told


@pytest.mark.parametrize("name", OPEN)
def test_updates_in_the_open_do_not_say_whether_training_was_finite(tmp_path: Path, name: str) -> None:
    policy = RoundPolicy(rounds=1, cohort=2, weight_cap=1, evaluate_every=0)
    changes: dict[str, Any] = {"initial": question(), "privacy": OPEN[name], "max_steps": 5}
    with lying_coordinator(tmp_path) as lying:
        wanted, token = lying.submit(experiment("own", rounds=policy, secure_aggregation=False, **changes))
        with devices(lying, token, tmp_path, count=2, policy=POLICY, data=[held(True), held(False)]) as running:
            first, second = told_alike(lying, running, wanted)
    if name != "example level":
        assert "unusable" in [event["event"] for event in first], "its owner may know"
    assert "unusable" not in [event["event"] for event in second]
    for body in lying.bodies("/update"):
        if body:
            assert _header(body).weight == 1 and _header(body).steps == 0


@pytest.mark.parametrize("name", SECRET)
def test_updates_under_masks_do_not_say_whether_training_was_finite(tmp_path: Path, name: str) -> None:
    policy = RoundPolicy(rounds=1, cohort=5, weight_cap=1, evaluate_every=0)
    secure = SecureAggregation(norm=1.0, corrupt=0.2, dropout=0.2)
    changes: dict[str, Any] = {"initial": question(), "privacy": SECRET[name], "secure_aggregation": secure}
    with lying_coordinator(tmp_path) as lying:
        wanted, token = lying.submit(experiment("own", rounds=policy, **changes))
        data = [held(True)] + [held(False)] * 4
        # Masked vectors are uploaded before the sum is open: the second of these events ends a device.
        with devices(lying, token, tmp_path, count=5, policy=POLICY, data=data, wanted=2) as running:
            first, *others = told_alike(lying, running, wanted)
    assert "unusable" in [event["event"] for event in first]
    assert not any("unusable" in [event["event"] for event in events] for events in others)


@pytest.mark.parametrize("mode", ["semi_honest", "consistent"])
def test_masks_alone_do_not_say_whether_training_was_finite(tmp_path: Path, mode: SecureMode) -> None:
    """Without any promise: who takes part in sums alone gives no answer of its own."""
    policy = RoundPolicy(rounds=1, cohort=5, evaluate_every=0)
    secure = SecureAggregation(norm=1.0, corrupt=0.2, dropout=0.2, mode=mode)
    with lying_coordinator(tmp_path) as lying:
        wanted, token = lying.submit(experiment("own", rounds=policy, initial=question(), secure_aggregation=secure))
        data = [held(True)] + [held(False)] * 4
        with devices(lying, token, tmp_path, count=5, policy=SUMS_ALONE, data=data, wanted=2) as running:
            first, *others = told_alike(lying, running, wanted)
        (only,) = lying.history(wanted).rounds
    assert "unusable" in [event["event"] for event in first], "its owner may know"
    assert not any("unusable" in [event["event"] for event in events] for events in others)
    assert only.metrics is not None


def test_masks_alone_do_not_say_what_an_evaluation_could_not_measure(tmp_path: Path) -> None:
    """One device measures no finite loss, one holds out no row, and the others do what is asked."""
    policy = RoundPolicy(rounds=1, cohort=5, purpose="evaluate", evaluate_every=1)
    secure = SecureAggregation(norm=1.0, corrupt=0.2, dropout=0.2, mode="consistent")
    loud = held(True)
    loud["x"][:, ASKED] = 5.0
    data = [loud, {name: array[:1] for name, array in held(False).items()}] + [held(False)] * 3
    changes: dict[str, Any] = {"initial": question(), "holdout": 0.3, "secure_aggregation": secure}
    with lying_coordinator(tmp_path) as lying:
        wanted, token = lying.submit(experiment("own", rounds=policy, **changes))
        with devices(lying, token, tmp_path, count=5, policy=SUMS_ALONE, data=data, wanted=2) as running:
            told = [device.events() for device in running]
        messages = said(lying)
        (only,) = lying.history(wanted).rounds
    assert [refusals(events) for events in told] == [[]] * 5
    assert not [path for _, path, _ in lying.liar.heard if path.endswith("/abort")]
    assert len(messages) == 5 and len({str(each) for each in messages.values()}) == 1, messages
    codes = [[event["code"] for event in events if event["event"] == "unusable"] for events in told]
    assert codes == [["metric_invalid"], ["no_held_out_rows"], [], [], []]
    assert only.state == "committed"
    assert only.fairness["loss"].clients == 3


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_noise_that_nobody_promised_does_not_make_a_device_speak_for_itself(tmp_path: Path, kind: str) -> None:
    """A device hides less where noise hides it; so noise is not believed that is no part of a promise."""
    purpose = "evaluate" if kind == "evaluate" else "train"
    policy = RoundPolicy(rounds=1, cohort=5, purpose=purpose, evaluate_every=1)
    secure = SecureAggregation(norm=1.0, corrupt=0.2, dropout=0.2, mode="consistent")
    local = LocalTerms(mechanism="gaussian", epsilon=1.0, delta=0.1, clip=1.0, top=1.0, outputs=None)
    data = [held(True), *[held(False)] * 4]
    changes: dict[str, Any] = {"initial": question(), "holdout": 0.3, "secure_aggregation": secure}
    with lying_coordinator(tmp_path, task=lambda task: task.model_copy(update={"local": local})) as lying:
        _, token = lying.submit(experiment("own", rounds=policy, **changes))
        with devices(lying, token, tmp_path, count=5, policy=SUMS_ALONE, data=data, wanted=1) as running:
            told = [device.events(patience(8)) for device in running]
    assert [set(refusals(events)) for events in told] == [{"privacy_unkept"}] * 5


def _header(update: bytes) -> UpdateHeader:
    length = int.from_bytes(update[:8], "little")
    return from_json(
        UpdateHeader, json.loads(json.loads(update[8 : 8 + length])["__metadata__"]["coterie"]), code="wrong_format"
    )
