"""What of a request its device signed, as this coordinator sees it behind whatever proxies there are."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from fastapi import Request

from coterie.errors import ConfigurationError, Unauthenticated
from coterie.protocol.http_signatures import (
    SINGLE,
    RequestHead,
    RequestSignature,
    authority_of,
    malformed,
    promised_digest,
)

_SCHEMES: Final = ("http", "https")
_FORWARDED: Final = ("host", "x-forwarded-host")
"""Where a name stands that a device may have signed instead of the one wanted, for an answer that says so."""


def signed_fields(request: Request) -> dict[str, str]:
    """The fields that a signature is about, by lower-case name.

    Raises errors.Unauthenticated (``signature_malformed``) for one that is there twice or whose digest is absent, and
    errors.RequestRefused (``content_digest_malformed``).
    """
    fields: dict[str, str] = {}
    for name in SINGLE:
        values = request.headers.getlist(name)
        if len(values) > 1:
            raise malformed(f"the header {name} appears {len(values)} times")
        if values:
            fields[name] = values[0]
    if "signature-input" not in fields and "signature" not in fields:
        raise Unauthenticated(
            "This route needs a device's signature.",
            hint="Sign the request: docs/device-protocol.md#signatures.",
        )
    if "content-digest" not in fields:
        raise malformed("it has no Content-Digest, which requests without a body have as well")
    promised_digest(fields["content-digest"])
    return fields


def verify_head(
    request: Request, fields: Mapping[str, str], signature: RequestSignature, public: str, public_url: str | None
) -> None:
    """Return only if the device `public` signed this request for this coordinator.

    public_url: where devices reach it, if a proxy changes the Host header or the path; None to take both as they came.
    Raises errors.Unauthenticated: ``signature_coverage``, ``signature_invalid``; ``authority_mismatch`` where the
    signature is right but for another name of this coordinator.
    """
    wanted = _head(request, fields, public_url, fields.get("host", ""))
    try:
        signature.verify(public, wanted)
    except Unauthenticated as error:
        other = error.reason == "signature_invalid" and _signed_for(request, fields, signature, public)
        if not other:
            raise
        raise Unauthenticated(
            f"The device signed for {other}, but this coordinator is {wanted.authority}.",
            hint="Give devices the address under which the coordinator knows itself, or start it with the address that "
            "devices use: --public-url.",
            code="authority_mismatch",
        ) from None


def _head(request: Request, fields: Mapping[str, str], public_url: str | None, host: str) -> RequestHead:
    path = request.scope["raw_path"].decode("ascii")
    authority = authority_of(host, request.scope["scheme"])
    if public_url is not None:
        public = urlsplit(public_url)
        authority, path = authority_of(public.netloc, public.scheme), public.path.rstrip("/") + path
    return RequestHead(request.method, authority, path, request.scope["query_string"].decode("ascii"), fields)


def _signed_for(request: Request, fields: Mapping[str, str], signature: RequestSignature, public: str) -> str | None:
    """Under which other name the request was signed, where one of its headers tells."""
    for name in _FORWARDED:
        host = request.headers.get(name, "")
        try:
            signature.verify(public, _head(request, fields, None, host))
        except Unauthenticated:
            continue
        return authority_of(host, request.scope["scheme"])
    return None


def check_public_url(url: str) -> None:
    """Return only if this can be where devices reach a coordinator. Raises errors.ConfigurationError."""
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or not parts.hostname or parts.query or parts.fragment or "@" in parts.netloc:
        raise ConfigurationError(
            f"{url!r} is not the public URL of a coordinator.",
            hint="Write it like https://coterie.example.org or https://example.org/coterie.",
            code="public_url_invalid",
        )
