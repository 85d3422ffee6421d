"""Sessions over a real coordinator: two parties send, receive and acknowledge; every refusal has its code."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_kit import Device, Opener, Operator, fleet, update
from sessions_kit import Liar, made, parties, transport_of, two

from coterie.client_sdk.party.pins import refuse
from coterie.errors import CoterieError
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.http_signatures import content_digest
from coterie.protocol.session import fingerprint
from coterie.server.store.blobs import Received
from coterie.server.store.housekeeping import sweep_orphans
from coterie.server.store.parts import UploadParts
from coterie.server.turns import PhaseTurns
from tests.held_clock import held
from tests.patience import patience


def test_messages_come_in_order_and_are_acknowledged_once(coordinator: Opener, tmp_path: Path) -> None:
    async def work() -> None:
        async with coordinator() as operator, two(operator, tmp_path) as (session, one, other):
            large = bytes(range(256)) * 20_000
            for sequence, body in enumerate((b"first", b"", large)):
                assert (await one.send("rows", "feature", body)).sequence == sequence
            for sequence, body in enumerate((b"first", b"", large)):
                message = await other.receive("rows", "owner", patience_s=20)
                assert (message.sequence, await message.read()) == (sequence, body)
                await other.acknowledge("rows", "owner", sequence)
                await other.acknowledge("rows", "owner", sequence)
            view = await operator.ok("GET", f"/v1/sessions/{session['id']}")
            assert view["messages"] == 0
            with pytest.raises(CoterieError) as silent:
                await other.receive("rows", "owner", patience_s=0)
            assert silent.value.reason == "partner_silent" and "Clinic" in silent.value.message

    asyncio.run(work())


def nobody(_turns: PhaseTurns, _name: str) -> None:
    """Wake nobody."""


@pytest.mark.parametrize("size", [5, 70_000])
@pytest.mark.parametrize("is_heard", [True, False], ids=["in turn", "not woken"])
def test_who_waits_for_a_message_gets_the_first_that_comes(
    size: int, is_heard: bool, coordinator: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing woke him for the first: another process may have taken it."""

    async def work() -> None:
        async with coordinator() as operator, two(operator, tmp_path) as (_, one, other):
            await one.send("rows", "feature", b"keys are settled")
            await (await other.receive("rows", "owner", patience_s=20)).read()
            await other.acknowledge("rows", "owner", 0)
            waiting = asyncio.create_task(other.receive("rows", "owner", patience_s=20))
            messages = operator.app.state.coordinator.signals.messages
            async with asyncio.timeout(patience(20)):
                while not messages.waited_for():
                    await asyncio.sleep(0.01)
            with monkeypatch.context() as patched:
                if not is_heard:
                    patched.setattr(PhaseTurns, "turned", nobody)
                await one.send("rows", "feature", bytes(size))
            await one.send("rows", "feature", b"later")
            message = await waiting
            assert (message.sequence, await message.read()) == (1, bytes(size))
            await other.acknowledge("rows", "owner", 1)
            later = await other.receive("rows", "owner", patience_s=20)
            assert (later.sequence, await later.read()) == (2, b"later")

    asyncio.run(work())


def test_a_large_message_outlives_the_rounds_that_end_while_it_waits(coordinator: Opener, tmp_path: Path) -> None:
    async def work() -> None:
        async with coordinator() as operator, two(operator, tmp_path) as (_, one, other):
            large = bytes(range(256)) * 2_000
            await one.send("rows", "feature", large)
            blobs = operator.app.state.coordinator.storage.blobs
            await blobs.parts.add("nobody", 0, await blobs.receive(pieces(large), limit=len(large)))
            (device,) = await fleet(operator, await operator.population(), 1)
            await operator.finished(await one_round(operator, device))
            async with asyncio.timeout(patience(20)):
                while "nobody" in await blobs.parts.tasks():
                    await asyncio.sleep(0.02)
            message = await other.receive("rows", "owner", patience_s=patience(20))
            assert await message.read() == large

    asyncio.run(work())


def test_a_message_whose_reservation_expires_while_it_comes_in_is_sent_again_whole(
    coordinator: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        with held() as clock:
            async with coordinator() as operator, two(operator, tmp_path, message_ttl_s=600) as (_, one, other):
                storage, real = operator.app.state.coordinator.storage, UploadParts.add

                async def slowly(self: UploadParts, task: str, start: int, body: Received) -> None:
                    await real(self, task, start, body)
                    monkeypatch.setattr(UploadParts, "add", real)
                    clock.forward(601)
                    await sweep_orphans(storage.database, storage.blobs)
                    assert not await storage.blobs.parts.tasks()

                monkeypatch.setattr(UploadParts, "add", slowly)
                large = bytes(range(256)) * 2_000
                assert (await one.send("rows", "feature", large)).state == "accepted"
                message = await other.receive("rows", "owner", patience_s=patience(20))
                assert await message.read() == large

    asyncio.run(work())


async def pieces(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def one_round(operator: Operator, device: Device) -> str:
    experiment = await operator.experiment(rounds=1, cohort=1)
    task = await device.task()
    await device.upload(task, update(task))
    return experiment


def test_a_counted_message_is_sent_once_and_with_one_body(coordinator: Opener, tmp_path: Path) -> None:
    async def work() -> None:
        async with coordinator() as operator, two(operator, tmp_path) as (_, one, _other):
            assert (await one.send("rows", "feature", b"x", sequence=0)).state == "accepted"
            assert (await one.send("rows", "feature", b"x", sequence=0)).state == "already"
            for body, sequence, code in ((b"y", 0, "message_differs"), (b"y", 2, "message_order")):
                with pytest.raises(CoterieError) as refused:
                    await one.send("rows", "feature", body, sequence=sequence)
                assert refused.value.reason == code

    asyncio.run(work())


@pytest.mark.parametrize(
    ("path", "length", "code"),
    [
        ("rows/feature/1", 1, "message_order"),
        ("rows/nobody/0", 1, "role_unknown"),
        ("rows/owner/0", 1, "role_unknown"),
        ("nowhere/feature/0", 1, "stage_unknown"),
        ("rows/feature/0", 500, "message_too_large"),
        ("rows/feature/0", 90, "mailbox_full"),
        ("rows/feature/0", 1, "digest_mismatch"),
        ("keys/feature/1", 1, "message_order"),
        ("keys/feature/0", 5000, "message_too_large"),
    ],
)
def test_the_coordinator_refuses_by_name(
    coordinator: Opener, tmp_path: Path, path: str, length: int, code: str
) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            async with two(operator, tmp_path) as (_, one, _other):
                pass
            async with two(operator, tmp_path / "again", message_limit=100, party_quota=50) as (_, one, _other):
                body = b"z" * length
                digest = content_digest(sha256_hex(b"other" if code == "digest_mismatch" else body))
                headers = {"Upload-Offset": "0", "Upload-Length": str(length), "Repr-Digest": digest}
                signed: Any = one._mail_for("test")._link  # pyright: ignore[reportPrivateUsage]
                target = f"/v1/party/messages/{path}"
                with pytest.raises(CoterieError) as refused:
                    await signed.request("PATCH", target, body=body, headers=headers)
                assert refused.value.reason == code and refused.value.hint

    asyncio.run(work())


def test_an_ended_and_an_expired_session_take_nothing(coordinator: Opener, tmp_path: Path) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            async with two(operator, tmp_path) as (session, one, _other):
                await operator.ok("POST", f"/v1/sessions/{session['id']}/end", json={"detail": "done"})
                with pytest.raises(CoterieError, match="done") as ended:
                    await one.send("rows", "feature", b"x")
                assert ended.value.reason == "session_ended"
            with held() as clock:
                async with two(operator, tmp_path / "again", expires_s=1) as (_, one, _other):
                    clock.forward(1.1)
                    with pytest.raises(CoterieError) as expired:
                        await one.send("rows", "feature", b"x")
                assert expired.value.reason == "session_expired"

    asyncio.run(work())


def test_an_expired_message_is_told_by_name_and_left_behind(coordinator: Opener, tmp_path: Path) -> None:
    async def work() -> None:
        async with coordinator() as operator, two(operator, tmp_path, message_ttl_s=1) as (_, one, other):
            for body in (b"late", bytes(100_000)):
                sent = await one.send("rows", "feature", body)
                clock.forward(1.1)
                with pytest.raises(CoterieError) as expired:
                    await other.receive("rows", "owner", patience_s=20)
                assert expired.value.reason == "message_expired"
                assert expired.value.details["sequence"] == sent.sequence
                await other.acknowledge("rows", "owner", sent.sequence)
            await one.send("rows", "feature", b"in time")
            message = await other.receive("rows", "owner", patience_s=20)
            assert (message.sequence, await message.read()) == (2, b"in time")

    with held() as clock:
        asyncio.run(work())


def test_patience_ends_every_wait_by_name(coordinator: Opener, tmp_path: Path) -> None:
    """For a partner that has not joined, for one that does not fetch, and for a coordinator that is away."""

    async def away(request: httpx.Request, answer: httpx.Response) -> httpx.Response:
        return httpx.Response(503, request=request)

    async def ends(wait: Awaitable[object]) -> CoterieError:
        with pytest.raises(CoterieError) as found:
            async with asyncio.timeout(patience(20)):
                await wait
        return found.value

    async def work() -> None:
        async with coordinator() as operator:
            liar = Liar(transport_of(operator))
            async with parties(operator, tmp_path, liar=liar) as (clinic, registry):
                session, url = await made(operator, party_quota=1000), str(operator.http.base_url)
                feature = await registry.join(url, session["tokens"]["feature"])
                silent = await ends(feature.send("rows", "owner", b"x", patience_s=0.1))
                assert silent.reason == "partner_silent" and "has not joined yet" in silent.message
                owner = await clinic.join(url, session["tokens"]["owner"])
                await owner.send("rows", "feature", bytes(600), patience_s=20)
                full = await ends(owner.send("rows", "feature", bytes(600), patience_s=0.1))
                assert full.reason == "mailbox_full"
                assert await (await feature.receive("rows", "owner", patience_s=20)).read() == bytes(600)
                liar.lie = away
                for wait in (
                    feature.send("rows", "owner", b"x", patience_s=0.1),
                    feature.receive("rows", "owner", patience_s=0.1),
                    feature.acknowledge("rows", "owner", 0, patience_s=0.1),
                ):
                    assert (await ends(wait)).details["http_status"] == 503

    asyncio.run(work())


def test_messages_are_acknowledged_in_their_order(coordinator: Opener, tmp_path: Path) -> None:
    async def work() -> None:
        async with coordinator() as operator, two(operator, tmp_path) as (_, one, other):
            for body in (b"first", b"second"):
                await one.send("rows", "feature", body)
            await other.receive("rows", "owner", patience_s=20)
            signed: Any = other._mail_for("test")._link  # pyright: ignore[reportPrivateUsage]
            for number, code in ((1, "message_order"), (2, "message_unknown")):
                with pytest.raises(CoterieError) as refused:
                    await signed.request("POST", f"/v1/party/messages/rows/owner/{number}/acknowledge")
                assert refused.value.reason == code and refused.value.hint

    asyncio.run(work())


def test_a_role_is_taken_by_one_key(coordinator: Opener, tmp_path: Path) -> None:
    async def work() -> None:
        async with coordinator() as operator, two(operator, tmp_path) as (session, _one, _other):
            body = {"public_key": "ab" * 32}
            headers = {"Authorization": f"Bearer {session['tokens']['owner']}"}
            answer = await operator.http.post("/v1/party/join", json=body, headers=headers)
            assert answer.json()["code"] == "role_taken"

    asyncio.run(work())


def test_a_changed_or_unpinned_key_is_refused_with_fingerprints(coordinator: Opener, tmp_path: Path) -> None:
    async def work() -> None:
        async with coordinator() as operator, two(operator, tmp_path) as (_, one, other):
            store: Any = one._store  # pyright: ignore[reportPrivateUsage]
            shown = fingerprint(other._store.key.public)  # pyright: ignore[reportPrivateUsage]
            one._judge = refuse  # pyright: ignore[reportPrivateUsage]
            with pytest.raises(CoterieError, match=shown) as unknown:
                await one.send("rows", "feature", b"x")
            assert unknown.value.reason == "partner_unknown"
            store.pins.pin("Registry", "ab" * 32)
            with pytest.raises(CoterieError, match=shown) as changed:
                await one.send("rows", "feature", b"x")
            assert changed.value.reason == "partner_changed" and "abababab-" in changed.value.message
            store.pins.pin("Registry", shown)
            assert (await one.send("rows", "feature", b"x")).state == "accepted"

    asyncio.run(work())
