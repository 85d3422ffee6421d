"""Make protocol/vectors/http_signatures.json: signed requests, and what must be refused."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import http_sf
from pydantic import BaseModel

from coterie.protocol.canonical import canonical_json, sha256_hex
from coterie.protocol.device import Abort, Progress
from coterie.protocol.http_signatures import RequestHead, content_digest, sign_request, signature_base
from coterie.protocol.signing import SigningKey

FOLDER = Path(__file__).parents[2] / "protocol" / "vectors"
Json = dict[str, Any]
# RFC 9421, appendix B.1.4 (test-key-ed25519) and B.2.6.
RFC_SEED = base64.urlsafe_b64decode("n4Ni-HpISpVObnQMW0wOhCKROaIKqKtW_2ZYb2p9KcU=")
RFC_COMPONENTS = [
    ("date", "Tue, 20 Apr 2021 02:07:55 GMT"),
    ("@method", "POST"),
    ("@path", "/foo"),
    ("@authority", "example.com"),
    ("content-type", "application/json"),
    ("content-length", "18"),
]
RFC_PARAMETERS: Json = {"created": 1618884473, "keyid": "test-key-ed25519"}
RFC_SIGNATURE = "wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw=="
KEY = SigningKey.from_seed(RFC_SEED)
DEVICE = "dev_017f22e279b070008000000000000002"
NONCE = "AAABm7vXqgBub25jZS0wMDAwMDAwMWZ2ZzRpbG9uLXNlYWw="
UPDATE = b"update"
TASK = "/v1/device/tasks/task_017f22e279b070008000000000000001"


def _json(message: BaseModel) -> bytes:
    return canonical_json(message.model_dump(mode="json"))


REQUESTS: tuple[tuple[str, str, str, str, str, bytes, Json], ...] = (
    ("a check-in", "POST", "coterie.example.org", "/v1/device/check-in", "", b'{"pending":[]}', {}),
    (
        "no body, a query, a port",
        "GET",
        "127.0.0.1:8765",
        "/v1/device/experiments/exp_017f22e279b070008000000000000003/lineage",
        "after=7&x=%20",
        b"",
        {},
    ),
    (
        "a part of an update, behind a path",
        "PATCH",
        "example.org",
        "/coterie/v1/device/tasks/task_017f22e279b070008000000000000001/update",
        "",
        UPDATE[2:],
        {"upload-offset": "2", "upload-length": "6", "repr-digest": content_digest(sha256_hex(UPDATE))},
    ),
    ("progress", "POST", "coterie.example.org", f"{TASK}/progress", "", _json(Progress(phase="training")), {}),
    (
        "an abort",
        "POST",
        "coterie.example.org",
        f"{TASK}/abort",
        "",
        _json(Abort(phase="training", code="data_empty", detail="No rows are left after the filter.")),
        {},
    ),
    ("a withdrawal", "POST", "coterie.example.org", "/v1/device/withdraw", "", b"", {}),
)


def _request(name: str, method: str, authority: str, path: str, query: str, body: bytes, more: Json) -> Json:
    head = RequestHead(method, authority, path, query, {"content-digest": content_digest(sha256_hex(body)), **more})
    signed = sign_request(KEY, head, device=DEVICE, nonce=NONCE)
    parameters = {"keyid": DEVICE, "nonce": NONCE, "alg": "ed25519", "tag": "coterie-device"}
    values = head.values()
    return {
        "name": name,
        "method": method,
        "authority": authority,
        "path": path,
        "query": query,
        "body": body.hex(),
        "fields": {**more, **{field.lower(): value for field, value in signed.items()}},
        "base": signature_base([(part, values[part]) for part in head.components], parameters).decode("ascii"),
    }


def _signed_over(request: Json, components: list[Any], parameters: Json, label: str = "device") -> Json:
    """The request under a signature over whatever is asked for."""
    head = RequestHead(request["method"], request["authority"], request["path"], request["query"], request["fields"])
    values = {**head.values(), "content-type": "application/json"}
    signature = KEY.sign_bytes(signature_base([(name, values.get(name, "")) for name in components], parameters))
    inputs = http_sf.ser({label: ([(name, {}) for name in components], parameters)})
    fields = {"signature-input": inputs, "signature": http_sf.ser({label: signature})}
    return {**request, "fields": {**request["fields"], **fields}}


def _refused() -> list[Json]:
    check_in, ask, part = (_request(*request) for request in REQUESTS[:3])
    fields = check_in["fields"]
    parameters: Json = {"keyid": DEVICE, "nonce": NONCE, "alg": "ed25519", "tag": "coterie-device"}
    whole = ["@method", "@authority", "@path", "@query", "content-digest"]
    given, signature = fields["signature-input"], fields["signature"]

    def field(name: str, value: str | None, request: Json = check_in) -> Json:
        changed = {**request["fields"], name: value}
        return {**request, "fields": {key: text for key, text in changed.items() if text is not None}}

    def over(components: list[str] = whole, **changes: Any) -> Json:
        asked = {name: value for name, value in {**parameters, **changes}.items() if value is not None}
        return _signed_over(check_in, components, asked)

    cases: list[tuple[str, str, Json]] = [
        ("another method", "signature_invalid", {**check_in, "method": "PUT"}),
        ("another path", "signature_invalid", {**check_in, "path": "/v1/device/withdraw"}),
        ("another query", "signature_invalid", {**ask, "query": "after=8&x=%20"}),
        ("a query decoded", "signature_invalid", {**ask, "query": "after=7&x= "}),
        ("no query any more", "signature_invalid", {**ask, "query": ""}),
        ("another authority", "signature_invalid", {**check_in, "authority": "other.example.org"}),
        ("another port", "signature_invalid", {**ask, "authority": "127.0.0.1:8766"}),
        ("another body", "content_digest_mismatch", {**check_in, "body": b'{"pending":[ ]}'.hex()}),
        ("no body any more", "content_digest_mismatch", {**check_in, "body": ""}),
        ("another digest", "signature_invalid", field("content-digest", content_digest(sha256_hex(b"")))),
        ("another offset", "signature_invalid", field("upload-offset", "0", part)),
        ("an offset taken away", "signature_coverage", field("upload-offset", None, part)),
        ("an offset put in", "signature_coverage", field("upload-offset", "0")),
        ("a digest of another kind", "content_digest_malformed", field("content-digest", "sha-512=:AAAA:")),
        ("no digest", "signature_malformed", field("content-digest", None)),
        ("another nonce", "signature_invalid", field("signature-input", given.replace(NONCE, NONCE.lower()))),
        ("another device", "signature_invalid", field("signature-input", given.replace("0002", "0003"))),
        ("no signature", "signature_malformed", field("signature", None)),
        ("no input", "signature_malformed", field("signature-input", None)),
        ("a signature cut", "signature_invalid", field("signature", "device=:AAAA:")),
        ("a string for a signature", "signature_malformed", field("signature", 'device="AAAA"')),
        ("a signature under another label", "signature_malformed", field("signature", "x" + signature)),
        (
            "a second label",
            "signature_malformed",
            field("signature", f"{signature}, x{signature}", field("signature-input", f"{given}, x{given}")),
        ),
        ("one label twice", "signature_malformed", field("signature-input", f"{given}, {given}")),
        ("no dictionary", "signature_malformed", field("signature-input", "device=(")),
        ("no list of components", "signature_malformed", field("signature-input", 'device="@method"')),
        (
            "a component with a parameter",
            "signature_malformed",
            field("signature-input", given.replace('"@method"', '"@method";req')),
        ),
        ("a component twice", "signature_malformed", field("signature-input", given.replace('("', '("@method" "', 1))),
        ("the method not covered", "signature_coverage", over(whole[1:])),
        ("the authority not covered", "signature_coverage", over(["@method", "@path", "@query", "content-digest"])),
        ("the digest not covered", "signature_coverage", over(whole[:4])),
        ("more covered", "signature_coverage", over([*whole, "content-type"])),
        ("no nonce", "signature_malformed", over(nonce=None)),
        ("no device", "signature_malformed", over(keyid=None)),
        ("no algorithm", "signature_malformed", over(alg=None)),
        ("another algorithm", "signature_malformed", over(alg="hmac-sha256")),
        ("another tag", "signature_malformed", over(tag="web-bot-auth")),
        ("a time to expire", "signature_malformed", over(expires=1618884773)),
        ("an unknown parameter", "signature_malformed", over(scope="all")),
    ]
    refused = [{**request, "name": name, "code": code} for name, code, request in cases]
    for case in refused:
        case.pop("base", None)
    other = SigningKey.from_seed(b"o" * 32).public
    return [*refused, {**check_in, "name": "another key", "code": "signature_invalid", "public": other}]


def http_signatures() -> Json:
    check_in = _request(*REQUESTS[0])
    reordered = ["content-digest", "@query", "@path", "@authority", "@method"]
    created: Json = {
        "created": 1618884473,
        "tag": "coterie-device",
        "alg": "ed25519",
        "nonce": NONCE,
        "keyid": DEVICE,
    }
    other_order = _signed_over(check_in, reordered, created, label="sig1")
    other_order.pop("base")
    return {
        "title": "Requests signed by HTTP Message Signatures with Ed25519 and Content-Digest",
        "provenance": "the key, and `known`: RFC 9421, appendix B.1.4 and B.2.6; the rest made by coterie's reference "
        "implementation (`tests/protocol/make_http_vectors.py`)",
        "how": "`known`: the base of `components` and `parameters` has that signature. `requests`: signing gives these "
        "fields, byte for byte (Ed25519 draws nothing), and `base` is what is signed. `accepted`: other orders that a "
        "coordinator takes as well. `refused`: with `code`; of `public` where there is one, else of the key above",
        "seed": RFC_SEED.hex(),
        "public": KEY.public,
        "device": DEVICE,
        "nonce": NONCE,
        "known": {
            "components": RFC_COMPONENTS,
            "parameters": RFC_PARAMETERS,
            "base": signature_base(RFC_COMPONENTS, RFC_PARAMETERS).decode("ascii"),
            "signature": RFC_SIGNATURE,
        },
        "requests": [_request(*request) for request in REQUESTS],
        "accepted": [{**other_order, "name": "another order, another label, and a time"}],
        "refused": _refused(),
    }


FILES: dict[str, Callable[[], Json]] = {"http_signatures.json": http_signatures}


def rendered() -> dict[str, str]:
    """File name → content, as it is committed."""
    return {name: json.dumps(make(), indent=1, allow_nan=False) + "\n" for name, make in FILES.items()}


if __name__ == "__main__":
    for file_name, content in rendered().items():
        (FOLDER / file_name).write_text(content, encoding="ascii")
