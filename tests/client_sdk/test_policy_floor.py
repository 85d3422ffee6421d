"""The device's own floor, held against a signed task before anything is downloaded: secrecy, cohort, privacy."""

from pathlib import Path
from typing import Any

import pytest
from relay import SECTIONS, task, terms

from coterie.client_sdk.device.policy import DevicePolicy
from coterie.client_sdk.device.policy_file import read_policy
from coterie.errors import ConfigurationError, PolicyRefused
from coterie.privacy.dp.choosing import choose
from coterie.protocol import ids
from coterie.protocol.claims import PrivacyTerms
from coterie.protocol.device import Task
from coterie.protocol.secure_sections import SecureSection

SIGNER = "d" * 64
PROMISE: dict[str, Any] = {
    "unit": "user",
    "epsilon": 8.0,
    "delta": 1e-6,
    "mechanism": "gaussian",
    "trusts": "coordinator",
}

CLOSE = frozenset({"device", "cohort"})


def asked(*, promise: dict[str, Any] | None = None, plain: bool = False, **changes: Any) -> Task:
    """A task of an attempt of ten clients, six of whom are enough, or one without secure aggregation."""
    given: dict[str, Any] = {"min_clients": 6, **changes}
    secure = terms(10, **given)
    made = task(secure, ids.new_id(ids.DEVICE))
    privacy = None if promise is None else PrivacyTerms(**promise)
    return made.model_copy(update={"secure": None if plain else secure, "privacy": privacy})


def code_of(policy: DevicePolicy, wanted: Task) -> str | None:
    try:
        policy.check_task(wanted, frozenset((SIGNER,)))
    except PolicyRefused as error:
        assert error.hint
        return error.reason
    return None


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str | None]] = {
    "the default takes six of ten": ({}, {}, None),
    "the default takes a task in clear": ({}, {"plain": True}, None),
    "in clear": ({"require_secure_aggregation": True}, {"plain": True}, "secure_aggregation_required"),
    "secure as required": ({"require_secure_aggregation": True}, {}, None),
    "the default asks for five": ({}, {"min_clients": 4}, "cohort_too_small"),
    "five are five": ({}, {"min_clients": 5}, None),
    "too few": ({"min_cohort": 7}, {}, "cohort_too_small"),
    "a cohort is asked for, of nobody": ({"min_cohort": 7}, {"plain": True}, "secure_aggregation_required"),
    "the smallest cohort, of nobody": ({"min_cohort": 2}, {"plain": True}, "secure_aggregation_required"),
    "a mode of nothing": ({"modes": frozenset({"semi_honest"})}, {"plain": True}, "secure_aggregation_required"),
    "corrupt clients of no cohort": ({"min_corrupt": 0.1}, {"plain": True}, "secure_aggregation_required"),
    "no corrupt client of no cohort": ({"min_corrupt": 0.0}, {"plain": True}, "secure_aggregation_required"),
    "a cohort below the default, stated": ({"min_cohort": 4}, {"min_clients": 4}, None),
    "no corrupt client, stated": ({"min_corrupt": 0.0}, {"corrupt": 0.0}, None),
    "another mode": ({"modes": frozenset({"consistent"})}, {}, "mode_refused"),
    "the mode": ({"modes": frozenset({"consistent"})}, {"mode": "consistent"}, None),
    "the cohort's word takes the mode that keeps it": (
        {"trusts": CLOSE, "max_epsilon": 8.0},
        {"mode": "consistent"},
        "privacy_missing",
    ),
    "the cohort's word, and a coordinator that must not lie": (
        {"trusts": CLOSE, "max_epsilon": 8.0},
        {},
        "mode_refused",
    ),
    "the cohort alone": ({"trusts": frozenset({"cohort"}), "max_epsilon": 8.0}, {}, "mode_refused"),
    "a promise of the cohort in semi_honest": (
        {"trusts": CLOSE, "max_epsilon": 8.0},
        {"promise": {**PROMISE, "trusts": "cohort"}},
        "mode_refused",
    ),
    "the device's own noise in any mode": (
        {"trusts": CLOSE, "max_epsilon": 8.0},
        {"promise": {**PROMISE, "unit": "example", "trusts": "device"}},
        None,
    ),
    "own noise, but in a mode that the owner named": (
        {"trusts": CLOSE, "max_epsilon": 8.0, "modes": frozenset({"consistent"})},
        {"promise": {**PROMISE, "unit": "example", "trusts": "device"}},
        "mode_refused",
    ),
    "nobody's word but its own, in any mode": (
        {"trusts": frozenset({"device"}), "max_epsilon": 8.0},
        {},
        "privacy_missing",
    ),
    "no corrupt client counted on": ({}, {"corrupt": 0.0}, "corrupt_too_low"),
    "fewer corrupt clients than asked": ({"min_corrupt": 0.2}, {}, "corrupt_too_low"),
    "no promise": ({"max_epsilon": 8.0}, {}, "privacy_missing"),
    "a promise kept": ({"max_epsilon": 8.0}, {"promise": PROMISE}, None),
    "a promise that nobody asked for": ({}, {"promise": {**PROMISE, "epsilon": 1e6}}, None),
    "epsilon": ({"max_epsilon": 7.9}, {"promise": PROMISE}, "privacy_too_weak"),
    "delta": ({"max_epsilon": 8.0, "max_delta": 1e-7}, {"promise": PROMISE}, "privacy_too_weak"),
    "the default delta": ({"max_epsilon": 8.0}, {"promise": {**PROMISE, "delta": 1e-3}}, "privacy_too_weak"),
    "of an example": (
        {"max_epsilon": 8.0, "units": frozenset({"user"})},
        {"promise": {**PROMISE, "unit": "example"}},
        "privacy_too_weak",
    ),
    "of the coordinator": (
        {"max_epsilon": 8.0, "trusts": frozenset({"device", "cohort"})},
        {"promise": PROMISE, "mode": "consistent"},
        "privacy_too_weak",
    ),
    "another signer": ({"signers": frozenset({"e" * 64})}, {}, "signer_refused"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_task_is_held_to_the_floor(case: str) -> None:
    policy, wanted, code = CASES[case]
    assert code_of(DevicePolicy(**policy), asked(**wanted)) == code


def test_a_refusal_names_the_line_of_the_policy_file(tmp_path: Path) -> None:
    path = tmp_path / "hospital.toml"
    path.write_text("# ours\nmin_cohort = 8\n\nmax_epsilon = 2\n")
    policy = read_policy(path)
    with pytest.raises(PolicyRefused, match=r"hospital\.toml, line 2 \(min_cohort\) asks for at least 8"):
        policy.check_task(asked(promise=PROMISE), frozenset((SIGNER,)))
    with pytest.raises(
        PolicyRefused, match=r"epsilon 8; hospital\.toml, line 4 \(max_epsilon\) takes at most 2"
    ) as caught:
        policy.check_task(asked(promise=PROMISE, min_clients=8), frozenset((SIGNER,)))
    # What is told to the coordinator names the file, and not where it lies.
    assert str(tmp_path) not in caught.value.message


def test_a_mode_that_trust_rules_out_is_refused_by_the_line_of_trusts(tmp_path: Path) -> None:
    path = tmp_path / "hospital.toml"
    path.write_text('max_epsilon = 8.0\ntrusts = ["device", "cohort"]\n')
    with pytest.raises(PolicyRefused, match=r"hospital\.toml, line 2 \(trusts\) takes consistent") as caught:
        read_policy(path).check_task(asked(promise={**PROMISE, "trusts": "cohort"}), frozenset((SIGNER,)))
    assert caught.value.reason == "mode_refused" and "mode='consistent'" in (caught.value.hint or "")


@pytest.mark.parametrize("modes", [{"semi_honest"}, {"semi_honest", "consistent"}])
@pytest.mark.parametrize("trusts", [{"cohort"}, {"device", "cohort"}])
def test_modes_that_trust_the_coordinator_stand_beside_no_trust_without_it(modes: set[str], trusts: set[str]) -> None:
    with pytest.raises(ConfigurationError, match="modes cannot name semi_honest"):
        DevicePolicy(modes=frozenset(modes), trusts=frozenset(trusts), max_epsilon=8.0)
    kept = DevicePolicy(modes=frozenset(modes), trusts=frozenset({*trusts, "coordinator"}), max_epsilon=8.0)
    assert kept.modes == modes
    close = DevicePolicy(modes=frozenset({"consistent"}), trusts=frozenset(trusts), max_epsilon=8.0)
    assert close.modes == {"consistent"}


@pytest.mark.parametrize(
    "idle", [{"max_delta": 1e-6}, {"units": frozenset({"user"})}, {"trusts": frozenset({"device"})}], ids=str
)
def test_how_a_promise_must_be_is_not_said_without_asking_for_one(idle: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(idle))} has no effect without max_epsilon"):
        DevicePolicy(**idle)
    assert DevicePolicy(**idle, max_epsilon=8.0).max_epsilon == 8.0


def noised(multiplier: float, contributors: int = 5) -> dict[str, Any]:
    """Terms under which ten clients share the noise of a vector of a thousand numbers."""
    made = choose(
        "discrete_gaussian", clip=1.0, noise_multiplier=multiplier, length=1000, clients=10, contributors=contributors
    )
    delta = SecureSection(
        name="delta", encoding="noised", values=made.padded, bits=made.bits, top=(1 << made.bits) - 1, norm=1.0
    )
    return {"sections": (SECTIONS[0], delta), "noise": made.message, "mode": "consistent"}


UNKEPT: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "in the clear": ({"plain": True}, {}, "without secure aggregation"),
    "no noise": ({"mode": "consistent"}, {}, "the task lets them send: counts exact, delta grid, without noise"),
    "a mode in which the coordinator can split the cohort": (
        {**noised(4.0), "mode": "semi_honest"},
        {},
        "a cohort that a coordinator cannot split",
    ),
    "the sum of something beside it": (
        {**noised(4.0), "sections": (*noised(4.0)["sections"], SECTIONS[1].model_copy(update={"name": "metrics"}))},
        {},
        "counts exact, delta noised, metrics grid",
    ),
    "noise on something else": (
        {
            **noised(4.0),
            "sections": (SECTIONS[0], noised(4.0)["sections"][1].model_copy(update={"name": "metrics"})),
        },
        {},
        "counts exact, metrics noised",
    ),
    "too little noise": (noised(0.5), {}, "one round alone costs"),
    "noise of clients that may be missing": (noised(4.0, contributors=7), {}, "counts on the noise of 7 clients"),
    "noise of clients that may tell it": (noised(4.0, contributors=6), {}, "of whom 1 may reveal theirs"),
    "no delta": (noised(4.0), {"delta": 0.0}, "no account of noise is made at that"),
}


@pytest.mark.parametrize("case", UNKEPT)
def test_a_promise_that_the_tasks_own_noise_cannot_keep_is_refused(case: str) -> None:
    changes, claim, says = UNKEPT[case]
    wanted = asked(promise={**PROMISE, "epsilon": 2.0, "trusts": "cohort", **claim}, **changes)
    with pytest.raises(PolicyRefused, match=says) as caught:
        DevicePolicy(max_epsilon=2.0).check_task(wanted, frozenset((SIGNER,)))
    assert caught.value.reason == "privacy_unkept"
    # A promise is held to whoever it is made to: a policy need not ask for it.
    assert code_of(DevicePolicy(), wanted) == "privacy_unkept"


def test_a_promise_that_the_noise_can_keep_is_taken() -> None:
    wanted = asked(promise={**PROMISE, "epsilon": 2.0, "trusts": "cohort"}, **noised(4.0))
    assert code_of(DevicePolicy(max_epsilon=2.0), wanted) is None
