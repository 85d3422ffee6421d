"""Real devices that noise their own updates, on a real coordinator: what leaves them, and what they refuse."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sdk_kit import Lab, assert_two_noised_rounds, experiment, run

from coterie.client_sdk.device.policy import DevicePolicy
from coterie.client_sdk.device.promise import check_promise
from coterie.errors import PolicyRefused
from coterie.protocol.claims import LocalTerms, PrivacyTerms
from coterie.protocol.device import Task
from coterie.protocol.privacy import LocalLevel
from coterie.protocol.rounds import RoundPolicy

CLIENTS = 5
LEVEL = LocalLevel(mechanism="gaussian", epsilon=5.0, delta=1e-5, clip=0.5)


@pytest.mark.parametrize("secure", [False, True], ids=["open", "secret"])
def test_rounds_of_noised_updates(tmp_path: Path, secure: bool) -> None:
    """Two rounds commit a version; no training loss is known, and the version is mostly noise, as it must be."""

    async def work(place: Lab) -> None:
        policy = RoundPolicy(rounds=2, cohort=CLIENTS, weight_cap=1, evaluate_every=0)
        wanted = experiment("own", rounds=policy, privacy=LEVEL, secure_aggregation=secure)
        taken = DevicePolicy(max_epsilon=50.0, max_delta=1e-4, trusts=frozenset({"device"}))
        await assert_two_noised_rounds(place, wanted, CLIENTS, taken)

    run(work, tmp_path)


def task(**changes: Any) -> Task:
    """A task as far as its privacy goes."""
    told: dict[str, Any] = {"kind": "train", "secure": None, "local": local()} | changes
    return Task.model_construct(**told)


def local(**changes: Any) -> LocalTerms:
    told: dict[str, Any] = {"mechanism": "gaussian", "epsilon": 5.0, "delta": 1e-5, "clip": 0.5, "top": 0.01}
    return LocalTerms.model_validate({"outputs": None, **told, **changes})


PROMISE = PrivacyTerms(unit="user", epsilon=20.0, delta=1e-5, mechanism="gaussian", trusts="device")


def test_a_promise_that_rests_on_the_device_needs_noise_of_its_own() -> None:
    check_promise(task(), PROMISE)
    for wrong in (None, local(epsilon=20.1), local(delta=1e-4)):
        with pytest.raises(PolicyRefused) as refused:
            check_promise(task(local=wrong), PROMISE)
        assert refused.value.reason == "privacy_unkept"


def test_no_promise_covers_an_evaluation() -> None:
    for local_terms in (None, local()):
        with pytest.raises(PolicyRefused, match="no noise is added to what an evaluation measures") as refused:
            check_promise(task(kind="evaluate", local=local_terms), PROMISE)
        assert refused.value.reason == "privacy_unkept"


def test_a_price_that_was_calibrated_to_the_last_digit_is_taken() -> None:
    check_promise(task(local=local(epsilon=np.nextafter(20.0, 21.0).item())), PROMISE)
