"""Device signatures and nonces: what is not signed by the device, just now and just once, does not count."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_kit import Device, Opener, Operator, fleet, update

from coterie.errors import ConfigurationError, Unauthenticated
from coterie.protocol.signing import SigningKey
from coterie.server.app import create_app
from coterie.server.credentials.nonces import Nonces
from coterie.server.settings import Settings
from tests.held_clock import held

BODY = b'{"pending":[]}'
PATH = "/v1/device/check-in"


def with_device(coordinator: Opener, check: Callable[[Operator, Device], Awaitable[None]], **changes: object) -> None:
    """Run a check with an enrolled device."""

    async def work() -> None:
        async with coordinator(**changes) as operator:
            (device,) = await fleet(operator, await operator.population(), 1)
            await check(operator, device)

    asyncio.run(work())


async def code_of(device: Device, headers: dict[str, str], body: bytes = BODY, path: str = PATH) -> tuple[int, str]:
    """How the coordinator refuses these headers."""
    answer = await device.http.post(path, content=body, headers={"Content-Type": "application/json", **headers})
    return answer.status_code, answer.json().get("code", "")


def test_every_part_of_a_request_is_covered_by_its_signature(coordinator: Opener) -> None:
    async def check(operator: Operator, device: Device) -> None:
        def fresh() -> str:
            return operator.app.state.coordinator.identity.nonces.issue(device.id)

        def signed(
            method: str = "POST", path: str = PATH, body: bytes = BODY, authority: str | None = None
        ) -> dict[str, str]:
            return device.signed(method, path, body, fresh(), authority=authority)

        good, other = signed(), signed()
        stranger = Device(device.http, SigningKey.generate(), device.id)
        forged: dict[str, tuple[dict[str, str], tuple[int, str]]] = {
            "nothing signed": ({}, (401, "unauthenticated")),
            "no signature": ({**good, "Signature": ""}, (401, "signature_malformed")),
            "another body": (signed(body=b"{}"), (400, "content_digest_mismatch")),
            "another digest": ({**good, "Content-Digest": f"sha-256=:{'A' * 43}=:"}, (401, "signature_invalid")),
            "no digest": ({k: v for k, v in good.items() if k != "Content-Digest"}, (401, "signature_malformed")),
            "another path": (signed(path=PATH + "x"), (401, "signature_invalid")),
            "another method": (signed("PUT"), (401, "signature_invalid")),
            "another authority": (signed(authority="other.example.org"), (401, "signature_invalid")),
            "another key": (stranger.signed("POST", PATH, BODY, fresh()), (401, "signature_invalid")),
            "another nonce": ({**good, "Signature-Input": other["Signature-Input"]}, (401, "signature_invalid")),
            "a covered header put in": ({**good, "Upload-Offset": "0"}, (401, "signature_coverage")),
            "no base64": ({**good, "Signature": "device=:?:"}, (401, "signature_malformed")),
        }
        for name, (headers, expected) in forged.items():
            assert await code_of(device, headers) == expected, name
        assert await code_of(device, signed()) == (200, "")
        with_query = signed(path=PATH + "?a=1")
        assert await code_of(device, with_query, path=PATH + "?a=2") == (401, "signature_invalid")

    with_device(coordinator, check)


@pytest.mark.parametrize("name", ["Signature", "Signature-Input", "Content-Digest", "Host"])
def test_a_header_that_is_there_twice_is_refused(name: str, coordinator: Opener) -> None:
    async def check(operator: Operator, device: Device) -> None:
        headers = {"Host": "coordinator", "Content-Type": "application/json", **device.signed("POST", PATH, BODY)}
        doubled = [*headers.items(), (name, headers[name])]
        answer = await device.http.post(PATH, content=BODY, headers=doubled)
        assert (answer.status_code, answer.json()["code"]) == (401, "signature_malformed")
        assert f"{name.lower()} appears 2 times" in answer.json()["detail"]

    with_device(coordinator, check)


def test_behind_a_proxy_the_public_url_is_what_devices_sign(coordinator: Opener) -> None:
    """The proxy ends TLS, takes /fl off the path and puts a name of its own into Host."""

    async def check(operator: Operator, device: Device) -> None:
        def signed(authority: str, path: str) -> dict[str, str]:
            nonce = operator.app.state.coordinator.identity.nonces.issue(device.id)
            return device.signed("POST", path, BODY, nonce, authority=authority)

        assert await code_of(device, signed("coterie.example.org", "/fl" + PATH)) == (200, "")
        assert await code_of(device, signed("coterie.example.org", PATH)) == (401, "signature_invalid")
        assert await code_of(device, signed("coordinator", PATH)) == (401, "authority_mismatch")
        forwarded = {"X-Forwarded-Host": "alias.example.org", **signed("alias.example.org", PATH)}
        answer = await device.http.post(PATH, content=BODY, headers={"Content-Type": "application/json", **forwarded})
        assert answer.json()["code"] == "authority_mismatch"
        assert "signed for alias.example.org, but this coordinator is coterie.example.org" in answer.json()["detail"]

    with_device(coordinator, check, public_url="https://Coterie.example.org:443/fl/")


def test_a_proxy_that_changes_the_host_is_found_out_without_a_public_url(coordinator: Opener) -> None:
    async def check(operator: Operator, device: Device) -> None:
        signed = device.signed("POST", PATH, BODY, authority="coterie.example.org")
        assert await code_of(device, {"X-Forwarded-Host": "coterie.example.org", **signed}) == (
            401,
            "authority_mismatch",
        )

    with_device(coordinator, check)


@pytest.mark.parametrize("url", ["coterie.example.org", "ftp://a", "https://", "https://a?b", "https://u:p@a"])
def test_a_public_url_of_another_form_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        create_app(Settings(public_url=url))
    assert caught.value.reason == "public_url_invalid"


def test_nothing_of_a_body_is_read_for_a_signature_that_does_not_hold(coordinator: Opener) -> None:
    async def check(operator: Operator, device: Device) -> None:
        await operator.experiment(cohort=1, rounds=1)
        task = await device.task()
        read: list[bytes] = []

        async def body() -> AsyncIterator[bytes]:
            read.append(b"x")
            yield b"x"

        path = f"/v1/device/tasks/{task.id}/update"
        headers = {"Upload-Offset": "0", "Upload-Length": "1", "Repr-Digest": f"sha-256=:{'A' * 43}=:"}
        stranger = Device(device.http, SigningKey.generate(), device.id, device.nonce)
        signed = stranger.signed("PATCH", path, b"x", headers=headers)
        answer = await device.http.request("PATCH", path, content=body(), headers={**headers, **signed})
        assert (answer.status_code, read) == (401, [])

    with_device(coordinator, check)


def test_a_replay_is_refused_while_the_process_lives_and_after_a_restart(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            (device,) = await fleet(operator, await operator.population(), 1)
            headers = device.signed("POST", PATH, BODY)
            assert await code_of(device, headers) == (200, "")
            assert await code_of(device, headers) == (401, "nonce_used")
        async with coordinator() as operator:
            device.http = operator.http
            assert await code_of(device, headers) == (401, "nonce_stale")
            assert (await device.send("POST", PATH, BODY)).status_code == 200

    asyncio.run(work())


def test_a_nonce_is_good_for_one_device_and_a_short_time(coordinator: Opener) -> None:
    async def check(operator: Operator, device: Device) -> None:
        (other,) = await fleet(operator, await operator.population(), 1)
        assert await code_of(device, device.signed("POST", PATH, BODY, other.nonce)) == (401, "nonce_stale")
        old = operator.app.state.coordinator.identity.nonces.issue(device.id)
        clock.forward(2.1)
        answer = await device.once("POST", PATH, BODY, nonce=old)
        assert answer.json()["code"] == "nonce_stale"
        assert (await device.once("POST", PATH, BODY)).status_code == 200  # with the nonce of the refusal

    with held() as clock:
        with_device(coordinator, check, nonce_window_s=2.0)


def test_unknown_and_revoked_devices(coordinator: Opener) -> None:
    async def check(operator: Operator, device: Device) -> None:
        stranger = Device(device.http, device.key, "dev_" + "0" * 32, device.nonce)
        assert await code_of(device, stranger.signed("POST", PATH, BODY)) == (401, "device_unknown")
        view = await operator.ok("POST", f"/v1/devices/{device.id}/revoke")
        assert view["state"] == "revoked"
        answer = await device.send("POST", PATH, BODY)
        assert (answer.status_code, answer.json()["code"]) == (403, "device_revoked")
        token = await operator.population()
        with pytest.raises(AssertionError, match="device_revoked"):
            await device.enrol(token)

    with_device(coordinator, check)


def test_a_revocation_is_not_forgotten_for_a_row_that_was_read_before_it(coordinator: Opener) -> None:
    async def check(operator: Operator, device: Device) -> None:
        cache = operator.app.state.coordinator.presence.devices
        cache.forget(device.id)
        read = cache._database.read

        @asynccontextmanager
        async def slow() -> AsyncGenerator[Any, None]:
            async with read() as session:
                yield session
            if cache._database.read is slow:
                cache._database.read = read
                await operator.ok("POST", f"/v1/devices/{device.id}/revoke")

        cache._database.read = slow
        assert not (await cache.find(device.id)).revoked  # it was read before
        assert (await cache.find(device.id)).revoked

    with_device(coordinator, check)


def test_an_upload_that_its_device_did_not_sign_counts_nowhere(coordinator: Opener) -> None:
    """The body of an upload is streamed: its signature is checked before it comes, and its digest as it does."""

    async def check(operator: Operator, device: Device) -> None:
        experiment = await operator.experiment(cohort=1, rounds=1)
        task = await device.task()
        key = device.key
        device.key = SigningKey.generate()
        answer = await device.upload(task, update(task))
        assert (answer.status_code, answer.json()["code"]) == (401, "signature_invalid")
        device.key = key
        signed = device.signed

        def over_another_body(method: str, path: str, body: bytes, *more: Any, **named: Any) -> dict[str, str]:
            return signed(method, path, body + b"!", *more, **named)

        device.signed = over_another_body
        answer = await device.upload(task, update(task))
        assert (answer.status_code, answer.json()["code"]) == (400, "content_digest_mismatch")
        device.signed = signed
        (entry,) = await operator.rounds(experiment)
        assert (entry["accepted"], entry["leased"]) == (0, 1)
        assert (await device.upload(task, update(task))).is_success

    with_device(coordinator, check)


@given(st.binary(max_size=80))
def test_no_made_up_nonce_passes(noise: bytes) -> None:
    nonces = Nonces(b"k" * 32, 60)
    good = nonces.issue("dev_a")
    for made_up in (noise.decode("latin-1"), good[:-2] + noise.hex()[:2], good.swapcase()):
        if made_up != good:
            with pytest.raises(Unauthenticated):
                nonces.check("dev_a", made_up)


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(1, 20))
def test_a_nonce_is_spent_at_most_once_however_time_goes(steps: list[int], window: int) -> None:
    now = [1_000_000]
    nonces = Nonces(b"k" * 32, window, lambda: now[0])
    issued: list[str] = []
    spent: set[str] = set()
    for step in steps:
        now[0] += step * 1000
        issued.append(nonces.issue("dev_a"))
        for nonce in issued[-5:]:
            try:
                nonces.spend(nonce, nonces.check("dev_a", nonce))
            except Unauthenticated:
                continue
            assert nonce not in spent
            spent.add(nonce)
