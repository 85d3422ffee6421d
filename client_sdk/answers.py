"""The bodies of a coordinator's answers, decoded piece by piece: never more of them in memory than the reader takes."""

from collections.abc import AsyncIterator
from typing import Final

import zstandard

from coterie.client_sdk.lean_httpx import httpx
from coterie.errors import RemoteError

ACCEPTED: Final = "zstd"
SLICE: Final = 64
"""Compressed bytes that are decoded at a time. Four of them may stand for 128 KiB, so these for 2 MiB."""
WINDOW: Final = 1 << 27


async def pieces(response: httpx.Response) -> AsyncIterator[bytes]:
    """The decoded body of a response that is read as a stream. Raises RemoteError (``answer_encoding``) for an encoding
    that was not asked for, or a body that is none of it; httpx.TransportError where the connection breaks.
    """
    if response.is_stream_consumed:
        # A transport within this process may hand over the whole body, decoded.
        yield response.content
        return
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding == "identity":
        async for piece in response.aiter_raw():
            yield piece
        return
    if encoding != ACCEPTED:
        raise _unreadable(response, f"in the encoding {encoding[:20]!r}, which was not requested")
    decoder = zstandard.ZstdDecompressor(max_window_size=WINDOW).decompressobj()
    async for piece in response.aiter_raw():
        for start in range(0, len(piece), SLICE):
            try:
                decoded = decoder.decompress(piece[start : start + SLICE])
            except zstandard.ZstdError as error:
                raise _unreadable(response, "with a body that is not zstd, although its header says so") from error
            if decoded:
                yield decoded
            if decoder.eof:
                return
    raise _unreadable(response, "with a compressed body that ends too soon")


async def whole(response: httpx.Response, limit: int) -> bytes:
    """All of a body. Raises RemoteError (``answer_too_large``) as soon as it has more bytes than the limit, and what
    `pieces` raises.
    """
    body = bytearray()
    async for piece in pieces(response):
        body += piece
        if len(body) > limit:
            raise RemoteError(
                f"{response.request.url} answered with more than {limit} bytes.",
                hint="Check that the URL is that of a coterie coordinator.",
                code="answer_too_large",
            )
    return bytes(body)


def _unreadable(response: httpx.Response, what: str) -> RemoteError:
    return RemoteError(
        f"{response.request.url} answered {what}.",
        hint="Check that the URL is that of a coterie coordinator.",
        code="answer_encoding",
    )
