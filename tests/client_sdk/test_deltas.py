"""A device that has a model version gets the next one as a difference, and the whole of it where that fails."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from sdk_kit import Lab, experiment, run

from coterie.aggregation.plan.manifest import Broadcast
from coterie.client_sdk.device.blobs import BlobCache
from coterie.client_sdk.http import Link
from coterie.compute.nn.zoo import mlp
from coterie.errors import RemoteError
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.delta import ASKED, coarse, encode_delta
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.tensors import encode_tensors


class Statuses:
    """Notes the status and the bytes of every answer about a blob."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.seen: list[tuple[str, int, int]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        status = 0
        count = 0

        async def note(message: Any) -> None:
            nonlocal status, count
            status = message.get("status", status)
            count += len(message.get("body", b""))
            await send(message)

        await self.app(scope, receive, note)
        if scope["type"] == "http" and scope["path"].startswith("/v1/blobs/") and scope["method"] == "GET":
            self.seen.append((scope["path"], status, count))


@pytest.mark.parametrize(("broadcast", "share"), [("float32", 0.8), ("int8", 0.3)])
def test_the_second_version_comes_as_a_delta_and_is_the_same(
    broadcast: Broadcast, share: float, tmp_path: Path
) -> None:
    noted: list[Statuses] = []

    def wrap(app: Any) -> Statuses:
        noted.append(Statuses(app))
        return noted[0]

    async def work(place: Lab) -> None:
        policy = RoundPolicy(rounds=3, cohort=1, evaluate_every=0)
        wanted = experiment("deltas", model=mlp((4, 64, 64, 3)), rounds=policy, broadcast=broadcast)
        view = await place.submit(wanted)
        agent = await place.agent("deltas")
        await agent.run(rounds=3)
        models = await place.control.models(view.id)
        deltas = [(path, count) for path, status, count in noted[0].seen if status == 226]
        assert len(deltas) == 2
        for model, (path, count) in zip(models[1:3], deltas, strict=True):
            assert path.endswith(model.sha256) and 0 < count < share * model.size
            assert sha256_hex((tmp_path / "device" / "cache" / model.sha256).read_bytes()) == model.sha256

    run(work, tmp_path, wrap)


OLD = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
NEW = coarse(OLD, OLD + 0.01 * np.random.default_rng(1).standard_normal(5000))
OLD_FILE, NEW_FILE = (encode_tensors({"w": vector}) for vector in (OLD, NEW))
NAME, HELD = sha256_hex(NEW_FILE), sha256_hex(OLD_FILE)


def answers(delta: bytes, base: str = HELD) -> Callable[[httpx.Request], httpx.Response]:
    """A coordinator that gives this delta to whoever asks for one."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.headers.get("A-IM") == ASKED:
            assert f'"{HELD}"' in request.headers["If-None-Match"]
            return httpx.Response(226, content=delta, headers={"IM": ASKED, "Delta-Base": f'"{base}"'})
        return httpx.Response(200, content=NEW_FILE)

    return answer


def fetched(folder: Path, answer: Callable[[httpx.Request], httpx.Response]) -> tuple[bytes, int]:
    """The blob as a device with the old version gets it, and the bytes that came."""

    async def work() -> tuple[bytes, int]:
        (folder / HELD).write_bytes(OLD_FILE)
        link = Link("http://coordinator", transport=httpx.MockTransport(answer))
        try:
            cache = BlobCache(folder, link)
            data = await cache.fetch(NAME, limit=1 << 20, size=len(NEW_FILE), delta="from_held")
            return data, link.bytes_down
        finally:
            await link.close()

    return asyncio.run(work())


def test_a_coarse_version_comes_in_about_a_byte_for_each_number(tmp_path: Path) -> None:
    data, received = fetched(tmp_path, answers(b"".join(encode_delta(OLD_FILE, NEW_FILE) or ())))
    assert data == NEW_FILE and received < len(NEW_FILE) / 3.8
    assert (tmp_path / NAME).read_bytes() == NEW_FILE


@pytest.mark.parametrize("case", ["damaged", "of another version", "from a version that is not held"])
def test_a_delta_that_does_not_fit_is_followed_by_the_whole(case: str, tmp_path: Path) -> None:
    good = b"".join(encode_delta(OLD_FILE, NEW_FILE) or ())
    other = b"".join(encode_delta(OLD_FILE, encode_tensors({"w": OLD + 1})) or ())
    answer = {
        "damaged": answers(b"CTD1\x02" + good[5:]),
        "of another version": answers(other),
        "from a version that is not held": answers(good, base="0" * 64),
    }[case]
    data, received = fetched(tmp_path, answer)
    assert data == NEW_FILE and received > len(NEW_FILE)


def test_a_coordinator_that_sends_nothing_but_useless_deltas_is_given_up(tmp_path: Path) -> None:
    asked: list[bool] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append("A-IM" in request.headers)
        return httpx.Response(226, content=b"CTD1", headers={"IM": ASKED, "Delta-Base": f'"{HELD}"'})

    with pytest.raises(RemoteError, match="do not match its SHA-256") as caught:
        fetched(tmp_path, answer)
    assert caught.value.reason == "digest_mismatch" and asked == [True, False]
    assert not (tmp_path / f"{NAME}.part").exists()


def test_a_device_whose_cache_was_cleared_gets_the_whole(tmp_path: Path) -> None:
    folder = tmp_path / "cache"

    async def work() -> None:
        link = Link("http://coordinator", transport=httpx.MockTransport(answers(b"")))
        try:
            cache = BlobCache(folder, link)
            for _ in range(2):
                assert await cache.fetch(NAME, limit=1 << 20, size=len(NEW_FILE), delta="from_held") == NEW_FILE
                shutil.rmtree(folder)
        finally:
            await link.close()

    asyncio.run(work())
