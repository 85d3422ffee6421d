"""Requests signed by a device's key with a nonce that the coordinator issued (`coterie.protocol.http_signatures`)."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from coterie.client_sdk.http import JSON, NONCE, HttpResponse, Link, parsed, problem
from coterie.errors import RemoteError, Unreachable
from coterie.protocol.canonical import canonical_json, sha256_hex
from coterie.protocol.http_signatures import FIELDS, RequestHead, content_digest, sign_request
from coterie.protocol.signing import SigningKey

# What a device without a nonce sends: well-formed, and certain to be refused with a fresh one.
NO_NONCE: Final = "none"
_RENEWABLE = ("nonce_stale", "nonce_used")


class SignedLink:
    """A `Link` on which every request is signed. One request at a time: each uses up the nonce that the answer before
    it brought.

    A nonce is kept in memory only. After a start, a lost answer or a restarted coordinator the request is refused once
    with a fresh nonce, and sent again with that, once; a second refusal is an error.
    """

    def __init__(self, link: Link, *, key: SigningKey, device_id: str, nonce: str | None = None) -> None:
        self.link = link
        self._key = key
        self._device_id = device_id
        self._nonce = nonce or NO_NONCE
        self._turn = asyncio.Lock()

    async def request(
        self,
        method: str,
        target: str,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        accept: tuple[int, ...] = (),
    ) -> HttpResponse:
        """A signed request; parameters, result and errors as `Link.request`."""
        async with self._turn:
            response = await self._send_once(method, target, body, headers or {}, (*accept, 401))
            if response.status_code == 401 and _code(response) in _RENEWABLE and self._nonce != NO_NONCE:
                response = await self._send_once(method, target, body, headers or {}, (*accept, 401))
        if response.status_code == 401 and 401 not in accept:
            raise _refusal(response)
        return response

    async def json(self, method: str, target: str, message: object) -> Any:
        """A signed request with a JSON body and a JSON answer (None for an empty one)."""
        response = await self.request(method, target, body=canonical_json(message), headers={"Content-Type": JSON})
        return parsed(response) if response.content else None

    async def _send_once(
        self, method: str, target: str, body: bytes, headers: Mapping[str, str], accept: tuple[int, ...]
    ) -> HttpResponse:
        nonce, self._nonce = self._nonce, NO_NONCE
        path, _, query = target.partition("?")
        given = {name.lower(): value for name, value in headers.items() if name.lower() in FIELDS}
        fields = {"content-digest": content_digest(sha256_hex(body)), **given}
        head = RequestHead(method, self.link.authority, self.link.prefix + path, query, fields)
        signed = sign_request(self._key, head, device=self._device_id, nonce=nonce)
        try:
            response = await self.link.request(method, target, body=body, headers={**headers, **signed}, accept=accept)
        except Unreachable:
            raise
        except RemoteError as error:
            self._nonce = str(error.details.get("next_nonce") or NO_NONCE)
            raise
        self._nonce = response.headers.get(NONCE, NO_NONCE)
        return response


def _code(response: HttpResponse) -> str:
    return _refusal(response).reason


def _refusal(response: HttpResponse) -> RemoteError:
    return problem(response.status_code, response.content, response.headers)
