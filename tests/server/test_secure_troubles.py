"""Secure rounds in trouble that is nobody's lie: a coordinator that is away, clocks that jump, work that comes too
late, many who wait at once. Every attempt ends, by name, and leaves nothing behind.
"""

import asyncio
import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from secure_kit import (
    STEPS,
    Member,
    OutOfAttempt,
    attempt_of,
    events_of,
    lapse,
    leased,
    mailed,
    mean,
    started,
    together,
    until_phase,
)
from server_kit import Opener, fleet
from server_kit import update as an_update
from sqlalchemy import update
from test_secure_rounds import LOOSE, run, until_clean, weights

from coterie.privacy.secagg import client
from coterie.server.clock import now_ms
from coterie.server.settings import Settings
from coterie.server.store import experiments, mailbox
from coterie.server.store.tables import RoundRow
from coterie.server.worker.workers import WorkerLost, Workers
from tests.patience import patience

OLD_SDK = b'{"pending":[],"capabilities":{"trainers":["plan","external"]}}'


def test_the_time_without_a_coordinator_is_not_counted_against_its_clients(
    coordinator: Opener, settings: Settings
) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            experiment, devices = await started(operator, 5)
            members = await leased(devices, (1.0, 2.0, 0.5, -1.0, 3.0))
            await together(members, ["keys"])
            await until_phase(operator, "shares")
            await together(members[:1], ["shares"])
        with sqlite3.connect(settings.folder / "coterie.db") as database:
            database.execute("UPDATE attempts SET deadline_at = 1")  # it is away for longer than a phase lasts
        database.close()
        async with coordinator() as operator:
            for each in members:
                each.device.http = operator.http
            await together(members[1:], ["shares"])
            await together(members, STEPS[2:])
            await operator.finished(experiment)
            (entry,) = await operator.rounds(experiment)
            assert (entry["state"], entry["accepted"]) == ("committed", 5)
            assert np.allclose(await weights(operator, entry["model"]), mean(members), atol=LOOSE)

    run(work())


def test_an_attempt_that_cannot_be_read_holds_up_no_other_experiment(coordinator: Opener, settings: Settings) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            _, devices = await started(operator, 5)
            members = await leased(devices, (1.0, 2.0, 0.5, -1.0, 3.0))
            await together(members, ["keys"])
            await until_phase(operator, "shares")
        with sqlite3.connect(settings.folder / "coterie.db") as database:
            database.execute("UPDATE attempts SET state = '{}'")
        database.close()
        async with coordinator() as operator:
            token = await operator.population("others")
            other = await operator.experiment(population="others", rounds=1, cohort=2)
            for device in await fleet(operator, token, 2):
                task = await device.task()
                assert (await device.upload(task, an_update(task))).status_code == 200
            await operator.finished(other)

    run(work())


@pytest.mark.parametrize("hours", [25, -25])
def test_a_clock_that_is_set_during_an_attempt_costs_nobody_his_place(
    hours: int, coordinator: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            here = operator.app.state.coordinator
            experiment, devices = await started(operator, 5)
            members = await leased(devices, (1.0, 2.0, 0.5, -1.0, 3.0))
            await together(members, ["keys", "shares"])
            before = await until_phase(operator, "masked")
            await together(members[:2], ["masked"])
            real = time.time_ns
            monkeypatch.setattr(time, "time_ns", lambda: real() + hours * 3600 * 10**9)
            here.signals.bell.ring()
            async with asyncio.timeout(patience(30)):
                while (row := await attempt_of(operator)).deadline_at == before.deadline_at:
                    await asyncio.sleep(0.01)
            # As long as ever, by the clock that there is now.
            assert row.phase == "masked" and 0 < (row.deadline_at or 0) - now_ms() <= members[0].terms.phase_ms
            await together(members[2:], ["masked"])
            await together(members, ["reveal"])
            await operator.finished(experiment)
            (entry,) = await operator.rounds(experiment)
            assert (entry["state"], entry["accepted"]) == ("committed", 5)
            assert np.allclose(await weights(operator, entry["model"]), mean(members), atol=LOOSE)

    run(work())


def test_who_sends_more_than_a_mailbox_takes_is_refused_and_can_still_send_what_it_should(
    coordinator: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            experiment, devices = await started(operator, 5)
            members = await leased(devices, (1.0, 2.0, 0.5, -1.0, 3.0))
            await together(members, ["keys"])
            one = members[0]
            with monkeypatch.context() as narrow:
                narrow.setattr(mailbox, "BUNDLE_LIMIT", 100)
                message = await one.told("roster")
                assert one.state is not None
                state, dealt = client.step(one.state, message, identity=one.device.key)
                assert dealt is not None
                body = dealt.model_dump_json().encode()
                refused = await one.device.send("POST", one.path("shares"), body)
                assert (refused.status_code, refused.json()["code"]) == (413, "too_large"), refused.text
                assert "shares" not in await mailed(operator)
            one.state = state
            assert (await one.say("shares", body)).status_code == 200
            whole = b'{"commitment":"' + b"0" * (1 << 20) + b'"}'
            assert (await one.device.send("POST", one.path("shares"), whole)).status_code == 413
            await together(members[1:], ["shares"])
            await together(members, STEPS[2:])
            await operator.finished(experiment)
            assert (await operator.rounds(experiment))[0]["state"] == "committed"

    run(work())


def test_a_worker_that_writes_a_sum_while_its_round_is_stopped_leaves_nothing(
    coordinator: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            experiment, devices = await started(operator, 5)
            members = await leased(devices, (1.0, 2.0, 0.5, -1.0, 3.0))
            at_once = Workers.run

            async def slow(self: Workers, job: str, arguments: dict[str, Any]) -> dict[str, Any]:
                result = await at_once(self, job, arguments)
                if job == "unmask":
                    cache = Path(arguments["cache"])
                    kept = cache.read_bytes()
                    await operator.ok("POST", f"/v1/experiments/{experiment}/stop")
                    while cache.exists() or await mailed(operator):
                        await asyncio.sleep(0.01)
                    cache.write_bytes(kept)  # the worker's last word comes after the round's files are gone
                return result

            monkeypatch.setattr(Workers, "run", slow)
            await together(members)
            await operator.finished(experiment)
            await until_clean(operator)
            (entry,) = await operator.rounds(experiment)
            assert (entry["state"], entry["cause"], entry["model"]) == ("abandoned", "stopped", None)

    run(work())


@pytest.mark.parametrize("job", ["unmask", "secure_aggregate"])
def test_a_worker_that_dies_while_it_opens_a_sum_costs_no_sum(
    job: str, coordinator: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            experiment, devices = await started(operator, 5)
            members = await leased(devices, (1.0, 2.0, 0.5, -1.0, 3.0))
            at_once, died = Workers.run, list[str]()

            async def deadly(self: Workers, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
                if name == job and len(died) < 2:
                    died.append(name)
                    raise WorkerLost("The job failed: the worker died or hung.")
                return await at_once(self, name, arguments)

            monkeypatch.setattr(Workers, "run", deadly)
            await together(members)
            await operator.finished(experiment)
            (entry,) = await operator.rounds(experiment)
            assert (died, entry["state"]) == ([job] * 2, "committed")
            assert np.allclose(await weights(operator, entry["model"]), mean(members), atol=LOOSE)

    run(work())


def test_why_devices_leave_an_attempt_is_told_and_where_it_ends_is_too(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            experiment, devices = await started(operator, 5)
            members = await leased(devices, (1.0, 2.0, 0.5, -1.0, 3.0))
            await together(members, ["keys"])
            await until_phase(operator, "shares")
            reason = json.dumps({"phase": "uploading", "code": "secagg_cohort", "detail": "too few"}).encode()
            for member in members[:3]:
                for _ in range(2):
                    answer = await member.device.send("POST", f"/v1/device/tasks/{member.task.id}/abort", reason)
                    assert answer.status_code == 204, answer.text
            await together(members[3:], ["shares"])
            await lapse(operator)
            await operator.finished(experiment)
            told = await events_of(operator, experiment)
            assert [event["code"] for event in told if event["type"] == "task.aborted"] == ["secagg_cohort"] * 3
            (ended,) = [event for event in told if event["type"] == "round.abandoned"]
            assert ended["cause"] == "aggregate_failed"
            assert "too_few_dealt" in ended["detail"] and "secagg_cohort (3)" in ended["detail"]
            await until_clean(operator)

    run(work())


def test_devices_that_do_not_know_secure_aggregation_are_given_no_task_and_the_round_ends_saying_so(
    coordinator: Opener,
) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            experiment, devices = await started(operator, 10, min_updates=9)
            new = await leased(devices[:5], (1.0, 2.0, 0.5, -1.0, 3.0))
            await together(new, ["keys"])
            for old in devices[5:]:
                answer = await old.send("POST", "/v1/device/check-in", OLD_SDK)
                assert answer.json()["task"] is None
            async with operator.app.state.coordinator.storage.database.write("deadline") as session:
                await experiments.lock(session, experiment)
                await session.execute(update(RoundRow).values(deadline_at=1))
            await operator.finished(experiment)
            (entry,) = await operator.rounds(experiment)
            assert (entry["state"], entry["cause"], entry["accepted"]) == ("abandoned", "too_few_updates", 5)
            (ended,) = [e for e in await events_of(operator, experiment) if e["type"] == "round.abandoned"]
            assert "no device took 5 of the 10 tasks" in ended["detail"] and "secure aggregation" in ended["detail"]
            # Who had trained is told, and nothing is left of what was never an attempt.
            with pytest.raises(OutOfAttempt) as told:
                await new[0].told("roster")
            assert (told.value.code, told.value.cause) == ("attempt_over", "too_few_updates")
            await until_clean(operator)

    run(work())


def test_an_attempt_that_is_stopped_half_way_takes_nothing_more_and_leaves_nothing(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            experiment, devices = await started(operator, 5)
            members = await leased(devices, (1.0, 2.0, 0.5, -1.0, 3.0))
            await together(members, ["keys", "shares"])
            await together(members[:2], ["masked"])
            begun, waiting, late = members[2:]
            for each in (begun, late):
                each.state, _ = client.step(await_state(each), await each.told("shares"), identity=each.device.key)
            half = await begun.device.upload(begun.task, begun.masked(), part=begun.masked()[:100])
            assert half.status_code == 204
            polls = asyncio.create_task(waiting.device.send("GET", members[0].path("survivors?wait_ms=20000")))
            heard = asyncio.create_task(members[0].told("survivors"))
            await operator.ok("POST", f"/v1/experiments/{experiment}/stop")
            with pytest.raises(OutOfAttempt) as told:
                await heard
            assert (told.value.code, told.value.cause) == ("attempt_over", "stopped")
            assert (await polls).status_code == 404  # another device's task
            await until_clean(operator)
            rest = await begun.device.upload(begun.task, begun.masked(), offset=100)
            assert rest.status_code == 409, rest.text  # what was begun of it is gone
            again = await begun.device.upload(begun.task, begun.masked(), part=begun.masked()[:100])
            whole = await late.device.upload(late.task, late.masked())
            for answer in (again, whole):
                assert (answer.status_code, answer.json()["code"], answer.json()["cause"]) == (
                    410,
                    "attempt_over",
                    "stopped",
                )
            await until_clean(operator)
            outcome = await late.told("outcome")
            assert (outcome.state, outcome.cause) == ("failed", "stopped")

    run(work())


def await_state(member: Member) -> client.ClientState:
    """The state of a member that has dealt."""
    assert member.state is not None
    return member.state


def test_after_an_attempt_that_failed_the_next_round_has_one_of_its_own(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            experiment, devices = await started(operator, 5, rounds=2)
            first = await leased(devices, (9.0,) * 5)
            await together(first, ["keys"])
            await until_phase(operator, "shares")
            await together(first[:2], ["shares"])
            await lapse(operator)
            await operator.until_round(experiment, 1, "abandoned")
            members = await leased(devices, (1.0, 2.0, 0.5, -1.0, 3.0))
            assert {member.terms.attempt for member in members}.isdisjoint({first[0].terms.attempt})
            late = await first[0].say("shares", first[0].said["shares"])
            assert (late.status_code, late.json()["code"], late.json()["cause"]) == (
                410,
                "attempt_over",
                "too_few_dealt",
            )
            await together(members)
            await operator.finished(experiment)
            entries = await operator.rounds(experiment)
            assert [entry["state"] for entry in entries] == ["abandoned", "committed"]
            assert np.allclose(await weights(operator, entries[1]["model"]), mean(members), atol=LOOSE)

    run(work())
