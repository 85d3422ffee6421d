"""The HTTP seam of the SDK: one client per coordinator, problem documents turned into errors.

Everything above this module talks to `Link`. Tests give it a transport of their own (`httpx.ASGITransport` over the
real application, or `httpx.MockTransport`).
"""

import json
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from coterie.client_sdk.answers import ACCEPTED, whole
from coterie.client_sdk.lean_httpx import httpx
from coterie.errors import ConfigurationError, RemoteError, Unreachable
from coterie.protocol.canonical import canonical_json
from coterie.protocol.device import NONCE_HEADER as NONCE
from coterie.protocol.http_signatures import authority_of

JSON: Final = "application/json"
LONGEST_PROBLEM: Final = 64 << 10
PROBLEM_BYTES: Final = 1 << 20
ANSWER_BYTES: Final = 64 << 20
"""Of an answer in JSON: a roster of ten thousand clients has a tenth of it."""
PROXY_HINT: Final = "Check the proxy (HTTPS_PROXY), or name this coordinator in NO_PROXY to go without it."
CLOCK_HINT: Final = "Check this machine's clock first (`coterie doctor`), then until when the certificate is valid."
UNREACHABLE_HINT: Final = "Check that it runs, that the address is right, and that this machine may reach it."
UNTRUSTED_HINT: Final = (
    "This machine does not trust the coordinator's certificate: check the address, or give the PEM file of the "
    "authority that signed it (ca=, --ca)."
)
# What TLS says, and what to do about it; the first that fits.
_HINTS: Final[Mapping[str, str]] = {
    "certificate has expired": CLOCK_HINT,
    "certificate is not yet valid": CLOCK_HINT,
    "CERTIFICATE_VERIFY_FAILED": UNTRUSTED_HINT,
}


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Seconds without progress before a request counts as failed.

    The total duration is never limited: slow links move bytes too.
    """

    connect_s: float = 10.0
    idle_s: float = 60.0


@dataclass(frozen=True)
class HttpResponse:
    """A whole answer.

    url: what was asked.
    content: its decoded body.
    """

    url: str
    status_code: int
    headers: Mapping[str, str]
    content: bytes = field(repr=False)


class Link:
    """Requests to one coordinator.

    url: ``http(s)://host[:port][/prefix]``.
    headers: sent with every request (the researcher's bearer token).
    ca: a PEM file of the authority that signed the coordinator's certificate, for one that the system does not know.
    Raises ConfigurationError for a URL of another form or an unreadable ``ca``.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        ca: str | Path | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        timeouts: Timeouts = Timeouts(),
    ) -> None:
        self.url = _normalised_url(url)
        secure = self.url.startswith("https://")
        self._client = httpx.AsyncClient(
            base_url=self.url,
            headers={"User-Agent": "coterie", "Accept-Encoding": ACCEPTED, **(headers or {})},
            # Loading the system's authorities costs tens of milliseconds that a plain-text loopback connection need not
            # pay.
            verify=_context(ca) if secure else False,
            transport=transport,
            timeout=httpx.Timeout(timeouts.idle_s, connect=timeouts.connect_s),
            trust_env=secure,
        )
        self.authority = authority_of(self._client.base_url.netloc.decode("ascii"), self._client.base_url.scheme)
        """Host and port as requests name them and signatures cover them."""
        self.prefix = self._client.base_url.raw_path.decode("ascii").rstrip("/")
        """What stands before the target in the path of every request."""
        self.bytes_up = 0
        self.bytes_down = 0

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def request(
        self,
        method: str,
        target: str,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        accept: tuple[int, ...] = (),
        limit: int = ANSWER_BYTES,
    ) -> HttpResponse:
        """One request, the whole answer in memory.

        target: path and query as they are to be sent.
        limit: of the answer's bytes, decoded.
        Returns answers of the 2xx family and those of ``accept``.
        Raises RemoteError with the problem's code, message and hint for others, and (``answer_too_large``,
        ``answer_encoding``) for an answer that is too long or cannot be read; Unreachable when no answer came.
        """
        try:
            sent = self._client.stream(method, target, content=body or None, headers=dict(headers or {}))
            async with sent as response:
                good = response.is_success or response.status_code in accept
                content = b"" if method == "HEAD" else await whole(response, limit if good else PROBLEM_BYTES)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        self.bytes_up += len(body)
        self.bytes_down += len(content)
        if good:
            return HttpResponse(str(response.request.url), response.status_code, response.headers, content)
        raise problem(response.status_code, content, response.headers)

    async def json(
        self, method: str, target: str, message: object = None, *, headers: Mapping[str, str] | None = None
    ) -> Any:
        """A request whose body (when ``message`` is not None) and answer are JSON. Raises what `request` raises."""
        body = b"" if message is None else canonical_json(message)
        content = {"Content-Type": JSON} if body else {}
        response = await self.request(method, target, body=body, headers={**content, **(headers or {})})
        return parsed(response)

    @asynccontextmanager
    async def stream(
        self, method: str, target: str, *, headers: Mapping[str, str] | None = None, patient: bool = False
    ) -> AsyncGenerator[httpx.Response]:
        """A request whose answer is read piece by piece; 2xx only.

        patient: the other side may be silent for as long as it likes.

        Raises what `request` raises, also for a connection that breaks while the answer is read.
        """
        timeout = httpx.Timeout(60.0, read=None) if patient else httpx.USE_CLIENT_DEFAULT
        try:
            async with self._client.stream(method, target, headers=dict(headers or {}), timeout=timeout) as response:
                if not response.is_success:
                    raise problem(response.status_code, await whole(response, PROBLEM_BYTES), response.headers)
                yield response
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx.TransportError) -> Unreachable:
        what = str(error).strip() or type(error).__name__
        proxy = _proxy(self.url)
        through = "" if proxy is None else f" through the proxy {proxy}"
        reasons = (hint for text, hint in _HINTS.items() if text in what)
        return Unreachable(
            f"The coordinator at {self.url} did not answer{through}: {what.rstrip('.')}.",
            hint=next(reasons, UNREACHABLE_HINT if proxy is None else PROXY_HINT),
            url=self.url,
        )


def _proxy(url: str) -> str | None:
    """The proxy that the environment names for a coordinator, without its password; None where there is none."""
    parts = urlsplit(url)
    found = getproxies().get("https")
    if parts.scheme != "https" or not found or proxy_bypass(parts.netloc):
        return None
    return found.rpartition("@")[2] if "@" in found else found


def parsed(answer: HttpResponse) -> Any:
    """The answer's JSON value. Raises RemoteError when it is none: something other than a coordinator answered."""
    try:
        return json.loads(answer.content)
    except (ValueError, RecursionError) as error:
        raise RemoteError(
            f"{answer.url} answered {answer.status_code} without JSON.",
            hint="Check that the URL is that of a coterie coordinator.",
            code="not_a_coordinator",
        ) from error


def problem(status: int, content: bytes, headers: Mapping[str, str]) -> RemoteError:
    """The error for an answer that is not a success: RFC 9457 members where there are any, else the status alone.

    ``error.reason`` is the problem's code; ``error.details`` holds ``http_status``, ``retry_after_s`` (0.0 when not
    given), ``next_nonce`` and the problem's other members.
    """
    document: dict[str, Any] = {}
    try:
        value: object = json.loads(content[:LONGEST_PROBLEM])
        document = cast(dict[str, Any], value) if isinstance(value, dict) else {}
    except ValueError:
        pass
    known = ("type", "title", "status", "detail", "instance", "code", "hint", "doc")
    message = str(
        document.get("detail") or document.get("title") or f"The coordinator answered with HTTP status {status}."
    )
    rest = {
        name: member
        for name, member in document.items()
        if name not in known and name not in ("http_status", "retry_after_s", "next_nonce", "message")
    }
    return RemoteError(
        message,
        hint=document.get("hint") or (None if document else "Check that the URL is that of a coterie coordinator."),
        code=str(document.get("code") or f"http_{status}"),
        http_status=status,
        retry_after_s=_seconds(headers.get("Retry-After", "")),
        next_nonce=headers.get(NONCE),
        **{str(name): member for name, member in rest.items()},
    )


def is_transient(error: RemoteError) -> bool:
    """Whether the same request may succeed later: no answer, overload, or a failure on the other side."""
    status = error.details.get("http_status")
    return isinstance(error, Unreachable) or status in (408, 425, 429) or (isinstance(status, int) and status >= 500)


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() else 0.0


def _normalised_url(url: str) -> str:
    try:
        parts = httpx.URL(url.strip())
    except httpx.InvalidURL:
        parts = httpx.URL()
    if parts.scheme not in ("http", "https") or not parts.host:
        raise ConfigurationError(
            f"{url!r} is not the URL of a coordinator.",
            hint="Write it like http://127.0.0.1:8765 or https://coterie.example.org.",
        )
    return str(parts).rstrip("/")


def _context(ca: str | Path | None) -> ssl.SSLContext:
    if ca is None:
        return httpx.create_ssl_context()
    try:
        return ssl.create_default_context(cafile=str(ca))
    except OSError as error:
        raise ConfigurationError(
            f"The certificate file {ca} cannot be used: {error}.",
            hint="Give a PEM file of the coordinator's certificate authority.",
        ) from error
