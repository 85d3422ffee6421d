"""Whole secure rounds over HTTP, in this process, with honest clients and some that are not."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from secure_kit import (
    LOOSE,
    STEPS,
    Member,
    OutOfAttempt,
    events_of,
    lapse,
    leased,
    mailed,
    mean,
    run,
    secure,
    started,
    together,
    until_clean,
    until_phase,
    weights,
)
from server_kit import Device, Opener, Operator, once

from coterie.privacy.secagg.encoding import vector_spec
from coterie.privacy.secagg.masked_file import MaskedHeader, encode_masked
from coterie.server.device import waiting as routes
from coterie.server.jobs.runner import JobRunner
from coterie.server.jobs.wanted import SECURE_AGGREGATE, UNMASK
from coterie.server.storage import Storage
from coterie.server.store import jobs
from coterie.server.store.housekeeping import sweep_orphans
from coterie.server.store.jobs import Job
from tests.patience import patience


@pytest.mark.parametrize("mode", ["semi_honest", "consistent"])
def test_the_sum_of_a_secure_round_is_the_weighted_mean(mode: str, coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            experiment, devices = await started(operator, 5, secure(mode=mode))
            members = await leased(devices, (1.0, 2.0, 0.5, -1.0, 3.0), (10, 20, 30, 10, 5))
            await together(members, STEPS[:-1])
            await until_phase(operator, "reveal")
            # One row for each sender and phase, however many it is for.
            phases = ("keys", "shares", "masked", *(("agreement",) if mode == "consistent" else ()))
            assert await mailed(operator) == dict.fromkeys(phases, 5)
            await together(members, STEPS[-1:])
            await operator.finished(experiment)
            told = [event for event in await events_of(operator, experiment) if event["type"].startswith("attempt.")]
            assert [event.get("phase") for event in told[:-1]] == [*phases[1:], "reveal", "unmasking"]
            assert (told[0]["type"], told[0]["clients"], told[-1]["type"]) == ("attempt.began", 5, "attempt.summed")
            counted = (await operator.http.get("/metrics")).text
            assert 'coterie_attempts_total{outcome="summed"} 1.0' in counted
            assert 'coterie_secure_messages_total{phase="reveal"} 5.0' in counted
            (entry,) = await operator.rounds(experiment)
            assert (entry["state"], entry["accepted"]) == ("committed", 5)
            assert np.allclose(await weights(operator, entry["model"]), mean(members), atol=LOOSE)
            for member in members:
                assert (await member.told("outcome")).state == "summed"
                settled = (await member.device.check_in([member.task.id]))["settled"]
                assert settled == {member.task.id: "counted"}

    run(work())


async def lose(storage: Storage, digest: str) -> None:
    await storage.blobs.delete("updates", [digest])


async def damage(storage: Storage, digest: str) -> None:
    with storage.blobs.reader.local_copy("updates", digest, check=False) as path:
        path.write_bytes(b"damaged")


async def sweep(storage: Storage, digest: str) -> None:
    await sweep_orphans(storage.database, storage.blobs, age_s=0)
    assert await storage.blobs.exists("updates", digest)


@pytest.mark.parametrize(("harm", "times"), [(lose, 2), (damage, 2), (sweep, 1)])
def test_an_opened_sum_is_a_blob_that_is_opened_again_where_it_is_not_whole(
    harm: Callable[[Storage, str], Awaitable[None]],
    times: int,
    coordinator: Opener,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, done, harmed = JobRunner.perform, list[str](), list[str]()

    async def perform(self: JobRunner, job: Job) -> None:
        done.append(job.key.kind)
        if job.key.kind == SECURE_AGGREGATE and not harmed:
            async with self.context.storage.database.read() as session:
                made = await jobs.made(session, job.key.experiment, job.key.round, UNMASK)
            harmed.extend(made.values())
            await harm(self.context.storage, harmed[0])
        await real(self, job)

    monkeypatch.setattr(JobRunner, "perform", perform)

    async def work() -> None:
        async with coordinator() as operator:
            experiment, devices = await started(operator, 5)
            members = await leased(devices, (1.0, 2.0, 0.5, -1.0, 3.0))
            await together(members, STEPS)
            await operator.finished(experiment)
            (entry,) = await operator.rounds(experiment)
            assert (entry["state"], entry["accepted"]) == ("committed", 5)
            assert np.allclose(await weights(operator, entry["model"]), mean(members), atol=LOOSE)
            await until_clean(operator)
            storage = operator.app.state.coordinator.storage
            assert len(harmed) == 1 and not await storage.blobs.exists("updates", harmed[0])
        assert done.count(UNMASK) == times

    run(work())


# A client vanishes before each of its steps; it is missed when the phase's time is over.
@pytest.mark.parametrize(
    ("missing", "mode"),
    # There is no agreement between devices that trust the coordinator's lists.
    [
        (step, mode)
        for step in STEPS[1:]
        for mode in ("semi_honest", "consistent")
        if (step, mode) != ("agreement", "semi_honest")
    ],
)
def test_who_drops_out_is_left_out_by_name(missing: str, mode: str, coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            experiment, devices = await started(operator, 6, secure(mode=mode))
            members = await leased(devices, (1.0, 2.0, 0.5, -1.0, 3.0, 2.5), (10, 20, 30, 10, 5, 40))
            there, lost = members[:5], members[5]
            for step in STEPS:
                present = members if STEPS.index(step) < STEPS.index(missing) else there
                await together(present, [step])
                if step == missing and (step != "agreement" or mode == "consistent"):
                    await lapse(operator)
            await operator.finished(experiment)
            (entry,) = await operator.rounds(experiment)
            # Whose vector arrived is in the sum, whether or not it helped to open it.
            counted = members if missing in ("agreement", "reveal") else there
            assert (entry["state"], entry["cause"]) == ("committed", None)
            assert np.allclose(await weights(operator, entry["model"]), mean(counted), atol=LOOSE)
            for member in members:
                settled = (await member.device.check_in([member.task.id]))["settled"]
                assert settled == {member.task.id: "counted" if member in counted else "rolled_back"}
            (summed,) = [event for event in await events_of(operator, experiment) if event["type"] == "attempt.summed"]
            assert (summed["survivors"], summed["dropped"]) == (len(counted), 6 - len(counted))
            with pytest.raises(OutOfAttempt) as told:
                await lost.do(missing)
            assert told.value.code == "attempt_over"

    run(work())


# So many vanish that the sum of the rest is not one that was promised.
@pytest.mark.parametrize(
    ("missing", "cause"),
    [("shares", "too_few_dealt"), ("masked", "too_few_survivors"), ("reveal", "too_few_revealed")],
)
def test_an_attempt_that_loses_too_many_fails_by_name_and_leaves_nothing(
    missing: str, cause: str, coordinator: Opener
) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            experiment, devices = await started(operator, 5)
            members = await leased(devices, (1.0, 2.0, 0.5, -1.0, 3.0))
            for step in STEPS:
                await together(members if STEPS.index(step) < STEPS.index(missing) else members[:2], [step])
                if step == missing:
                    break
            await lapse(operator)
            await operator.finished(experiment)
            (entry,) = await operator.rounds(experiment)
            assert (entry["state"], entry["cause"], entry["model"]) == ("abandoned", "aggregate_failed", None)
            (failed,) = await failures(operator, experiment)
            assert failed["cause"] == cause
            outcome = await members[0].told("outcome")
            assert (outcome.state, outcome.cause) == ("failed", cause)
            for member in members:
                settled = (await member.device.check_in([member.task.id]))["settled"]
                assert settled == {member.task.id: "rolled_back"}
            await until_clean(operator)

    run(work())


@pytest.mark.parametrize("mode", ["semi_honest", "consistent"])
def test_restarts_between_any_two_messages_lose_nothing(mode: str, coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            experiment, devices = await started(operator, 5, secure(mode=mode))
            members = await leased(devices, (1.0, 2.0, 0.5, -1.0, 3.0))
        for step in STEPS:
            for member in members:
                if step == "agreement" and mode == "semi_honest":
                    continue
                async with coordinator() as operator:
                    for each in members:
                        each.device.http = operator.http
                    await member.do(step)
        async with coordinator() as operator:
            for each in members:
                each.device.http = operator.http
            await operator.finished(experiment)
            (entry,) = await operator.rounds(experiment)
            assert (entry["state"], entry["accepted"]) == ("committed", 5)
            assert np.allclose(await weights(operator, entry["model"]), mean(members), atol=LOOSE)
            await until_clean(operator)

    run(work())


def test_who_waits_for_a_message_is_answered_when_the_coordinator_ends(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            _, devices = await started(operator, 5)
            one, *_ = await leased(devices, (1.0, 2.0, 0.5, -1.0, 3.0))
            await one.do("keys")
            waiting = asyncio.create_task(one.device.send("GET", one.path("roster?wait_ms=20000")))
            here = operator.app.state.coordinator
            while not here.signals.turns.waited_for():
                await asyncio.sleep(0.01)
            here.signals.hang_up()
            # Sooner than it would have looked again by itself.
            async with asyncio.timeout(routes.LOOK_AGAIN_S / 2):
                assert (await waiting).status_code == 204

    run(work())


def test_devices_measure_together_and_who_is_missing_is_not_counted(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            experiment, devices = await started(operator, 6, evaluate_every=1, evaluation_cohort=6)
            await together(await leased(devices, (1.0, 2.0, 0.5, -1.0, 3.0, 1.0)))
            members = await leased(devices, (0.0,) * 6, (10, 20, 30, 40, 50, 60))
            assert {member.task.kind for member in members} == {"evaluate"}
            for step in STEPS:
                await together(members if step in ("keys", "shares") else members[:5], [step])
                if step == "masked":
                    await lapse(operator)
            await operator.finished(experiment)
            (entry,) = await operator.rounds(experiment)
            assert (entry["state"], entry["evaluation"], entry["evaluated"]) == ("committed", "federated", 6)
            assert np.allclose([entry["metrics"][name] for name in ("loss", "accuracy")], [0.5, 0.75], atol=1e-3)
            for member in members:
                settled = (await member.device.check_in([member.task.id]))["settled"]
                assert settled == {member.task.id: "rolled_back" if member is members[5] else "counted"}
            assert [entry["round"] for entry in await operator.models(experiment)] == [0, 1]

    run(work())


def test_an_evaluation_whose_sum_fails_costs_the_round_nothing_else(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            experiment, devices = await started(operator, 5, evaluate_every=1, evaluation_cohort=5)
            trained = await leased(devices, (1.0, 2.0, 0.5, -1.0, 3.0))
            await together(trained)
            members = await leased(devices, (0.0,) * 5)
            await together(members, ["keys"])
            await together(members[:2], ["shares"])
            await lapse(operator)
            await operator.finished(experiment)
            (entry,) = await operator.rounds(experiment)
            assert (entry["state"], entry["evaluation"], entry["metrics"]) == ("committed", None, {})
            assert np.allclose(await weights(operator, entry["model"]), mean(trained), atol=LOOSE)

    run(work())


def test_a_stop_ends_the_attempt_and_opens_nothing(coordinator: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "LOOK_AGAIN_S", 3600.0)  # whoever waits is woken

    async def work() -> None:
        async with coordinator() as operator:
            experiment, devices = await started(operator, 5)
            members = await leased(devices, (1.0,) * 5)
            await together(members, ["keys", "shares"])
            await members[0].do("masked")
            waiting = asyncio.create_task(members[0].told("survivors"))
            await operator.ok("POST", f"/v1/experiments/{experiment}/stop")
            with pytest.raises(OutOfAttempt) as told:
                await asyncio.wait_for(waiting, patience(10))
            assert (told.value.code, told.value.cause) == ("attempt_over", "stopped")
            late = await members[1].device.upload(members[1].task, await vector_of(members[1]))
            assert (late.status_code, late.json()["code"]) == (410, "attempt_over")
            await until_clean(operator)
            assert [event["cause"] for event in await failures(operator, experiment)] == ["stopped"]

    run(work())


def test_a_stop_while_devices_report_settles_what_they_reported(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            experiment, devices = await started(operator, 5, evaluate_every=1, evaluation_cohort=5)
            await together(await leased(devices, (1.0,) * 5))
            members = await leased(devices, (0.0,) * 5)
            await together(members[:2], ["keys"])
            await operator.ok("POST", f"/v1/experiments/{experiment}/stop")
            assert (await operator.finished(experiment))["state"] == "stopped"
            settled = (await members[0].device.check_in([members[0].task.id]))["settled"]
            assert settled == {members[0].task.id: "rolled_back"}
            # An attempt that never began has not failed either.
            assert not await failures(operator, experiment)

    run(work())


async def failures(operator: Operator, experiment: str) -> list[dict[str, Any]]:
    """The attempts that failed."""
    return [event for event in await events_of(operator, experiment) if event["type"] == "attempt.failed"]


async def vector_of(member: Member) -> bytes:
    """What a member that has dealt its shares would send, were there nobody else: some vector of the right form."""
    assert member.state is not None and member.task.secure is not None
    spec = vector_spec(member.task.secure.sections)
    header = MaskedHeader(
        member.terms.attempt, member.task.id, member.task.plan.id, member.task.model.sha256, spec.digest
    )
    return encode_masked(header, bytes(spec.packed_bytes))


def test_groups_are_summed_apart_and_the_rule_works_on_their_means(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            experiment, devices = await started(operator, 15, secure(groups=3), min_updates=12, reducer="median")
            members = await leased(devices, tuple(float(number % 5) for number in range(15)))
            by_attempt: dict[str, list[Member]] = {}
            for member in members:
                by_attempt.setdefault(member.terms.attempt, []).append(member)
            assert sorted(len(group) for group in by_attempt.values()) == [5, 5, 5]
            await together(members)
            await operator.finished(experiment)
            (entry,) = await operator.rounds(experiment)
            middle = float(np.median([mean(group) for group in by_attempt.values()]))
            assert np.allclose(await weights(operator, entry["model"]), middle, atol=LOOSE)

    run(work())


def test_edge_aggregators_and_devices_that_cannot_mask_get_no_secure_task(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            _, devices = await started(operator, 5)
            plain = await devices[0].send("POST", "/v1/device/check-in", b'{"capabilities":{"trainers":["external"]}}')
            assert plain.json()["task"] is None
            token = {"kind": "edge", "population": "people", "max_clients": 50}
            edge = await operator.ok("POST", "/v1/tokens", json=token, headers=once())
            above = await Device(operator.http).enrol(edge["token"])
            assert (await above.check_in())["task"] is None
            assert (await devices[0].check_in())["task"]["secure"]["min_clients"] == 4
            # And no experiment of secure rounds is taken where an edge aggregator has enrolled.
            request = await operator.request(secure=secure(), rounds=1, cohort=5, min_updates=4)
            answer = await operator.call(
                "POST", "/v1/experiments", json=request.model_dump(mode="json"), headers=once()
            )
            assert (answer.status_code, answer.json()["code"]) == (422, "experiment_combination"), answer.text

    run(work())
