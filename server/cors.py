"""Cross-origin requests (the Fetch standard's CORS protocol): pages of listed origins may use the API, and no others.

Nothing here uses cookies: a page brings its token or its device's signature itself. So credentials in CORS's sense are
never allowed, and ``*`` is no origin.
"""

from typing import Final
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from coterie.errors import DOCUMENTATION, ConfigurationError
from coterie.server.problems import TITLES, ProblemResponse

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
ASKED: Final = (
    "A-IM", "Authorization", "Content-Digest", "Content-Type", "Idempotency-Key", "If-Match", "If-None-Match",
    "Last-Event-ID", "Range", "Repr-Digest", "Signature", "Signature-Input", "Upload-Length", "Upload-Offset",
)  # fmt: skip
"""Headers that a page may send."""
TOLD: Final = (
    "Content-Range", "Coterie-Nonce", "Coterie-Problem", "Coterie-Trace", "Delta-Base", "ETag", "IM", "Location",
    "Retry-After", "Upload-Length", "Upload-Offset",
)  # fmt: skip
"""Headers that a page may read."""
MAX_AGE_S: Final = 600


class _Cors(CORSMiddleware):
    """Starlette's, whose refusals are problem documents."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """The answer to a preflight."""
        answer = super().preflight_response(request_headers)
        if answer.status_code < 400:
            return answer
        code, why = "cors_refused", bytes(answer.body).decode().removeprefix("Disallowed CORS ")
        body = {
            "type": "/problems/cors-refused",
            "title": TITLES[403],
            "status": 403,
            "detail": f"This coordinator takes no cross-origin request with this {why}.",
            "code": code,
            "hint": "Origins are listed with --cors-origins; methods and headers are those of the API.",
            "doc": f"{DOCUMENTATION}#cors-refused",
        }
        return ProblemResponse(body, status_code=403, headers={"Vary": "Origin", "Coterie-Problem": code})


def origins(text: str) -> tuple[str, ...]:
    """The origins that a setting lists, with commas between. Raises errors.ConfigurationError."""
    listed = tuple(part.strip() for part in text.split(",") if part.strip())
    for origin in listed:
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or origin != f"{parts.scheme}://{parts.netloc}" or "@" in parts.netloc:
            raise ConfigurationError(
                f"{origin!r} is not the origin of a page.",
                hint="List origins by name, like https://app.example.org or http://localhost:5173: scheme, host and "
                "port, no path, and never *.",
                code="cors_origin_invalid",
            )
    return listed


def allow(app: Starlette, listed: tuple[str, ...]) -> None:
    """Let pages of these origins use the application; nothing changes without any."""
    if listed:
        app.add_middleware(
            _Cors,
            allow_origins=listed,
            allow_methods=METHODS,
            allow_headers=ASKED,
            expose_headers=TOLD,
            max_age=MAX_AGE_S,
        )
