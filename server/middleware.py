"""What every request passes: a trace id, a cap on its body, and counters."""

import secrets
import time

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_LIMIT = 1024 * 1024
STREAMED = (("PUT", "/v1/blobs/"), ("PATCH", "/v1/device/tasks/"))


class Envelope:
    """Pure ASGI middleware: names the request (``Coterie-Trace``), bounds bodies that are read whole, counts and
    times.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["coterie.trace"] = trace = secrets.token_hex(8)
        bounded = not any(scope["method"] == method and scope["path"].startswith(prefix) for method, prefix in STREAMED)
        received = 0
        status = 500
        started = time.perf_counter()

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if bounded and received > BODY_LIMIT:
                    # An HTTPException passes through the framework's parsing of bodies; any other exception is
                    # swallowed there.
                    raise HTTPException(413, f"The body is larger than the {BODY_LIMIT} bytes allowed here.")
            return message

        async def traced(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [(b"coterie-trace", trace.encode()), *scope.get("coterie.headers", ())]
                message = {**message, "headers": [*message.get("headers", ()), *headers]}
            await send(message)

        try:
            await self._app(scope, limited, traced)
        finally:
            route = getattr(scope.get("route"), "path", "unmatched")
            scope["app"].state.coordinator.metrics.observe(
                scope["method"], route, status, time.perf_counter() - started
            )
