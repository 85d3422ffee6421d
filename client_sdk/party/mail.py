"""Requests of a party about its messages: sealed bytes go out in pieces, and come in by ranges; both go on where they
broke off. Constant memory.
"""

import asyncio
import base64
import math
import os
import random
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coterie.client_sdk.device.backoff import Backoff, after_failure
from coterie.client_sdk.device.signed import SignedLink
from coterie.client_sdk.http import HttpResponse, is_transient, parsed, problem
from coterie.client_sdk.party.faults import PartyFaults
from coterie.errors import RemoteError
from coterie.protocol.canonical import LARGEST_INTEGER
from coterie.protocol.session import SEQUENCE_HEADER, Acknowledged, SendReceipt
from coterie.protocol.wire import read_message

PIECE: Final = 2 << 20
WAIT_MS: Final = 25_000
SOONEST_S: Final = 0.5
"""So long after a request that found no message comes the next."""
BUSY: Final = frozenset(("mailbox_full", "upload_superseded"))
"""Refusals that pass by themselves."""


@dataclass(frozen=True)
class Arrived:
    """A message that is there.

    sealed: SHA-256 of its sealed bytes, hex.
    size: how many.
    first: the first of them.
    """

    sequence: int
    sealed: str
    size: int
    first: bytes


class Mail:
    """A party's requests, each made again while the coordinator is away, or a mailbox is full because the partner does
    not fetch.

    patience_s, of each method: how long to wait for that, from when it began; for as long as it takes when not given.
    Then the coordinator's refusal is raised, or Unreachable.
    """

    def __init__(
        self, link: SignedLink, backoff: Backoff, on_pause: Callable[[RemoteError], None], faults: PartyFaults
    ) -> None:
        self._link = link
        self._faults = faults
        self._backoff = backoff
        self._on_pause = on_pause
        self._rng = random.Random()

    async def request(
        self, method: str, target: str, accept: tuple[int, ...] = (), *, patience_s: float | None = None, **options: Any
    ) -> HttpResponse:
        """One signed request, repeated while the coordinator does not answer or the mailbox is full."""
        until, failures = _deadline(patience_s), 0
        while True:
            try:
                return await self._link.request(method, target, accept=accept, **options)
            except RemoteError as error:
                if not is_transient(error) and error.reason not in BUSY:
                    raise
                failures += 1
                await self._wait_to_retry(error, failures, until)

    async def send(
        self,
        stage: str,
        role: str,
        sequence: int,
        body: bytes | Path,
        size: int,
        sealed: str,
        *,
        patience_s: float | None = None,
    ) -> SendReceipt:
        """Send sealed bytes, from memory or a file; go on where an earlier sending broke off."""
        target = f"/v1/party/messages/{stage}/{role}/{sequence}"
        digest = f"sha-256=:{base64.b64encode(bytes.fromhex(sealed)).decode()}:"
        offset = 0 if size <= PIECE else await self._offset(target, patience_s)
        until, failures = _deadline(patience_s), 0
        while True:
            piece = _read_slice(body, offset, PIECE)
            headers = {
                "Content-Type": "application/octet-stream",
                "Upload-Offset": str(offset),
                "Upload-Length": str(size),
                "Repr-Digest": digest,
            }
            answer = await self.request(
                "PATCH", target, body=piece, headers=headers, accept=(409,), patience_s=patience_s
            )
            if answer.status_code == 200:
                receipt = read_message(SendReceipt, parsed(answer))
                if (receipt.sequence, receipt.sha256) != (sequence, sealed):
                    raise RemoteError(
                        f"The coordinator acknowledged other bytes than those of message {sequence} to {role} in "
                        f"stage {stage}.",
                        hint="End the session and make another; the coordinator mixed up its messages, or is not "
                        "honest.",
                        code="message_differs",
                    )
                return receipt
            told = answer.headers.get("Upload-Offset", "")
            if answer.status_code == 204:
                self._faults.reach("sending")
            if answer.status_code == 409:
                refusal = problem(409, answer.content, answer.headers)
                if refusal.reason in BUSY:
                    failures += 1
                    await self._wait_to_retry(refusal, failures, until)
                    continue
                if refusal.reason != "offset_mismatch" or not told.isdecimal() or int(told) >= size:
                    raise refusal
            offset = int(told) if told.isdecimal() else offset + len(piece)
            until = _deadline(patience_s)

    async def _wait_to_retry(self, error: RemoteError, failures: int, until: float) -> None:
        left_s = until - asyncio.get_running_loop().time()
        if left_s <= 0:
            raise error
        self._on_pause(error)
        told = error.details.get("retry_after_s")
        after_s = float(told) if isinstance(told, int | float) else 0.0
        pause_s = after_failure(failures, self._backoff, self._rng, retry_after_s=after_s)
        await asyncio.sleep(min(pause_s, left_s))

    async def _offset(self, target: str, patience_s: float | None) -> int:
        try:
            answer = await self.request("HEAD", target, patience_s=patience_s)
        except RemoteError:
            return 0  # an answer to HEAD has no body, so the reason is unknown: the PATCH that follows learns it
        told, whole = answer.headers.get("Upload-Offset", "0"), answer.headers.get("Upload-Length")
        return int(told) if told.isdecimal() and whole is None else 0

    async def arrived(self, stage: str, role: str, *, patience_s: float | None) -> Arrived | None:
        """The next message from a role, with its first bytes; None when none has come for ``patience_s`` seconds."""
        loop = asyncio.get_running_loop()
        until = _deadline(patience_s)
        while True:
            left_s = max(0.0, until - loop.time())
            left = round(min(WAIT_MS, left_s * 1000))
            target = f"/v1/party/messages/{stage}/{role}?wait_ms={left}"
            asked = loop.time()
            headers = {"Range": f"bytes=0-{PIECE - 1}"}
            answer = await self.request("GET", target, headers=headers, patience_s=left_s)
            if answer.status_code == 204:
                now = loop.time()
                if now >= until:
                    return None
                # A coordinator that closes, or a proxy, answers sooner than asked.
                await asyncio.sleep(max(0.0, min(left / 1000, SOONEST_S) - (now - asked)))
                continue
            total = answer.headers.get("Content-Range", "").rpartition("/")[2]
            size = _whole(total)
            sequence = _whole(answer.headers.get(SEQUENCE_HEADER, ""))
            if sequence is None:
                raise RemoteError(
                    f"The coordinator sent a message whose {SEQUENCE_HEADER} is not a number.",
                    hint="Is there a proxy between this party and the coordinator that drops or changes headers?",
                    code="not_a_coordinator",
                )
            size = len(answer.content) if size is None else size
            return Arrived(sequence, answer.headers.get("ETag", "").strip('"'), size, answer.content)

    async def rest(
        self, stage: str, role: str, message: Arrived, *, patience_s: float | None = None
    ) -> AsyncIterator[bytes]:
        """All sealed bytes of a message that has arrived, piece by piece."""
        yield message.first
        place = len(message.first)
        while place < message.size:
            stop = min(place + PIECE, message.size)
            target, headers = f"/v1/party/messages/{stage}/{role}", {"Range": f"bytes={place}-{stop - 1}"}
            answer = await self.request("GET", target, headers=headers, patience_s=patience_s)
            told = answer.headers.get(SEQUENCE_HEADER), answer.headers.get("ETag", "").strip('"')
            if told != (str(message.sequence), message.sealed) or len(answer.content) != stop - place:
                raise RemoteError(
                    f"Message {message.sequence} from {role} was replaced while it was read.",
                    hint="Read it again; if it happens again, end the session.",
                    code="message_differs",
                )
            yield answer.content
            place = stop

    async def acknowledge(
        self, stage: str, role: str, sequence: int, *, patience_s: float | None = None
    ) -> Acknowledged:
        """Take a message out of the mailbox."""
        target = f"/v1/party/messages/{stage}/{role}/{sequence}/acknowledge"
        return read_message(Acknowledged, parsed(await self.request("POST", target, patience_s=patience_s)))


def _deadline(patience_s: float | None) -> float:
    return math.inf if patience_s is None else asyncio.get_running_loop().time() + patience_s


def _read_slice(body: bytes | Path, offset: int, length: int) -> bytes:
    if isinstance(body, bytes):
        return body[offset : offset + length]
    with body.open("rb") as file:
        file.seek(offset, os.SEEK_SET)
        return file.read(length)


def _whole(text: str) -> int | None:
    """A whole number of a header; None for what is none, or more than JSON could carry."""
    return int(text) if re.fullmatch("[0-9]{1,16}", text) and int(text) <= LARGEST_INTEGER else None
