"""Links, problem documents and signed requests, against a scripted other side."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from coterie.client_sdk.device.signed import SignedLink
from coterie.client_sdk.http import Link, is_transient, problem
from coterie.errors import ConfigurationError, RemoteError, Unreachable
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.http_signatures import RequestHead, check_content_digest, parse_signature
from coterie.protocol.signing import SigningKey

KEY = SigningKey.from_seed(b"d" * 32)
Handler = Callable[[httpx.Request], httpx.Response]


def link(handler: Handler) -> Link:
    return Link("http://coordinator/", transport=httpx.MockTransport(handler))


def test_a_problem_document_becomes_an_error_with_code_hint_and_its_other_members() -> None:
    document = {"title": "Conflict", "detail": "No.", "code": "offset_mismatch", "hint": "Go on there.", "missing": [1]}
    error = problem(409, json.dumps(document).encode(), {"Retry-After": "7"})
    assert (error.message, error.hint, error.reason) == ("No.", "Go on there.", "offset_mismatch")
    assert error.details["http_status"] == 409 and error.details["missing"] == [1]
    assert error.details["retry_after_s"] == 7.0


@pytest.mark.parametrize("content", [b"", b"<html>", b"[1]", b'{"message": "x", "http_status": 1}'])
def test_an_answer_of_something_else_is_still_a_clear_error(content: bytes) -> None:
    error = problem(404, content, {})
    assert "404" in error.message and error.reason == "http_404" and error.details["http_status"] == 404


@pytest.mark.parametrize(
    ("status", "transient"),
    [(400, False), (401, False), (404, False), (408, True), (429, True), (500, True), (507, True)],
)
def test_what_may_pass_by_itself(status: int, transient: bool) -> None:
    assert is_transient(problem(status, b"", {})) is transient


def test_no_answer_is_unreachable_and_says_where() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    with pytest.raises(Unreachable) as caught:
        asyncio.run(link(refuse).request("GET", "/healthz"))
    assert "http://coordinator" in str(caught.value) and is_transient(caught.value)


@pytest.mark.parametrize("url", ["", "127.0.0.1:8765", "ftp://x", "http://", "not a url"])
def test_an_address_that_is_none_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(ConfigurationError, match="http://127.0.0.1:8765"):
        Link(url)


def verified(request: httpx.Request) -> str:
    """The nonce of a request that its device signed."""
    fields = {name.lower(): value for name, value in request.headers.items()}
    check_content_digest(fields["content-digest"], sha256_hex(request.content))
    path, _, query = request.url.raw_path.decode().partition("?")
    signature = parse_signature(fields)
    signature.verify(KEY.public, RequestHead(request.method, fields["host"], path, query, fields))
    return signature.nonce


class Plane:
    """A device plane that checks signatures and gives out nonces, refusing those it did not give."""

    def __init__(self) -> None:
        self.valid: set[str] = set()
        self.count = 0
        self.seen: list[str] = []
        self.broken = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        nonce = verified(request)
        self.seen.append(nonce)
        self.count += 1
        fresh = f"nonce-number-{self.count:08d}"
        if self.broken:
            raise httpx.ReadError("the answer is lost", request=request)
        self.valid.add(fresh)
        if nonce not in self.valid:
            return httpx.Response(401, json={"code": "nonce_stale"}, headers={"Coterie-Nonce": fresh})
        self.valid.discard(nonce)
        return httpx.Response(200, json={"ok": True}, headers={"Coterie-Nonce": fresh})


async def signed(plane: Handler, work: Callable[[SignedLink], Any]) -> Any:
    there = link(plane)
    try:
        return await work(SignedLink(there, key=KEY, device_id="dev_1"))
    finally:
        await there.close()


def test_each_request_is_signed_over_target_and_body_with_a_nonce_that_is_used_once() -> None:
    plane = Plane()

    async def work(there: SignedLink) -> None:
        for number in range(3):
            assert await there.json("POST", "/v1/x?a=1&b=%20", {"n": number}) == {"ok": True}

    asyncio.run(signed(plane, work))
    # One refusal brings the first nonce; after it every nonce comes from the answer before.
    assert len(plane.seen) == 4 and len(set(plane.seen)) == 4


def test_after_a_lost_answer_the_nonce_is_not_used_again() -> None:
    plane = Plane()

    async def work(there: SignedLink) -> None:
        await there.json("POST", "/v1/x", {})
        plane.broken = True
        with pytest.raises(Unreachable):
            await there.json("POST", "/v1/x", {})
        plane.broken = False
        assert await there.json("POST", "/v1/x", {}) == {"ok": True}

    asyncio.run(signed(plane, work))
    sent = [nonce for nonce in plane.seen if nonce.startswith("nonce")]
    assert len(sent) == len(set(sent))


@pytest.mark.parametrize("code", ["nonce_stale", "nonce_used"])
def test_a_refused_nonce_is_renewed_once_and_no_more(code: str) -> None:
    calls: list[str] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        calls.append(verified(request))
        fresh = {"Coterie-Nonce": f"fresh-nonce-number-{len(calls)}"}
        return httpx.Response(401, json={"code": code, "detail": "Again."}, headers=fresh)

    async def work(there: SignedLink) -> None:
        with pytest.raises(RemoteError) as caught:
            await there.json("POST", "/v1/x", {})
        assert caught.value.reason == code

    asyncio.run(signed(refuse, work))
    assert len(calls) == 2 and calls[1] == "fresh-nonce-number-1"


def test_another_refusal_is_not_repeated_and_its_nonce_serves_the_next_request() -> None:
    calls: list[str] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        calls.append(verified(request))
        status, code = [(401, "signature_invalid"), (403, "device_revoked"), (200, "")][len(calls) - 1]
        return httpx.Response(
            status, json={"code": code}, headers={"Coterie-Nonce": f"fresh-nonce-number-{len(calls)}"}
        )

    async def work(there: SignedLink) -> None:
        for code in ("signature_invalid", "device_revoked"):
            with pytest.raises(RemoteError) as caught:
                await there.json("POST", "/v1/x", {})
            assert caught.value.reason == code
        await there.json("POST", "/v1/x", {})

    asyncio.run(signed(refuse, work))
    assert calls[1:] == ["fresh-nonce-number-1", "fresh-nonce-number-2"]
