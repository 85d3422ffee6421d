"""Weights that overflow wherever a row has a feature that is not zero: a promise of privacy covers that question too.

The coordinator hands out first weights of 3e38. A device whose rows are all zeros trains; one with a single other
number comes to infinity at once. Under every noise both must look the same to everybody but their owners.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from liar import Lying, devices, lying_coordinator, refusals
from sdk_kit import experiment, rows

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.plan.compile import compile_plan
from coterie.aggregation.private.secure_aggregation import SecureAggregation
from coterie.privacy.dp.privacy import ExampleLevel, LocalLevel, Privacy, UserLevel
from coterie.protocol.rounds import RoundPolicy

CLIENTS = 3
NOISE: dict[str, tuple[Privacy, bool]] = {
    "the coordinator's": (UserLevel(clip=0.5, delta=1e-5, noise_multiplier=8.0), False),
    "the coordinator's, under masks": (UserLevel(clip=0.5, delta=1e-5, noise_multiplier=8.0), True),
    "the cohort's": (
        UserLevel(clip=0.5, delta=1e-5, noise_multiplier=8.0, mechanism="discrete_gaussian"),
        True,
    ),
    "the device's": (LocalLevel(mechanism="gaussian", epsilon=5.0, delta=1e-5, clip=0.5), False),
    "the device's, by signs": (LocalLevel(mechanism="randomised_response", epsilon=5.0), False),
    "in every step": (ExampleLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0, rows=40), False),
}


def crafted(privacy: Privacy, secure: bool) -> Experiment:
    wanted = experiment(
        "own",
        rounds=RoundPolicy(rounds=1, cohort=CLIENTS, min_updates=CLIENTS, weight_cap=1, evaluate_every=0),
        privacy=privacy,
        secure_aggregation=SecureAggregation(mode="consistent") if secure else False,
    )
    first = {
        name: np.full(value.shape, 3e38 if value.ndim == 2 else 0.0, np.float32)
        for name, value in compile_plan(wanted).initial.items()
    }
    return replace(wanted, initial=first)


def asked() -> list[dict[str, Any]]:
    """The rows of three devices, of which the first alone has a number that is not zero."""
    blank = {"x": np.zeros((40, 4), np.float32), "y": rows(40)["y"]}
    marked = {"x": blank["x"].copy(), "y": blank["y"]}
    marked["x"][7, 2] = 1.0
    return [marked, blank, blank]


def said(lying: Lying) -> dict[str, list[tuple[str, int]]]:
    """What each device sent, by device: the last part of each path and the length of the body."""
    sent: dict[str, list[tuple[str, int]]] = {}
    for device, path, body in lying.liar.heard:
        sent.setdefault(device, []).append((path.rpartition("/")[2], len(body)))
    return {device: [entry for entry in entries if entry[0] != "check-in"] for device, entries in sent.items()}


@pytest.mark.parametrize("case", NOISE)
def test_whether_training_is_finite_is_told_to_nobody(tmp_path: Path, case: str) -> None:
    privacy, secure = NOISE[case]
    with lying_coordinator(tmp_path) as lying:
        identity, token = lying.submit(crafted(privacy, secure))
        # Under masks an upload is followed by the end of its attempt.
        given: dict[str, Any] = {"count": CLIENTS, "data": asked(), "wanted": 2 if secure else 1}
        with devices(lying, token, tmp_path, policy="min_cohort = 3\n", **given) as running:
            told = [device.events() for device in running]
        record = lying.history(identity).rounds[0]
    assert [refusals(events) for events in told] == [[], [], []]
    assert not lying.bodies("/abort")
    finite = [next(e for e in events if e["event"] == "trained").get("finite", True) for events in told]
    # Only private steps leave nothing that is not finite: there each row is looked at by itself.
    assert finite == ([True, True, True] if case == "in every step" else [False, True, True])
    assert (record.accepted, record.failed) == (CLIENTS, 0)
    joined = [next(e for e in events if e["event"] == "joined")["device"] for events in told]
    first, *others = (said(lying)[device] for device in joined)
    for other in others:
        assert [name for name, _ in first] == [name for name, _ in other]
        # Sealed boxes and counters vary by a few bytes, whoever sends them.
        assert all(abs(one - two) <= 64 for (_, one), (_, two) in zip(first, other, strict=True))
