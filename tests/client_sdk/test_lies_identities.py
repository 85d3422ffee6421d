"""A coordinator that fills a cohort with devices of its own: who asks for endorsed ones is in no sum with strangers."""

import asyncio
import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from liar import Lying, devices, lying_coordinator, refusals
from sdk_kit import experiment, kinds

from coterie.protocol.canonical import canonical_json
from coterie.protocol.control import PolicyChange
from coterie.protocol.endorsements import Endorsement
from coterie.protocol.privacy import UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.secure_aggregation import SecureAggregation
from coterie.protocol.signing import SigningKey
from tests.held_clock import held
from tests.patience import patience

ISSUER = SigningKey.from_seed(b"i" * 32)
STRANGER = SigningKey.from_seed(b"s" * 32)
CLIENTS = 4
POLICY = f'min_cohort = 3\nmin_endorsed = 3\nendorsers = ["{ISSUER.public}"]\n'
SECURE = SecureAggregation(mode="consistent", corrupt=0.1, dropout=0.25)


def wanted(**changes: Any) -> Any:
    rounds = RoundPolicy(rounds=1, cohort=CLIENTS, min_updates=3, evaluate_every=0)
    return experiment("own", rounds=rounds, secure_aggregation=SECURE.but(**changes))


def endorsed(folder: Path, number: int, *, subject: str | None = None, issuer: SigningKey = ISSUER) -> Endorsement:
    """An endorsement of a device that has not joined yet, where its process will look for it."""
    state = folder / f"device-{number}" / "state"
    state.mkdir(parents=True, exist_ok=True)
    key = SigningKey.load_or_create(state / "device.key")
    made = Endorsement.issue(issuer, identity=key.public, subject=subject or f"site-{number}")
    (state / "endorsement.json").write_bytes(canonical_json(made.model_dump(mode="json")))
    return made


def together(lying: Lying, token: str, folder: Path, policy: str) -> list[list[dict[str, Any]]]:
    with devices(lying, token, folder, count=CLIENTS, policy=policy, wanted=2) as running:
        return [device.events() for device in running]


def test_devices_that_an_issuer_endorses_are_in_one_sum(tmp_path: Path) -> None:
    with lying_coordinator(tmp_path) as lying:
        identity, token = lying.submit(wanted())
        for number in range(CLIENTS):
            endorsed(tmp_path, number)
        told = together(lying, token, tmp_path, POLICY)
        record = lying.history(identity).rounds[0]
    assert [refusals(events) for events in told] == [[]] * CLIENTS
    assert (record.state, record.accepted) == ("committed", CLIENTS)


STRANGERS: dict[str, dict[str, Any] | None] = {
    "nobody else is endorsed": None,
    "all are one subject": {"subject": "site-0"},
    "by an issuer that nobody named": {"issuer": STRANGER},
}


@pytest.mark.parametrize("case", STRANGERS)
def test_an_endorsed_device_is_in_no_sum_with_a_coordinators_own(tmp_path: Path, case: str) -> None:
    with lying_coordinator(tmp_path) as lying:
        _, token = lying.submit(wanted())
        endorsed(tmp_path, 0)
        how = STRANGERS[case]
        for number in range(1, CLIENTS) if how is not None else ():
            endorsed(tmp_path, number, **(how or {}))
        told = together(lying, token, tmp_path, POLICY)
    assert [refusals(events) for events in told] == [["secagg_identities"]] * CLIENTS
    assert not any(event.get("message") in ("shares", "masked") for events in told for event in events)


def test_enough_endorsed_devices_are_in_no_sum_with_more_strangers_than_masks_withstand(tmp_path: Path) -> None:
    """Three of four are endorsed, as many as each asks for; the fourth may be the coordinator's."""
    with lying_coordinator(tmp_path) as lying:
        _, token = lying.submit(wanted())
        for number in range(CLIENTS - 1):
            endorsed(tmp_path, number)
        told = together(lying, token, tmp_path, POLICY)
    assert [refusals(events) for events in told] == [["secagg_identities"]] * CLIENTS
    assert not any(event.get("message") in ("shares", "masked") for events in told for event in events)


def test_an_endorsement_of_another_key_counts_for_nobody(tmp_path: Path) -> None:
    """The coordinator hands the endorsement of one device to all."""

    def spread(path: str, answer: dict[str, Any]) -> dict[str, Any]:
        if path.endswith("/secure/roster"):
            own = next(entry["endorsement"] for entry in answer["entries"] if entry.get("endorsement"))
            answer["entries"] = [{"endorsement": own, **entry} for entry in answer["entries"]]
        return answer

    with lying_coordinator(tmp_path, answer=spread) as lying:
        _, token = lying.submit(wanted())
        endorsed(tmp_path, 0)
        told = together(lying, token, tmp_path, POLICY)
    assert all(refusals(events) and set(refusals(events)) <= {"secagg_identities", "secagg_roster"} for events in told)
    assert refusals(told[0]) == ["secagg_identities"]


def test_survivors_must_be_endorsed_too(tmp_path: Path) -> None:
    """Of four endorsed devices one goes when shares are dealt: three are fewer than each of them asks for."""
    policy = POLICY.replace("min_endorsed = 3", "min_endorsed = 4")
    with lying_coordinator(tmp_path) as lying, ExitStack() as clock:
        clock.enter_context(held())
        _, token = lying.submit(wanted(phase_s=4.0))
        for number in range(CLIENTS):
            endorsed(tmp_path, number)
        with devices(lying, token, tmp_path, count=CLIENTS, policy=policy, wanted=2) as running:
            until = time.monotonic() + patience(30)
            while not lying.bodies("/secure/shares") and time.monotonic() < until:
                time.sleep(0.005)
            running[0].process.kill()
            clock.close()  # the phase that it is missing from ends
            told = [device.events() for device in running[1:]]
    assert [refusals(events) for events in told] == [["secagg_identities"]] * 3
    assert not any("reveal" in str(event.get("message")) for events in told for event in events)


def test_shared_noise_counts_on_no_more_clients_than_are_endorsed(tmp_path: Path) -> None:
    """Of ten clients seven are the coordinator's, who know their shares of the noise."""
    noise = UserLevel(clip=0.5, delta=1e-6, noise_multiplier=4.0, mechanism="discrete_gaussian")
    rounds = RoundPolicy(rounds=1, cohort=10, min_updates=9, weight_cap=1, evaluate_every=0)
    secure = SecureAggregation(mode="consistent", norm=0.5, corrupt=0.1, dropout=0.1)
    asked = experiment("own", rounds=rounds, privacy=noise, secure_aggregation=secure)
    policy = POLICY + 'max_epsilon = 1.2\nmax_delta = 1e-6\ntrusts = ["device", "cohort"]\n'
    with lying_coordinator(tmp_path) as lying:
        _, token = lying.submit(asked)
        endorsed(tmp_path, 0)
        with devices(lying, token, tmp_path, policy=policy) as (device,):
            told = device.events()
        policy = policy.replace("min_endorsed = 3", "min_endorsed = 10")
        with devices(lying, token, tmp_path, policy=policy) as (again,):
            until = time.monotonic() + patience(30)
            while not lying.bodies("/secure/keys") and time.monotonic() < until:
                time.sleep(0.005)
            taken = kinds(again.events(0))
    assert refusals(told) == ["privacy_unkept"]
    assert "3 endorsed ones" in next(event["message"] for event in told if event["event"] == "refused")
    assert "trained" in taken


def test_a_task_without_masks_or_in_semi_honest_is_refused_by_who_asks_for_endorsed_ones(tmp_path: Path) -> None:
    plain = RoundPolicy(rounds=1, cohort=1, evaluate_every=0)
    rounds = RoundPolicy(rounds=1, cohort=CLIENTS, min_updates=3, evaluate_every=0)
    cases: dict[str, tuple[Any, str]] = {
        "clear": (experiment("clear", rounds=plain, secure_aggregation=False), "secure_aggregation_required"),
        "split": (
            experiment("split", rounds=rounds, secure_aggregation=SecureAggregation(mode="semi_honest", dropout=0.25)),
            "mode_refused",
        ),
    }
    with lying_coordinator(tmp_path) as lying:
        for name, (asked, code) in cases.items():
            _, token = lying.submit(asked)
            with devices(lying, token, tmp_path, policy=POLICY, names=[name]) as (device,):
                events = device.events()
            assert refusals(events) == [code]
            assert "uploaded" not in kinds(events)


def test_a_population_takes_only_devices_that_its_issuers_endorse(tmp_path: Path) -> None:
    with lying_coordinator(tmp_path) as lying:
        _, token = lying.submit(wanted())

        async def require() -> None:
            control = lying.control()
            try:
                await control.change_policy("own", PolicyChange(endorsers=(ISSUER.public,)))
            finally:
                await control.close()

        asyncio.run(require())
        endorsed(tmp_path, 1, issuer=STRANGER)
        endorsed(tmp_path, 2)
        ended: list[str] = []
        for number in range(3):
            with devices(lying, token, tmp_path, policy="threads = 1\n", names=[f"device-{number}"]) as (device,):
                told = device.events(8)
            last = told[-1] if told else {}
            ended.append("joined" if any(e["event"] == "joined" for e in told) else json.dumps(last))
    assert ended[2] == "joined"
    assert all("one of its issuers endorses" in text for text in ended[:2]), ended
