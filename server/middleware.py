"""What every request passes: a trace id, bounds on its body's size and pauses, and counters."""

import asyncio
import secrets
import time

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coterie.server.bell import counting_waits

BODY_LIMIT = 1024 * 1024
BODILESS = ("GET", "HEAD")
"""Methods of which no route reads a body."""
MOST_DIGITS = 20
"""Of a length that is read as a number."""
LEFT = 499
"""How a request is counted whose client left before it was whole."""
STREAMED = (("PUT", "/v1/blobs/"), ("PATCH", "/v1/device/tasks/"), ("PATCH", "/v1/party/messages/"))


class Envelope:
    """Pure ASGI middleware: names the request (``Coterie-Trace``), bounds bodies that are read whole, gives up a body
    that pauses for ``stall_s`` seconds or falls that far behind ``rate`` bytes a second, counts, and times answers
    apart from waits for news.
    """

    def __init__(self, app: ASGIApp, stall_s: float, rate: float) -> None:
        self._app = app
        self._stall_s = stall_s
        self._rate = rate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["coterie.trace"] = trace = secrets.token_hex(8)
        bounded = not any(scope["method"] == method and scope["path"].startswith(prefix) for method, prefix in STREAMED)
        declared = _content_length(scope) if bounded and scope["method"] not in BODILESS else 0
        received = 0
        whole = False
        status = 500
        started = time.perf_counter()

        async def limited() -> Message:
            nonlocal received, whole
            if declared > BODY_LIMIT:
                raise _too_large()
            try:
                # After the body only the disconnection is left, for which a stream waits as long as it likes.
                left = started + self._stall_s + received / self._rate - time.perf_counter()
                async with asyncio.timeout(None if whole else min(self._stall_s, left)):
                    message = await receive()
            except TimeoutError:
                why = f"Request body timed out: nothing for {self._stall_s:g} s, or less than {self._rate:g} bytes/s."
                raise HTTPException(408, why) from None
            if message["type"] == "http.request":
                whole = not message.get("more_body", False)
                received += len(message.get("body", b""))
                if bounded and received > BODY_LIMIT:
                    raise _too_large()
            return message

        async def traced(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [(b"coterie-trace", trace.encode()), *scope.get("coterie.headers", ())]
                message = {**message, "headers": [*message.get("headers", ()), *headers]}
            await send(message)

        with counting_waits() as waited:
            try:
                await self._app(scope, limited, traced)
            except ClientDisconnect:
                # Nobody is there to be answered, and nothing is wrong here.
                status = LEFT
            finally:
                route = getattr(scope.get("route"), "path", "unmatched")
                scope["app"].state.coordinator.metrics.observe(
                    scope["method"], route, status, time.perf_counter() - started, waited.seconds
                )


def _content_length(scope: Scope) -> int:
    """How many bytes the request says that its body has; 0 where it does not say."""
    value = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return int(value) if value.isdigit() and len(value) <= MOST_DIGITS else BODY_LIMIT + 1 if value else 0


def _too_large() -> HTTPException:
    # An HTTPException passes through the framework's parsing of bodies; any other exception is swallowed there.
    return HTTPException(413, f"The body is larger than the {BODY_LIMIT} bytes allowed here.")
