"""Signed requests, from the committed vectors alone and over made-up ones: what is covered cannot change."""

import base64
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import CoterieError, Unauthenticated
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.device import Abort, Progress
from coterie.protocol.http_signatures import (
    SINGLE,
    RequestHead,
    authority_of,
    check_content_digest,
    content_digest,
    malformed,
    parse_signature,
    promised_digest,
    sign_request,
    signature_base,
)
from coterie.protocol.signing import SigningKey, verify_bytes

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "protocol" / "vectors" / "http_signatures.json").read_text("ascii")
)
KEY = SigningKey.from_seed(bytes.fromhex(VECTORS["seed"]))


def named(key: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in VECTORS[key]]


def head_of(case: Any) -> RequestHead:
    return RequestHead(case["method"], case["authority"], case["path"], case["query"], case["fields"])


def verify(case: Any) -> None:
    """What a coordinator does with a request, in its order."""
    fields = {name: value for name, value in case["fields"].items() if name in SINGLE}
    if "content-digest" not in fields:
        raise malformed("it has no Content-Digest")
    promised_digest(fields["content-digest"])
    parse_signature(fields).verify(case.get("public", VECTORS["public"]), head_of(case))
    check_content_digest(fields["content-digest"], sha256_hex(bytes.fromhex(case["body"])))


def test_the_example_of_rfc_9421_appendix_b_2_6_has_its_signature() -> None:
    known = VECTORS["known"]
    base = signature_base([(name, value) for name, value in known["components"]], known["parameters"])
    assert base.decode() == known["base"]
    assert base64.b64encode(KEY.sign_bytes(base)).decode() == known["signature"]
    verify_bytes(VECTORS["public"], base, base64.b64decode(known["signature"]))


@pytest.mark.parametrize("case", named("requests"))
def test_signing_gives_the_fields_of_the_vectors(case: Any) -> None:
    signed = sign_request(KEY, head_of(case), device=VECTORS["device"], nonce=VECTORS["nonce"])
    assert {name.lower(): value for name, value in signed.items()}.items() <= case["fields"].items()
    signature = parse_signature(case["fields"])
    assert (signature.device, signature.nonce) == (VECTORS["device"], VECTORS["nonce"])
    verify_bytes(VECTORS["public"], case["base"].encode(), signature.signature)
    verify(case)


def test_every_step_that_the_page_gives_these_vectors_has_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "device-protocol.md").read_text("utf-8")
    rows = re.findall(r"^\|[^|]*\| `([A-Z]+) ([^`]+)`[^|]*\| `http_signatures\.json` \|$", page, re.M)
    assert len(rows) == 4
    for method, path in rows:
        pattern = re.sub(r"\{[a-z]+\}", "[^/]+", path)
        assert [
            case for case in VECTORS["requests"] if case["method"] == method and re.fullmatch(pattern, case["path"])
        ]


@pytest.mark.parametrize(("name", "kind"), [("progress", Progress), ("an abort", Abort)])
def test_a_body_of_the_vectors_is_the_message_of_its_step(name: str, kind: type[Progress | Abort]) -> None:
    (case,) = (case for case in VECTORS["requests"] if case["name"] == name)
    assert kind.model_validate_json(bytes.fromhex(case["body"])).phase == "training"


@pytest.mark.parametrize("case", named("accepted"))
def test_order_label_and_time_are_the_signers(case: Any) -> None:
    verify(case)


@pytest.mark.parametrize("case", named("refused"))
def test_a_request_that_is_not_as_it_was_signed_is_refused(case: Any) -> None:
    with pytest.raises(CoterieError) as caught:
        verify(case)
    assert caught.value.reason == case["code"]


def test_a_refusal_names_what_the_signature_lacks() -> None:
    (case,) = (case for case in VECTORS["refused"] if case["name"] == "the authority not covered")
    with pytest.raises(Unauthenticated, match="it lacks @authority"):
        verify(case)


@pytest.mark.parametrize(
    ("host", "scheme", "expected"),
    [
        ("Example.ORG", "https", "example.org"),
        ("example.org:443", "https", "example.org"),
        ("example.org:80", "http", "example.org"),
        ("example.org:443", "http", "example.org:443"),
        ("[::1]:8765", "http", "[::1]:8765"),
    ],
)
def test_an_authority_is_in_lower_case_without_a_default_port(host: str, scheme: str, expected: str) -> None:
    assert authority_of(host, scheme) == expected


TEXTS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters='?#"\\'), max_size=20)


@given(
    st.sampled_from(("GET", "POST", "PATCH", "HEAD")),
    TEXTS,
    TEXTS,
    TEXTS,
    st.binary(max_size=20),
    st.sampled_from(("method", "authority", "path", "query", "fields")),
)
def test_whatever_changes_after_signing_is_refused(
    method: str, authority: str, path: str, query: str, body: bytes, part: str
) -> None:
    fields = {"content-digest": content_digest(sha256_hex(body))}
    head = RequestHead(method, authority, f"/{path}", query, fields)
    signed = {name.lower(): value for name, value in sign_request(KEY, head, device="dev_1", nonce="n").items()}
    signature = parse_signature(signed)
    signature.verify(KEY.public, head)
    other = {"content-digest": content_digest(sha256_hex(body + b"!"))} if part == "fields" else None
    changed = replace(head, **{part: other or getattr(head, part) + "x"})
    with pytest.raises(Unauthenticated):
        signature.verify(KEY.public, changed)


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_text_makes_the_reader_fail_otherwise(given_input: str, given_signature: str) -> None:
    with pytest.raises(Unauthenticated):
        parse_signature({"signature-input": given_input, "signature": given_signature})


@pytest.mark.parametrize("bad", ["a\nb", "é", "a\x00"])
def test_a_value_that_could_hide_a_line_is_refused(bad: str) -> None:
    head = RequestHead("POST", "a", f"/{bad}", "", {"content-digest": content_digest(sha256_hex(b""))})
    with pytest.raises(Unauthenticated) as caught:
        sign_request(KEY, head, device="dev_1", nonce="n")
    assert caught.value.reason == "signature_malformed"
