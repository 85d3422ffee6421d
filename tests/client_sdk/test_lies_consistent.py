"""A coordinator that promises what its mode cannot keep, or spells one key in two ways, against real devices."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from liar import Lying, devices, lying_coordinator, refusals
from sdk_kit import experiment

from coterie.aggregation.experiment import Experiment
from coterie.protocol.device import Task
from coterie.protocol.privacy import UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.secure_aggregation import SecureAggregation

CLIENTS = 5
NOISE = UserLevel(clip=1.0, delta=1e-6, noise_multiplier=4.0, mechanism="discrete_gaussian")
COHORT_ONLY = 'min_cohort = 4\nmax_epsilon = 8.0\ntrusts = ["device", "cohort"]\n'


def shared(name: str, **changes: Any) -> Experiment:
    """One round in which five devices share the noise, its mode as ``changes`` say, or chosen."""
    policy = RoundPolicy(rounds=1, cohort=CLIENTS, min_updates=4, weight_cap=1, evaluate_every=0)
    secure = SecureAggregation(norm=NOISE.clip, dropout=0.2, **changes)
    return experiment(name, rounds=policy, privacy=NOISE, secure_aggregation=secure)


def weaker(task: Task) -> Task:
    """The same promise in the mode in which the coordinator can open a sum of its own choice."""
    assert task.secure is not None and task.privacy is not None
    secure = task.secure.model_copy(update={"mode": "semi_honest"})
    promise = task.privacy.model_copy(update={"trusts": "cohort"})
    return task.model_copy(update={"secure": secure, "privacy": promise})


@pytest.fixture
def lying(tmp_path: Path) -> Iterator[Lying]:
    with lying_coordinator(tmp_path) as found:
        yield found


def test_a_promise_of_the_cohort_in_a_mode_that_trusts_the_coordinator_is_refused(lying: Lying, tmp_path: Path) -> None:
    lying.liar.task = weaker
    _, token = lying.submit(shared("cohort", mode="consistent"))
    with devices(lying, token, tmp_path, policy=COHORT_ONLY) as (device,):
        assert refusals(device.events()) == ["mode_refused"]
    assert lying.bodies("/secure/") == [], "not one key has left"


def test_who_asks_for_shared_noise_in_semi_honest_is_told_to_trust_the_coordinator(
    lying: Lying, tmp_path: Path
) -> None:
    promised: list[str] = []

    def listen(task: Task) -> Task:
        assert task.secure is not None and task.privacy is not None
        promised.append(f"{task.secure.mode}: {task.privacy.trusts}")
        return task

    lying.liar.task = listen
    _, token = lying.submit(shared("asked", mode="semi_honest"))
    with devices(lying, token, tmp_path, policy=COHORT_ONLY) as (device,):
        assert refusals(device.events()) == ["mode_refused"]
    assert set(promised) == {"semi_honest: coordinator"}


def spelt_twice(path: str, answer: dict[str, Any]) -> dict[str, Any]:
    """A roster in which one client stands at two places: its keys, and the same keys with bit 255 flipped."""
    if not path.endswith("/secure/roster"):
        return answer
    one, other = [entry for entry in answer["entries"] if entry["position"] != answer["position"]][:2]
    for name in ("mask_key", "channel_key"):
        other[name] = one[name][:62] + f"{int(one[name][62:], 16) ^ 0x80:02x}"
    return answer


def test_a_roster_with_one_key_in_two_spellings_is_refused_before_a_share_is_dealt(
    lying: Lying, tmp_path: Path
) -> None:
    lying.liar.answer = spelt_twice
    policy = RoundPolicy(rounds=1, cohort=CLIENTS, evaluate_every=0)
    wanted = experiment("twice", rounds=policy, secure_aggregation=SecureAggregation(dropout=0.2))
    _, token = lying.submit(wanted)
    with devices(lying, token, tmp_path, count=CLIENTS) as running:
        for device in running:
            events = device.events()
            assert "secagg_key_invalid" in [event.get("code") for event in events], events
    assert lying.bodies("/secure/keys") and lying.bodies("/secure/shares") == []
