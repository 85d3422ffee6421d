"""This implementation passes protocol/vectors/sessions.json as any other must: from the file alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from coterie import errors
from coterie.privacy.secagg.keys import KeyPair
from coterie.privacy.session import stream
from coterie.privacy.session.agreement import offer, pair_key, read_offer
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.session import KeyOffer, MessageHeader, SessionTerms, fingerprint
from coterie.protocol.signing import SigningKey

FILE: Any = json.loads((Path(__file__).parents[3] / "protocol" / "vectors" / "sessions.json").read_text("ascii"))
TERMS = SessionTerms.model_validate_json(FILE["terms"]["json"])
PAIR = bytes.fromhex(FILE["pair"])


def named(key: str) -> list[Any]:
    return [pytest.param(case, id=case.get("name", str(index))) for index, case in enumerate(FILE[key])]


def sealed(case: Any) -> bytes:
    pattern = bytes.fromhex(FILE["pattern"])
    body = (pattern * (case["size"] // len(pattern) + 1))[: case["size"]]
    header = MessageHeader.model_validate_json(case["header"])
    state, first = stream.begin(PAIR, header, lambda _: bytes.fromhex(case["salt"]))
    state, chunks = stream.feed(state, body)
    return first + chunks + stream.finish(state)


def opened(data: bytes, header: str) -> bytes:
    state, out = stream.take(stream.expect(MessageHeader.model_validate_json(header)), PAIR, data)
    return out + stream.close(state)


def test_terms_have_their_digest() -> None:
    assert TERMS.digest == FILE["terms"]["digest"]


def test_both_parties_make_their_offers_and_derive_one_key() -> None:
    own: dict[str, KeyOffer] = {}
    for party in FILE["parties"]:
        identity = SigningKey.from_seed(bytes.fromhex(party["seed"]))
        assert (identity.public, fingerprint(identity.public)) == (party["identity"], party["fingerprint"])
        pair = KeyPair.from_private(bytes.fromhex(party["private"]))
        made = offer(TERMS, party["role"], party["recipient"], identity, pair)
        assert made.to_bytes().decode() == party["offer"]
        assert read_offer(party["offer"].encode(), TERMS, party["role"], party["recipient"]) == made
        own[party["role"]] = made
    for party in FILE["parties"]:
        mine, other = own[party["role"]], own[party["recipient"]]
        assert pair_key(bytes.fromhex(party["private"]), mine, other) == PAIR


@pytest.mark.parametrize("case", named("messages"))
def test_messages_are_sealed_byte_for_byte_and_open(case: Any) -> None:
    data = sealed(case)
    assert (len(data), sha256_hex(data)) == (case["sealed_size"], case["sealed_sha256"])
    assert case.get("sealed", data.hex()) == data.hex()
    assert len(opened(data, case["header"])) == case["size"]


@pytest.mark.parametrize("case", named("refused_messages"))
def test_messages_that_do_not_open(case: Any) -> None:
    whole = sealed(FILE["messages"][-1])
    with pytest.raises(errors.InputError) as caught:
        opened(b"".join(whole[first:stop] for first, stop in case["ranges"]), case["header"])
    assert caught.value.reason == case["code"]


@pytest.mark.parametrize("case", named("refused_offers"))
def test_offers_that_are_refused(case: Any) -> None:
    with pytest.raises(errors.CoterieError) as caught:
        read_offer(case["body"].encode(), TERMS, "feature", "owner")
    assert caught.value.reason == case["code"]
