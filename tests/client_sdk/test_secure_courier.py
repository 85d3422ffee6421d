"""A device's part of an attempt with the coordinator's machine: killed anywhere, it says one thing in each phase."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from relay import Killed, Member, Relay, task, terms

from coterie.client_sdk.device import secure
from coterie.client_sdk.device.faults import POINTS, SECURE_POINTS, DeviceFaults
from coterie.client_sdk.device.outcome import TaskResult
from coterie.client_sdk.device.secure import Ended
from coterie.client_sdk.device.store import DeviceStore
from coterie.client_sdk.device.trainers.base import Stopped
from coterie.errors import InputError, PolicyRefused, RemoteError, SecureAggregationRefused, Unauthenticated
from coterie.privacy.secagg import server
from coterie.privacy.secagg.client import ClientState, step
from coterie.privacy.secagg.encoding import vector_spec
from coterie.privacy.secagg.ring import reduced
from coterie.privacy.secagg.roster import model_digest
from coterie.privacy.secagg.survivors import to_bits
from coterie.protocol import ids
from coterie.protocol.device import Task
from coterie.protocol.secagg import Survivors
from tests.patience import patience

CLIENTS = 4
MODES = ("semi_honest", "consistent")
# Beside those of attempts, the points of every upload; `ended` and `pending` are passed by whoever calls the courier.
STRIKES = [
    point
    for point in (*SECURE_POINTS, *POINTS)
    if point in ("written", "uploading", "uploaded") or point in SECURE_POINTS
]
STRIKES.remove("ended")


def gather(folder: Path, relay: Relay, floor: int = 3) -> list[Member]:
    return [Member(folder / str(number), relay, number + 1, floor) for number in range(relay.clients)]


def kill() -> None:
    raise Killed


def check_sum(relay: Relay, members: list[Member]) -> None:
    expected = np.zeros_like(members[0].vector)
    for member in members:
        expected += member.vector
    assert np.array_equal(relay.total(), reduced(expected, vector_spec(relay.terms.sections)))


async def killed_and_resumed(member: Member, point: str) -> Ended:
    """Kill a device at a point, start it again, and let it go on."""
    try:
        await member.work(DeviceFaults(point, 1, kill))
    except Killed:
        member.restart()
        return await member.work()
    raise AssertionError(f"The point {point} was never reached.")


@pytest.mark.parametrize("waits", [True, False], ids=["answers-wait", "answers-at-once"])
@pytest.mark.parametrize("mode", MODES)
def test_devices_bring_an_attempt_to_an_exact_sum_and_keep_no_secret(tmp_path: Path, mode: str, waits: bool) -> None:
    async def work() -> None:
        relay = Relay(terms(CLIENTS, mode), CLIENTS, waits=waits)
        members = gather(tmp_path, relay)
        ended = await asyncio.gather(*(member.work() for member in members))
        assert ended == [Ended(masked=True, state="summed")] * CLIENTS
        check_sum(relay, members)
        for member in members:
            member.store.acknowledged(member.task.id, kind="train", outcome="summed")
            entry = member.store.history()[0]
            assert entry.sent == (
                "keys",
                "shares",
                "masked",
                *(("agreement",) if mode == "consistent" else ()),
                "reveal",
            )
            assert (entry.clients, entry.survivors, entry.mode, entry.outcome) == (CLIENTS, CLIENTS, mode, "summed")
            assert entry.bytes_up == len(relay.masked[member.id])
            files = [path for path in member.folder.rglob("*") if path.is_file()]
            assert len(member.secrets) == 3
            assert not any(secret.encode() in path.read_bytes() for secret in member.secrets for path in files)
            assert [path.name for path in (member.folder / "updates").iterdir()] == []

    asyncio.run(work())


@pytest.mark.parametrize("point", STRIKES)
def test_a_device_killed_there_goes_on_and_says_one_thing_in_each_phase(tmp_path: Path, point: str) -> None:
    async def work() -> None:
        relay = Relay(terms(CLIENTS, "consistent"), CLIENTS)
        members = gather(tmp_path, relay)
        victim, others = members[0], members[1:]
        ended = await asyncio.gather(killed_and_resumed(victim, point), *(member.work() for member in others))
        assert {end.state for end in ended} == {"summed"}
        check_sum(relay, members)
        assert {len(bodies) for bodies in relay.bodies.values()} == {1}

    asyncio.run(work())


@pytest.mark.parametrize("message", ["keys", "shares", "masked", "agreement", "reveal"])
@pytest.mark.parametrize("damage", ["lost", "damaged"])
def test_a_device_whose_state_is_gone_says_nothing_more(tmp_path: Path, message: str, damage: str) -> None:
    async def work() -> None:
        relay = Relay(terms(CLIENTS, "consistent"), CLIENTS)
        members = gather(tmp_path, relay)
        victim = members[0]
        others = [asyncio.create_task(member.work()) for member in members[1:]]
        with pytest.raises(Killed):
            await victim.work(DeviceFaults(f"{message}_sent", 1, kill))
        statement = (
            "DELETE FROM attempts" if damage == "lost" else "UPDATE attempts SET state = replace(state, '1', '2')"
        )
        victim.store.close()
        with closing(sqlite3.connect(victim.folder / "device.db")) as database, database:
            database.execute(statement)
        victim.store = DeviceStore(victim.folder)
        said = dict(relay.bodies)
        with pytest.raises(PolicyRefused) as caught:
            await victim.work()
        assert caught.value.reason == "attempt_lost"
        assert {key: bodies for key, bodies in relay.bodies.items() if key[0] == victim.id} == {
            key: bodies for key, bodies in said.items() if key[0] == victim.id
        }
        # The others get their sum without its help: it is a client that dropped out.
        await go_on(relay, victim, others)
        check_sum(relay, members if message in ("masked", "agreement", "reveal") else members[1:])

    asyncio.run(work())


async def go_on(relay: Relay, without: Member, tasks: list[asyncio.Task[Ended]]) -> None:
    """End each phase in which only one device has still to answer, until the others are done."""
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0.01)
        if server.awaited(relay.running()) == (relay.place_of(without.id),):
            relay.deadline()
    assert {task.result().state for task in tasks} == {"summed"}


@pytest.mark.parametrize("file", ["vector", "update"])
def test_a_vector_that_is_damaged_on_the_disk_is_never_sent(tmp_path: Path, file: str) -> None:
    async def work() -> None:
        relay = Relay(terms(CLIENTS), CLIENTS)
        members = gather(tmp_path, relay)
        victim = members[0]
        point = "shares_sent" if file == "vector" else "masked_ready"
        others = [asyncio.create_task(member.work()) for member in members[1:]]
        with pytest.raises(Killed):
            await victim.work(DeviceFaults(point, 1, kill))
        victim.restart()
        (path,) = (victim.folder / "updates").iterdir()
        assert path.suffix == f".{file}"
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)
        with pytest.raises(PolicyRefused, match="is damaged") as caught:
            await victim.work()
        assert caught.value.reason == "attempt_lost" and (victim.id, "masked") not in relay.bodies
        assert str(tmp_path) not in caught.value.message, "which others are told"
        await go_on(relay, victim, others)
        check_sum(relay, members[1:])

    asyncio.run(work())


def test_a_second_list_of_survivors_gets_no_second_answer_after_a_restart(tmp_path: Path) -> None:
    """The coordinator lets the device answer one list, kills its connection, and shows it another one."""

    async def work() -> None:
        relay = Relay(terms(CLIENTS), CLIENTS)
        members = gather(tmp_path, relay)
        victim = members[0]
        others = [asyncio.create_task(member.work()) for member in members[1:]]
        with pytest.raises(Killed):
            await victim.work(DeviceFaults("reveal_sent", 1, kill))
        victim.restart()
        state = victim.store.attempts.load(victim.task.id)
        survivors = relay.tell(victim.id, "survivors")
        assert state.message == "reveal" and survivors is not None
        fewer = {**survivors, "alive": to_bits((0, 1, 2), CLIENTS)}
        with pytest.raises(SecureAggregationRefused):
            step(ClientState.from_json(state.state), Survivors.model_validate(fewer), identity=victim.store.key)
        assert (await victim.work()).state == "summed"
        assert len(relay.bodies[victim.id, "reveal"]) == 1
        await asyncio.gather(*others)

    asyncio.run(work())


# What is told otherwise, how, and the message that the device then never sends.
LIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "weaker threshold": ("roster", {"threshold": 1}, "shares"),
    "another roster": ("roster", {"digest": "0" * 64}, "masked"),
    "fewer survivors than the device's floor": ("survivors", {"alive": to_bits((0, 1), CLIENTS)}, "reveal"),
    "no box": ("shares", {"boxes": {}}, "masked"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_coordinator_that_lies_learns_nothing_from_the_device(tmp_path: Path, lie: str) -> None:
    name, changes, unsaid = LIES[lie]

    async def work() -> None:
        relay = Relay(terms(CLIENTS), CLIENTS)
        members = gather(tmp_path, relay)
        victim = members[0]

        def rewrite(device: str, told: str, message: dict[str, Any]) -> dict[str, Any]:
            return {**message, **changes} if (device, told) == (victim.id, name) else message

        relay.rewrite = rewrite
        others = [asyncio.create_task(member.work()) for member in members[1:]]
        # Under another roster no box opens, which is an error of the input.
        with pytest.raises((SecureAggregationRefused, InputError)):
            await victim.work()
        assert (victim.id, unsaid) not in relay.bodies
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    asyncio.run(work())


LOCAL = {"mechanism": "gaussian", "epsilon": 1.0, "delta": 1e-5, "clip": 1.0, "top": 0.5, "outputs": None}
# What a coordinator that lies asks of one device otherwise: nothing to learn, twice the say, nothing of the noise.
ASKED_OTHERWISE: dict[str, dict[str, Any]] = {
    "another learning rate": {"hyper": {"learning_rate": 0.0}},
    "another weight cap": {"weight_cap": 1},
    "another round": {"round": 2},
    "other noise of its own": {"local": LOCAL},
    "what this version does not know": {"tomorrow": 1},
}


@pytest.mark.parametrize("lie", ASKED_OTHERWISE)
@pytest.mark.parametrize("mode", MODES)
def test_a_device_that_is_asked_for_another_training_has_no_place_among_the_others(
    tmp_path: Path, mode: str, lie: str
) -> None:
    async def work() -> None:
        relay = Relay(terms(CLIENTS, mode), CLIENTS)
        members = gather(tmp_path, relay)
        victim = members[0]
        asked = victim.task.model_dump(mode="json", exclude_unset=True) | ASKED_OTHERWISE[lie]
        victim.task = Task.model_validate(asked)
        others = [asyncio.create_task(member.work()) for member in members[1:]]
        while len(relay.advertised) < CLIENTS - 1:
            await asyncio.sleep(0.001)
        # The relay verifies what in the mode ``consistent`` every other client verifies, too.
        with pytest.raises(Unauthenticated):
            async with asyncio.timeout(patience(60)):
                await victim.work()
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    asyncio.run(work())


def test_a_finished_task_shows_nothing_of_what_it_came_to() -> None:
    vector = np.array([123_456], np.uint32)
    finished = TaskResult(
        update=b"in clear",
        vector=vector,
        specs=(),
        sections={"delta": np.array([0.123456])},
        codecs={},
        sizes={},
        weight=1,
        steps=1,
        client_state={"kept": np.array([0.123456], np.float32)},
        metrics={},
        seconds=0.0,
    )
    assert "12345" not in repr(finished) and "clear" not in repr(finished)


def test_all_clients_must_be_asked_alike_but_for_what_is_their_own() -> None:
    asked = task(terms(CLIENTS), ids.new_id(ids.DEVICE))
    own = {"id": ids.new_id(ids.TASK), "device": ids.new_id(ids.DEVICE), "seed": 7, "lease_ms": 5, "upload_limit": 9}
    assert model_digest(asked.model_copy(update=own)) == model_digest(asked)
    privacy = {"unit": "user", "epsilon": 1.0, "delta": 1e-5, "mechanism": "gaussian", "trusts": "cohort"}
    edge: dict[str, Any] = {"reducer": "mean", "min_clients": 2, "max_clients": 3, "deadline_ms": 1}
    blob = {"sha256": "f" * 64, "size": 1}
    bound: dict[str, Any] = {
        "experiment": ids.new_id(ids.EXPERIMENT),
        "round": 2,
        "kind": "evaluate",
        "plan": {"id": "f" * 64, "signature": "c" * 86 + "==", "signer": "d" * 64},
        "model": blob,
        "frozen": blob,
        "hyper": {"learning_rate": 0.0},
        "codecs": ["float16"],
        "weight_cap": 1,
        "edge": {**edge, "selection": "uniform", "min_examples": None, "labels": [], "rest_rounds": 0, "rest_s": 0.0},
        "privacy": privacy,
        "local": LOCAL,
        "lineage": {"round": 2, "before": "f" * 64},
    }
    # Whatever field is added to tasks must be here, or among those that are a device's own.
    assert {*bound, *own, "secure", "signature"} == set(Task.model_fields)
    whole = asked.model_dump(mode="json", exclude_unset=True)
    for name, other in bound.items():
        assert model_digest(Task.model_validate({**whole, name: other})) != model_digest(asked), name


def test_a_roster_below_the_devices_own_floor_is_refused_whatever_the_task_allows(tmp_path: Path) -> None:
    async def work() -> None:
        relay = Relay(terms(6), CLIENTS)
        members = gather(tmp_path, relay, floor=5)
        results = await asyncio.gather(*(member.work() for member in members), return_exceptions=True)
        assert all(isinstance(each, SecureAggregationRefused) and each.reason == "secagg_cohort" for each in results)
        assert not any(message == "shares" for _, message in relay.bodies)

    asyncio.run(work())


def test_a_coordinator_that_restarts_costs_the_attempt_no_client(tmp_path: Path) -> None:
    async def work() -> None:
        relay = Relay(terms(CLIENTS), CLIENTS)
        members = gather(tmp_path, relay)
        relay.fail_next = [503, 503, 502, 503]
        ended = await asyncio.gather(*(member.work() for member in members))
        assert {end.state for end in ended} == {"summed"}
        assert sum(event["event"] == "error" for member in members for event in member.events) == 4
        check_sum(relay, members)

    asyncio.run(work())


def test_an_attempt_that_failed_before_masking_is_over_without_a_vector(tmp_path: Path) -> None:
    async def work() -> None:
        relay = Relay(terms(CLIENTS, dropout=0.0), CLIENTS)
        members = gather(tmp_path, relay)
        others = [asyncio.create_task(member.work()) for member in members[:2]]
        killed = (member.work(DeviceFaults("shares_ready", 1, kill)) for member in members[2:])
        assert [type(each) for each in await asyncio.gather(*killed, return_exceptions=True)] == [Killed] * 2
        while len(relay.shares) < 2:
            await asyncio.sleep(0.01)
        relay.deadline()
        for ended in await asyncio.gather(*others):
            assert (ended.masked, ended.state) == (False, "over") and ended.cause
        assert not relay.masked

    asyncio.run(work())


def test_a_device_that_shall_stop_leaves_its_attempt_and_takes_it_up_again(tmp_path: Path) -> None:
    async def work() -> None:
        relay = Relay(terms(CLIENTS), CLIENTS)
        members = gather(tmp_path, relay)
        leaving = members[0]
        working = asyncio.create_task(leaving.work())
        await asyncio.sleep(0.1)
        leaving.stop.set()
        with pytest.raises(Stopped):
            await asyncio.wait_for(working, patience(60))
        leaving.stop.clear()
        leaving.restart()
        ended = await asyncio.gather(*(member.work() for member in members))
        assert {end.state for end in ended} == {"summed"}
        check_sum(relay, members)

    asyncio.run(work())


def test_a_coordinator_that_says_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secure, "_ROSTER_S", 0.2)

    async def work() -> None:
        relay = Relay(terms(CLIENTS), CLIENTS)
        (alone, *_) = gather(tmp_path, relay)
        with pytest.raises(RemoteError, match="has not sent the roster") as caught:
            await alone.work()
        assert caught.value.reason == "attempt_silent"

    asyncio.run(work())
