"""Every bad upload gets a clear answer by name, and costs nobody else anything."""

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from server_kit import SIZE, Device, Opener, Operator, fleet, once, planted, sha256, update

from coterie.protocol.canonical import canonical_json
from coterie.protocol.device import Task
from coterie.protocol.tensors import encode_tensors
from coterie.server.settings import Settings
from coterie.server.store.blobs import BlobStore, Shelf
from coterie.server.store.received import Received
from tests.held_clock import held


def header(task: Task, **changes: Any) -> dict[str, Any]:
    """The header of a good update, with anything changed."""
    good: dict[str, Any] = {
        "format": "coterie-update-1",
        "kind": "update",
        "clients": 1,
        "task": task.id,
        "plan": task.plan.id,
        "base": task.model.sha256,
        "weight": 10,
        "steps": 3,
        "sections": [
            {"name": "delta", "codec": "float32", "length": SIZE},
            {"name": "metrics", "codec": "float64", "length": 3},
        ],
    }
    return {**good, **changes}


def raw(task: Task, delta: np.ndarray[Any, Any] | None = None, **changes: Any) -> bytes:
    """An update file made by hand, as a device that ignores the rules would make it."""
    payload = np.ones(SIZE, np.float32) if delta is None else delta
    tensors = {
        "delta": np.frombuffer(payload.tobytes(), np.uint8),
        "metrics": np.frombuffer(np.array([10, 5, 7.5], np.float64).tobytes(), np.uint8),
    }
    return encode_tensors(tensors, {"coterie": canonical_json(header(task, **changes)).decode()})


LYING_SECTIONS = [
    {"name": "delta", "codec": "float32", "length": 9},
    {"name": "metrics", "codec": "float64", "length": 3},
]
CASES: dict[str, tuple[Callable[[Task], bytes], str]] = {
    "NaN": (lambda task: planted(task, np.nan), "not_finite"),
    "infinity": (lambda task: planted(task, -np.inf), "not_finite"),
    "no tensor file": (lambda _: b"\x00" * 400, "wrong_format"),
    "a truncated tensor file": (lambda task: update(task)[:-8], "truncated"),
    "another length": (lambda task: raw(task, sections=LYING_SECTIONS), "wrong_length"),
    "a payload of another dtype": (lambda task: raw(task, np.ones(SIZE, np.float64)), "too_large"),
    "a payload too short": (lambda task: raw(task, np.ones(SIZE - 1, np.float32)), "truncated"),
    "another task": (lambda task: update(task, named="task_" + "0" * 32), "wrong_task"),
    "another plan": (lambda task: update(task, plan="0" * 64), "wrong_plan"),
    "another base": (lambda task: update(task, base="0" * 64), "wrong_base"),
    "a lie about the weight": (lambda task: update(task, weight=101), "bad_weight"),
    "no weight": (lambda task: update(task, weight=0), "bad_weight"),
    "a negative weight": (lambda task: raw(task, weight=-1), "bad_weight"),
    "an unknown codec": (
        lambda task: raw(task, sections=[{**LYING_SECTIONS[0], "length": SIZE, "codec": "zip"}, LYING_SECTIONS[1]]),
        "unknown_codec",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_update_that_may_not_enter_an_aggregate_is_refused_by_name(case: str, coordinator: Opener) -> None:
    make, code = CASES[case]

    async def work() -> None:
        async with coordinator() as operator:
            token = await operator.population()
            bad, good, other = await fleet(operator, token, 3)
            experiment = await operator.experiment(rounds=1)
            task = await bad.task()
            answer = await bad.upload(task, make(task))
            problem = answer.json()
            assert (answer.status_code, problem["code"]) == (422, code), problem
            assert answer.headers["Content-Type"] == "application/problem+json"
            assert problem["detail"] and problem["trace_id"]
            again = await bad.upload(task, update(task))
            assert (again.status_code, again.json()["code"]) == (409, "task_finished")
            # The round goes on without it, and counts only what was good.
            for device in (good, other):
                own = await device.task()
                assert (await device.upload(own, update(own))).status_code == 200
            await operator.finished(experiment)
            (entry,) = await operator.rounds(experiment)
            assert (entry["state"], entry["accepted"], entry["failed"]) == ("committed", 2, 1)

    asyncio.run(work())


def test_an_update_of_a_part_is_refused_as_it_comes_where_the_rule_needs_whole_ones(coordinator: Opener) -> None:
    """Not accepted and then left out by the job, of which its sender would hear nothing."""

    def part(task: Task) -> bytes:
        slices = [[0, SIZE - 1]]
        sections = [
            {"name": "delta", "codec": "float32", "length": SIZE, "slices": slices},
            {"name": "metrics", "codec": "float64", "length": 3},
        ]
        return raw(task, np.ones(SIZE - 1, np.float32), sections=sections)

    async def work() -> None:
        async with coordinator() as operator:
            (device,) = await fleet(operator, await operator.population(), 1)
            request = await operator.request(rounds=1, reducer="median")
            await operator.ok("POST", "/v1/experiments", json=request.model_dump(mode="json"), headers=once())
            task = await device.task()
            answer = await device.upload(task, part(task))
            assert (answer.status_code, answer.json()["code"]) == (422, "partial_update"), answer.json()

    asyncio.run(work())


def test_an_update_that_the_disk_spoils_later_is_counted_as_lost(coordinator: Opener, settings: Settings) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            devices = await fleet(operator, await operator.population(), 3)
            experiment = await operator.experiment(rounds=1, cohort=3, min_updates=2)
            first, *others = devices
            task = await first.task()
            data = update(task)
            assert (await first.upload(task, data)).status_code == 200
            (stored,) = (path for path in settings.folder.rglob("*") if _holds(path, data))
            stored.write_bytes(data.replace(np.ones(2, "<f4").tobytes(), np.full(2, np.nan, "<f4").tobytes()))
            for device in others:
                task = await device.task()
                assert (await device.upload(task, update(task))).status_code == 200
            await operator.finished(experiment)
            (entry,) = await operator.rounds(experiment)
            assert (entry["state"], entry["accepted"], entry["failed"]) == ("committed", 2, 1)

    asyncio.run(work())


def _holds(path: Path, data: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data


def with_task(coordinator: Opener, check: Callable[[Operator, Device, Task], Any], **changes: Any) -> None:
    """Run a check with a device that holds a task."""

    async def work() -> None:
        async with coordinator() as operator:
            token = await operator.population()
            (device,) = await fleet(operator, token, 1)
            asked: dict[str, Any] = {"cohort": 1, "rounds": 1, **changes}
            await operator.experiment(**asked)
            await check(operator, device, await device.task())

    asyncio.run(work())


def test_a_digest_mismatch_costs_only_a_repetition(coordinator: Opener) -> None:
    async def check(operator: Operator, device: Device, task: Task) -> None:
        data = update(task)
        answer = await device.upload(task, data, digest=sha256(b"other"))
        assert (answer.status_code, answer.json()["code"]) == (422, "digest_mismatch")
        assert answer.headers["Upload-Offset"] == "0"
        assert (await device.upload(task, data)).json() == {"state": "accepted", "sha256": sha256(data)}

    with_task(coordinator, check)


def test_the_same_upload_again_is_answered_with_already(coordinator: Opener) -> None:
    async def check(operator: Operator, device: Device, task: Task) -> None:
        data = update(task)
        assert (await device.upload(task, data)).json()["state"] == "accepted"
        assert (await device.upload(task, data)).json()["state"] == "already"
        await operator.until_round(task.experiment, 1, "committed")
        assert (await device.upload(task, data)).json()["state"] == "already"
        other = await device.upload(task, update(task, 2.0))
        assert (other.status_code, other.json()["code"]) == (409, "task_finished")

    with_task(coordinator, check)


def test_two_simultaneous_uploads_count_once(coordinator: Opener) -> None:
    async def check(operator: Operator, device: Device, task: Task) -> None:
        twin = Device(operator.http, device.key, device.id)
        data = update(task)
        answers = await asyncio.gather(device.upload(task, data), twin.upload(task, data))
        assert sorted(answer.json()["state"] for answer in answers) == ["accepted", "already"]
        (entry,) = await operator.rounds(task.experiment)
        assert entry["accepted"] == 1

    with_task(coordinator, check, min_updates=1)


def test_a_part_that_starts_past_the_end_is_told_so(coordinator: Opener) -> None:
    async def check(operator: Operator, device: Device, task: Task) -> None:
        data = update(task)
        answer = await device.upload(task, data, offset=len(data) + 1, part=b"")
        assert (answer.status_code, answer.json()["code"]) == (422, "request_invalid")
        assert f"{len(data) + 1} of an update of {len(data)} bytes" in answer.json()["detail"]

    with_task(coordinator, check)


def test_an_update_whose_round_ends_while_it_is_made_durable_leaves_nothing(
    coordinator: Opener, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(operator: Operator, device: Device, task: Task) -> None:
        keep = BlobStore.keep

        async def slow(store: BlobStore, shelf: Shelf, body: Received, *, point: str) -> None:
            await keep(store, shelf, body, point=point)
            if shelf == "updates":
                await operator.ok("POST", f"/v1/experiments/{task.experiment}/stop")

        monkeypatch.setattr(BlobStore, "keep", slow)
        answer = await device.upload(task, update(task))
        assert (answer.status_code, answer.json()["code"]) == (410, "round_closed")
        blobs = Path(settings.folder) / "blobs"
        assert [path for path in (blobs / "updates").rglob("*") if path.is_file()] == []
        assert list((blobs / "scratch").iterdir()) == []

    with_task(coordinator, check)


def test_locks_of_uploads_do_not_pile_up(coordinator: Opener) -> None:
    async def check(operator: Operator, device: Device, task: Task) -> None:
        for number in range(20):
            unknown = task.model_copy(update={"id": f"task_{number:032x}"})
            assert (await device.upload(unknown, update(task))).json()["code"] == "task_unknown"
        assert (await device.upload(task, update(task))).json()["state"] == "accepted"
        gc.collect()
        assert operator.app.state.coordinator.incoming.turns == 0

    with_task(coordinator, check)


def test_parts_resume_where_they_broke_off(coordinator: Opener) -> None:
    async def check(operator: Operator, device: Device, task: Task) -> None:
        data, path = update(task), f"/v1/device/tasks/{task.id}/update"
        assert (await device.send("HEAD", path)).headers["Upload-Offset"] == "0"
        first = await device.upload(task, data, part=data[:100])
        assert (first.status_code, first.headers["Upload-Offset"]) == (204, "100")
        assert (await device.send("HEAD", path)).headers["Upload-Offset"] == "100"
        ahead = await device.upload(task, data, offset=200)
        assert (ahead.status_code, ahead.json()["code"], ahead.headers["Upload-Offset"]) == (
            409,
            "offset_mismatch",
            "100",
        )
        repeated = await device.upload(task, data, offset=50, part=data[50:150])
        assert repeated.headers["Upload-Offset"] == "150"
        assert (await device.upload(task, data, offset=150)).json()["state"] == "accepted"

    with_task(coordinator, check)


def test_an_upload_above_the_limit_is_refused_before_it_is_read(coordinator: Opener) -> None:
    async def check(operator: Operator, device: Device, task: Task) -> None:
        answer = await device.upload(task, bytes(task.upload_limit + 1))
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
        longer = await device.upload(task, update(task), part=update(task) + b"more")
        assert (longer.status_code, longer.json()["code"]) == (413, "too_large")
        assert (await device.upload(task, update(task))).status_code == 200

    with_task(coordinator, check)


def test_unknown_foreign_and_finished_tasks(coordinator: Opener, settings: Settings) -> None:
    async def check(operator: Operator, device: Device, task: Task) -> None:
        token = await operator.population()
        (thief,) = await fleet(operator, token, 1)
        stolen = await thief.upload(task, update(task))
        assert (stolen.status_code, stolen.json()["code"]) == (404, "task_unknown")
        unknown = task.model_copy(update={"id": "task_" + "0" * 32})
        assert (await device.upload(unknown, update(task))).status_code == 404
        malformed = task.model_copy(update={"id": "../../etc"})
        assert (await device.upload(malformed, update(task))).status_code in (404, 422)
        await operator.ok("POST", f"/v1/experiments/{task.experiment}/stop")
        late = await device.upload(task, update(task))
        assert (late.status_code, late.json()["code"]) == (410, "round_closed")
        assert (await device.check_in([task.id]))["settled"] == {task.id: "rolled_back"}

    with_task(coordinator, check)


def test_an_expired_lease_is_gone_and_its_slot_is_offered_again(coordinator: Opener) -> None:
    async def check(operator: Operator, device: Device, task: Task) -> None:
        token = await operator.population()
        (second,) = await fleet(operator, token, 1)
        clock.forward(1.1)
        other = await second.task()
        late = await device.upload(task, update(task))
        assert (late.status_code, late.json()["code"]) == (410, "lease_expired")
        assert (await second.upload(other, update(other))).status_code == 200
        await operator.until_round(task.experiment, 1, "committed")

    with held() as clock:
        with_task(coordinator, check, lease_s=1.0)


def test_progress_extends_the_lease_and_the_same_task_is_given_again(coordinator: Opener) -> None:
    lease_s = 0.5

    async def check(operator: Operator, device: Device, task: Task) -> None:
        for _ in range(4):
            clock.forward(0.8 * lease_s)
            await asyncio.sleep(lease_s)  # the coordinator looks what is due
            answer = await device.send("POST", f"/v1/device/tasks/{task.id}/progress", b'{"phase":"training"}')
            assert answer.json() == {"lease_ms": round(1000 * lease_s)}
        assert (await device.task()).id == task.id
        assert (await device.upload(task, update(task))).status_code == 200

    with held() as clock:
        with_task(coordinator, check, lease_s=lease_s)


def test_an_aborting_device_gives_its_slot_back(coordinator: Opener) -> None:
    async def check(operator: Operator, device: Device, task: Task) -> None:
        body = b'{"phase":"training","code":"battery_low","detail":""}'
        for _ in range(2):
            assert (await device.send("POST", f"/v1/device/tasks/{task.id}/abort", body)).status_code == 204
            (view,) = [row for row in (await operator.ok("GET", "/v1/devices"))["items"] if row["id"] == device.id]
            assert (view["accepted"], view["failed"], view["failure"]) == (0, 1, "battery_low")
        assert (await device.upload(task, update(task))).json()["code"] == "task_finished"
        again = await device.task()
        assert again.id != task.id
        assert (await device.upload(again, update(again))).status_code == 200

    with_task(coordinator, check)
