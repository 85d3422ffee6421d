"""What a device may send, and how much of it is on the disk before its signature is seen."""

import asyncio
import base64
from collections.abc import AsyncIterator

from server_kit import Opener, fleet, sha256, update

from tests.patience import patience


def test_a_task_has_one_body_that_comes_in_and_the_newest_counts(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            (device,) = await fleet(operator, await operator.population(), 1)
            await operator.experiment(rounds=1, cohort=1)
            task = await device.task()
            data = update(task)
            digest = base64.b64encode(bytes.fromhex(sha256(data))).decode()
            path = f"/v1/device/tasks/{task.id}/update"
            length = str(task.upload_limit)
            headers = {"Upload-Offset": "0", "Upload-Length": length, "Repr-Digest": f"sha-256=:{digest}:"}
            begun = asyncio.Event()

            async def endless() -> AsyncIterator[bytes]:
                yield bytes(1000)
                begun.set()
                await asyncio.Event().wait()

            async def stuck() -> tuple[int, str]:
                nonce = operator.app.state.coordinator.identity.nonces.issue(device.id)
                signed = {**device.signed("PATCH", path, b"", nonce, headers), **headers}
                answer = await operator.http.request("PATCH", path, content=endless(), headers=signed)
                return answer.status_code, answer.json()["code"]

            waiting = list[asyncio.Task[tuple[int, str]]]()
            for _ in range(5):
                begun.clear()  # here, since the task itself begins later
                waiting.append(asyncio.create_task(stuck()))
                await begun.wait()
            async with asyncio.timeout(patience(30)):
                assert await asyncio.gather(*waiting[:-1]) == [(409, "upload_superseded")] * 4
            scratch = operator.app.state.coordinator.storage.blobs.scratch
            assert len(list(scratch.iterdir())) == 1
            assert (await device.upload(task, data)).status_code == 200
            async with asyncio.timeout(patience(30)):
                assert await waiting[-1] == (409, "upload_superseded")
            assert not list(scratch.glob("body-*"))

    asyncio.run(work())


def test_a_class_in_a_report_is_a_number_of_53_bits(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            (device,) = await fleet(operator, await operator.population(), 1)
            for label, status in ((2**53 - 1, 200), (2**53, 422), (-(10**400), 422)):
                body = f'{{"data":{{"examples":1,"labels":[{label}]}}}}'.encode()
                assert (await device.send("POST", "/v1/device/check-in", body)).status_code == status

    asyncio.run(work())
