"""Signed device requests: HTTP Message Signatures (RFC 9421) with Ed25519 and Content-Digest (RFC 9530).

A device's request carries three fields::

    Content-Digest: sha-256=:…:
    Signature-Input: device=("@method" "@authority" "@path" "@query" "content-digest");keyid="dev_…";nonce="…";alg="ed25519";tag="coterie-device"
    Signature: device=:…:

The signature covers `COMPONENTS`, and each of `FIELDS` that the request carries. Their order and that of the parameters
are the signer's; the label is his too, but there is one. No clock is trusted: the coordinator's nonce says when a
request was made, so ``created`` may stand there and is not read, and ``expires`` is refused.
"""  # noqa: E501

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import http_sf

from coterie.errors import RequestRefused, Unauthenticated
from coterie.protocol.signing import SigningKey, verify_bytes

CONTENT_DIGEST: Final = "Content-Digest"
SIGNATURE_INPUT: Final = "Signature-Input"
SIGNATURE: Final = "Signature"
COMPONENTS: Final = ("@method", "@authority", "@path", "@query", "content-digest")
"""What every signature covers."""
FIELDS: Final = ("upload-offset", "upload-length", "repr-digest")
"""What a signature covers where the request has it: what says what the body is for."""
SINGLE: Final = ("host", "content-digest", "signature-input", "signature", *FIELDS)
"""Fields that a signed request has once at most: of two lines, two readers might believe different ones."""
LABEL: Final = "device"
TAG: Final = "coterie-device"
ALGORITHM: Final = "ed25519"
_REQUIRED: Final = ("keyid", "nonce", "alg", "tag")
_HINT: Final = "See docs/device-protocol.md#signatures."
_DIGEST: Final = re.compile(r"sha-256=:([A-Za-z0-9+/]{43}=):")
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


@dataclass(frozen=True)
class RequestHead:
    """What of a request is signed.

    method: in capitals.
    authority: as `authority_of` gives it.
    path: absolute, percent-encoded as sent.
    query: without the question mark, as sent; empty for none.
    fields: by lower-case name, at least ``content-digest``.
    """

    method: str
    authority: str
    path: str
    query: str
    fields: Mapping[str, str]

    @property
    def components(self) -> tuple[str, ...]:
        """What a signature of this request covers, no more and no less."""
        return (*COMPONENTS, *(name for name in FIELDS if name in self.fields))

    def values(self) -> dict[str, str]:
        """The value of each component (RFC 9421 section 2)."""
        derived = {
            "@method": self.method,
            "@authority": self.authority,
            "@path": self.path,
            "@query": f"?{self.query}",
        }
        return derived | {name: self.fields[name].strip() for name in self.components if not name.startswith("@")}


@dataclass(frozen=True)
class RequestSignature:
    """A signature as it came.

    covered: names of components in the signer's order.
    parameters: by name.
    """

    covered: tuple[str, ...]
    parameters: Mapping[str, Any]
    signature: bytes

    @property
    def device(self) -> str:
        """Who signed, by his own word: the parameter ``keyid``."""
        return self.parameters["keyid"]

    @property
    def nonce(self) -> str:
        """The coordinator's nonce that this request uses up."""
        return self.parameters["nonce"]

    def verify(self, public: str, head: RequestHead) -> None:
        """Return only if the key `public` signed this request.

        Raises errors.Unauthenticated: ``signature_coverage`` where it covers something else than it must,
        ``signature_invalid`` where it is that of another key or request.
        """
        missing = [name for name in head.components if name not in self.covered]
        more = [name for name in self.covered if name not in head.components]
        if missing or more:
            what = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has {', '.join(more)}"] * bool(more)
            raise Unauthenticated(
                f"The signature must cover {', '.join(head.components)}; it {' and '.join(what)}.",
                hint=_HINT,
                code="signature_coverage",
            )
        values = head.values()
        lines = [(name, values[name]) for name in self.covered]
        try:
            verify_bytes(public, signature_base(lines, self.parameters), self.signature)
        except Unauthenticated:
            raise Unauthenticated(
                f"The signature is not that of key {public[:16]}… over {head.method} {head.path} at {head.authority}.",
                hint="Sign the authority, path and query exactly as they are sent. If a proxy changes the Host header "
                "or the path, the coordinator needs --public-url.",
                code="signature_invalid",
            ) from None


def signature_base(components: Iterable[tuple[str, str]], parameters: Mapping[str, Any]) -> bytes:
    """The bytes that are signed (RFC 9421 section 2.5).

    components: name and value, in order.

    Raises errors.Unauthenticated (``signature_malformed``) where a value is not one line of ASCII.
    """
    lines = list(components)
    for name, value in lines:
        if not value.isascii() or not value.isprintable():
            raise malformed(f"the value of {name} is not one line of printable ASCII")
    inner = _inner_list([name for name, _ in lines], parameters)
    said = [f'"{name}": {value}' for name, value in lines]
    return "\n".join((*said, f'"@signature-params": {inner}')).encode("ascii")


def sign_request(key: SigningKey, head: RequestHead, *, device: str, nonce: str) -> dict[str, str]:
    """The fields that sign a request, Content-Digest among them, by name.

    device: the id of the one whose key it is.
    """
    values = head.values()
    parameters = {"keyid": device, "nonce": nonce, "alg": ALGORITHM, "tag": TAG}
    signature = key.sign_bytes(signature_base([(name, values[name]) for name in head.components], parameters))
    return {
        CONTENT_DIGEST: values["content-digest"],
        SIGNATURE_INPUT: f"{LABEL}={_inner_list(head.components, parameters)}",
        SIGNATURE: http_sf.ser({LABEL: signature}),
    }


def parse_signature(fields: Mapping[str, str]) -> RequestSignature:
    """The one signature of a request.

    fields: ``signature-input`` and ``signature``, by lower-case name.

    Raises errors.Unauthenticated (``signature_malformed``) for anything outside of this profile.
    """
    inputs = _dictionary(SIGNATURE_INPUT, fields)
    signatures = _dictionary(SIGNATURE, fields)
    if len(inputs) != 1 or set(inputs) != set(signatures):
        raise malformed(
            f"{SIGNATURE_INPUT} and {SIGNATURE} must have one label, the same; "
            f"they have {', '.join(inputs) or 'none'} and {', '.join(signatures) or 'none'}"
        )
    (label,) = inputs
    (items, parameters), (signature, _) = inputs[label], signatures[label]
    if not isinstance(items, list) or not isinstance(signature, bytes):
        raise malformed(f"{SIGNATURE_INPUT} must be a list of components, and {SIGNATURE} a byte sequence")
    covered, named = cast(list[Any], items), cast(dict[str, Any], parameters)
    names = [item[0] for item in covered if isinstance(item[0], str) and not item[1]]
    if len(names) < len(covered) or len(set(names)) < len(names):
        raise malformed("each component must be a string without parameters, and appear once")
    _check_parameters(named)
    return RequestSignature(tuple(names), named, signature)


def content_digest(sha256: str) -> str:
    """The value of Content-Digest for a body of this SHA-256 (64 hex digits)."""
    return f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode('ascii')}:"


def check_content_digest(field: str, sha256: str) -> None:
    """Return only if the field promised a body of this SHA-256 (64 hex digits).

    Raises errors.RequestRefused: ``content_digest_malformed``, ``content_digest_mismatch``.
    """
    if promised_digest(field) != sha256:
        raise RequestRefused(
            f"The body does not match its {CONTENT_DIGEST}: it is not what was signed.",
            hint="Send the request again.",
            code="content_digest_mismatch",
        )


def promised_digest(field: str) -> str:
    """The SHA-256 in the field, as 64 hex digits. Raises errors.RequestRefused (``content_digest_malformed``)."""
    match = _DIGEST.fullmatch(field.strip())
    try:
        if match is not None:
            return base64.b64decode(match[1], validate=True).hex()
    except binascii.Error:
        pass
    raise RequestRefused(
        f"{CONTENT_DIGEST} must be sha-256=:<base64 of 32 bytes>: and nothing else.",
        hint="A request without a body has the digest of the empty string.",
        code="content_digest_malformed",
    )


def authority_of(host: str, scheme: str) -> str:
    """A host and port as a signature covers them (RFC 9421 section 2.2.3): in lower case, without a default port."""
    return host.strip().lower().removesuffix(_DEFAULT_PORTS.get(scheme, ""))


def malformed(why: str) -> Unauthenticated:
    """The refusal of a signature outside of this profile."""
    return Unauthenticated(f"The signature of the request is malformed: {why}.", hint=_HINT, code="signature_malformed")


def _inner_list(names: Iterable[str], parameters: Mapping[str, Any]) -> str:
    items: list[Any] = [(name, {}) for name in names]
    return http_sf.ser([(items, dict(parameters))])


def _dictionary(name: str, fields: Mapping[str, str]) -> dict[str, Any]:
    def refuse_duplicate(key: str, _where: str) -> None:
        raise malformed(f"{name} has {key} twice")

    if name.lower() not in fields:
        raise malformed(f"it has no {name}")
    try:
        found = http_sf.parse(
            fields[name.lower()].encode("ascii"), tltype="dictionary", on_duplicate_key=refuse_duplicate
        )
    except (http_sf.StructuredFieldError, UnicodeEncodeError) as error:
        raise malformed(f"{name} is not a dictionary of RFC 9651 ({error})") from None
    return cast(dict[str, Any], found)


def _check_parameters(parameters: Mapping[str, Any]) -> None:
    unknown = [name for name in parameters if name not in (*_REQUIRED, "created")]
    missing = [name for name in _REQUIRED if type(parameters.get(name)) is not str]
    if unknown or missing:
        raise malformed(
            f"its parameters are the strings {', '.join(_REQUIRED)}, and optionally created"
            + (f"; {', '.join(missing)} is missing" if missing else f"; {', '.join(unknown)} is not known")
        )
    for name, value in (("alg", ALGORITHM), ("tag", TAG)):
        if parameters[name] != value:
            raise malformed(f"{name} must be {value!r}, not {parameters[name]!r}")
    if type(parameters.get("created", 0)) is not int:
        raise malformed("created must be a whole number")
