"""Makes protocol/vectors/sessions.json: `python tests/privacy/make_session_vectors.py` rewrites the file.

Deterministic: secrets and salts are pieces of the AES-256-CTR key stream of the seed 00 01 … 1f.
"""

import json
from pathlib import Path
from typing import Any

from coterie.privacy.secagg.keys import KeyPair
from coterie.privacy.session import stream as sealing
from coterie.privacy.session.agreement import offer, pair_key
from coterie.protocol.canonical import canonical_json, sha256_hex
from coterie.protocol.session import KeyOffer, MessageHeader, PartyRole, SessionTerms, fingerprint
from coterie.protocol.signing import SigningKey
from coterie.randomness import stream

Json = dict[str, Any]
FOLDER = Path(__file__).parents[2] / "protocol" / "vectors"
MADE = "made by tests/privacy/make_session_vectors.py with coterie's Python implementation"
SEED = bytes(range(32))
SESSION = "ses_" + "0123456789abcdef" * 2
TERMS = SessionTerms(
    session=SESSION,
    roles=(PartyRole(name="owner", party="Clinic"), PartyRole(name="feature", party="Registry")),
    stages=("rows", "sums"),
    message_limit=1 << 20,
)
PATTERN = bytes(range(251))
"""What long messages repeat: its length divides no chunk."""


def secret(number: int) -> bytes:
    """Some 32 bytes, each number its own."""
    return stream(SEED, 1 << 20 | number << 5, (1 << 20 | number << 5) + 32)


IDENTITIES = {"owner": SigningKey.from_seed(secret(0)), "feature": SigningKey.from_seed(secret(1))}
PAIRS = {"owner": KeyPair.from_private(secret(2)), "feature": KeyPair.from_private(secret(3))}
OTHER = {"owner": "feature", "feature": "owner"}
OFFERS = {role: offer(TERMS, role, OTHER[role], IDENTITIES[role], PAIRS[role]) for role in OTHER}
PAIR = pair_key(PAIRS["owner"].private, OFFERS["owner"], OFFERS["feature"])
SIZES = (0, 1, 5, sealing.CHUNK - 1, sealing.CHUNK, sealing.CHUNK + 1, 2 * sealing.CHUNK, 3 * sealing.CHUNK - 7)
LONGEST = 200
"""Sealed bytes that stand in the file as they are; longer ones by their SHA-256."""


def plaintext(size: int) -> bytes:
    """So many bytes of PATTERN, again and again."""
    return (PATTERN * (size // len(PATTERN) + 1))[:size]


def header(**changes: Any) -> MessageHeader:
    """Where the messages here belong."""
    own = MessageHeader(session=SESSION, stage="rows", sender="owner", recipient="feature", sequence=0)
    return own.model_copy(update=changes)


def sealed(size: int, salt: bytes, place: MessageHeader) -> bytes:
    """A sealed message."""
    state, first = sealing.begin(PAIR, place, lambda _: salt)
    state, chunks = sealing.feed(state, plaintext(size))
    return first + chunks + sealing.finish(state)


def messages() -> list[Json]:
    """Messages of every kind of length."""
    made: list[Json] = []
    for number, size in enumerate(SIZES):
        place, salt = header(sequence=number), secret(10 + number)
        whole = sealed(size, salt, place)
        bytes_ = {"sealed": whole.hex()} if len(whole) <= LONGEST else {}
        made.append(
            {
                "header": place.to_bytes().decode(),
                "salt": salt.hex(),
                "size": size,
                "sealed_size": len(whole),
                "sealed_sha256": sha256_hex(whole),
                **bytes_,
            }
        )
    return made


def refused_messages() -> list[Json]:
    """Openings that must fail. ranges: of the sealed bytes of the last message, joined; header: of the reader."""
    last = len(SIZES) - 1
    step = sealing.CHUNK + sealing.TAG
    cuts = [0, sealing.SALT, sealing.SALT + step, sealing.SALT + 2 * step, sealing.SALT + SIZES[last] + 3 * sealing.TAG]
    salt, one, two, three = ([first, stop] for first, stop in zip(cuts, cuts[1:], strict=False))
    own = header(sequence=last)
    cut: list[tuple[str, list[list[int]], MessageHeader]] = [
        ("without its last chunk", [salt, one, two], own),
        ("without its middle chunk", [salt, one, three], own),
        ("first two chunks exchanged", [salt, two, one, three], own),
        ("a chunk twice", [salt, one, one, two, three], own),
        ("one byte short", [salt, one, two, [three[0], three[1] - 1]], own),
        ("one byte more", [salt, one, two, three, [0, 1]], own),
        ("half of the salt", [[0, 16]], own),
        ("the salt alone", [salt], own),
        ("nothing", [], own),
        ("another session", [[0, cuts[-1]]], header(sequence=last, session="ses_" + "f" * 32)),
        ("another stage", [[0, cuts[-1]]], header(sequence=last, stage="sums")),
        ("another sender", [[0, cuts[-1]]], header(sequence=last, sender="feature")),
        ("another recipient", [[0, cuts[-1]]], header(sequence=last, recipient="owner")),
        ("another number", [[0, cuts[-1]]], header(sequence=last + 1)),
    ]
    return [
        {"name": name, "ranges": ranges, "header": place.to_bytes().decode(), "code": "session_seal"}
        for name, ranges, place in cut
    ]


def refused_offers() -> list[Json]:
    """Offers that the owner must refuse in the place of that of `feature`."""
    good = OFFERS["feature"]
    key = IDENTITIES["feature"]
    other_terms = TERMS.model_copy(update={"message_limit": 1})
    small = KeyPair(secret(3), bytes(32))
    wrong: list[tuple[str, KeyOffer, str]] = [
        (
            "signed by somebody else",
            good.model_copy(update={"identity": IDENTITIES["owner"].public}),
            "signature_invalid",
        ),
        ("another key", good.model_copy(update={"key": PAIRS["owner"].public.hex()}), "signature_invalid"),
        ("the reader's own", OFFERS["owner"], "session_terms"),
        ("for another recipient", offer(TERMS, "feature", "other", key, PAIRS["feature"]), "session_terms"),
        ("other terms", offer(other_terms, "feature", "owner", key, PAIRS["feature"]), "session_terms"),
        ("a key of small order", offer(TERMS, "feature", "owner", key, small), "session_key"),
    ]
    return [{"name": name, "body": body.to_bytes().decode(), "code": code} for name, body, code in wrong]


def rendered() -> dict[str, str]:
    """File name → content."""
    file: Json = {
        "title": "Sessions of parties: terms, fingerprints, key offers, the key of a pair, sealed messages",
        "provenance": f"{MADE}; Ed25519: RFC 8032, X25519: RFC 7748, HKDF-SHA256 without salt: RFC 5869, AES-256-GCM: "
        "NIST SP 800-38D, STREAM: Hoang et al., CRYPTO 2015",
        "how": "terms have this digest; identities and pairs of these seeds and private keys make these offers, byte "
        "by byte, and both derive `pair`; messages are `size` bytes of `pattern`, repeated, sealed with this salt "
        "under the header; opening the joined ranges of the last message's sealed bytes under a header of "
        "`refused_messages` fails, as does reading `refused_offers` as the owner in the place of the other's offer",
        "terms": {"json": canonical_json(TERMS.model_dump(mode="json")).decode(), "digest": TERMS.digest},
        "parties": [
            {
                "role": role,
                "seed": secret(number).hex(),
                "identity": IDENTITIES[role].public,
                "fingerprint": fingerprint(IDENTITIES[role].public),
                "private": PAIRS[role].private.hex(),
                "recipient": OTHER[role],
                "offer": OFFERS[role].to_bytes().decode(),
            }
            for number, role in enumerate(OTHER)
        ],
        "pair": PAIR.hex(),
        "pattern": PATTERN.hex(),
        "messages": messages(),
        "refused_messages": refused_messages(),
        "refused_offers": refused_offers(),
    }
    return {"sessions.json": json.dumps(file, indent=1, ensure_ascii=True) + "\n"}


if __name__ == "__main__":
    for name, content in rendered().items():
        (FOLDER / name).write_text(content, "ascii")
