"""Makes protocol/vectors/secagg_*.json: `python tests/privacy/make_secagg_vectors.py` rewrites the files.

Deterministic: every secret is a piece of the AES-256-CTR key stream of the seed 00 01 … 1f (see codecs.randomness).
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from coterie.privacy.secagg import channel, graph, shamir
from coterie.privacy.secagg.context import AttemptContext
from coterie.privacy.secagg.keys import KeyPair, RosterKey, agree, derive, expand, pair_info
from coterie.privacy.secagg.masks import STREAM_INFO, MaskSeed, add_masks
from coterie.privacy.secagg.parameters import Mode, Parameters, parameters
from coterie.privacy.secagg.ring import RingVector, Segment, VectorSpec, pack, reduced
from coterie.protocol.canonical import canonical_json
from coterie.protocol.conversion import to_json
from coterie.randomness import stream

Json = dict[str, Any]
FOLDER = Path(__file__).parents[2] / "protocol" / "vectors"
MADE = "made by tests/privacy/make_secagg_vectors.py with coterie's Python implementation"
SEED = bytes(range(32))


class Drawn:
    """Entropy that can be repeated: the key stream of `SEED` from byte `start` on, and how much of it was drawn."""

    def __init__(self, start: int) -> None:
        self.start = self.at = start

    def __call__(self, count: int) -> bytes:
        self.at += count
        return stream(SEED, self.at - count, self.at)

    @property
    def taken(self) -> str:
        return stream(SEED, self.start, self.at).hex()


def mask_words(seed: bytes, start: int, stop: int) -> RingVector:
    """The words [start, stop) of one mask."""
    words = np.zeros(stop - start, np.uint32)
    add_masks(words, [MaskSeed(seed, 1)], start)
    return words


def secret(number: int) -> bytes:
    """Some 32 bytes, each number its own."""
    return stream(SEED, 1 << 20 | number << 5, (1 << 20 | number << 5) + 32)


CONTEXT = AttemptContext(
    attempt="attempt-1",
    plan="aa" * 32,
    model="bb" * 32,
    spec="cc" * 32,
    parameters=parameters(300, corrupt=0.1, dropout=0.1, mode="consistent"),
    roster="dd" * 32,
)
ASKED: tuple[tuple[int, float, float, Mode], ...] = (
    (3, 0.0, 0.0, "semi_honest"),
    (4, 0.1, 0.1, "semi_honest"),
    (5, 0.2, 0.2, "semi_honest"),
    (5, 0.2, 0.2, "consistent"),
    (10, 0.1, 0.1, "semi_honest"),
    (10, 0.1, 0.1, "consistent"),
    (10, 0.3, 0.3, "semi_honest"),
    (20, 0.1, 0.1, "semi_honest"),
    (59, 0.1, 0.1, "semi_honest"),
    (59, 0.1, 0.1, "consistent"),
    (60, 0.1, 0.1, "semi_honest"),
    (60, 0.1, 0.1, "consistent"),
    (61, 0.3, 0.3, "consistent"),
    (100, 0.05, 0.05, "semi_honest"),
    (100, 0.1, 0.1, "semi_honest"),
    (100, 0.1, 0.1, "consistent"),
    (300, 0.1, 0.1, "semi_honest"),
    (300, 0.1, 0.1, "consistent"),
    (1000, 0.1, 0.1, "semi_honest"),
    (1000, 0.1, 0.1, "consistent"),
    (1000, 0.2, 0.3, "semi_honest"),
    (1000, 0.33, 0.33, "semi_honest"),
    (10_000, 0.1, 0.1, "semi_honest"),
    (10_000, 0.1, 0.2, "consistent"),
)
IMPOSSIBLE: tuple[tuple[int, float, float, Mode], ...] = (
    (2, 0.0, 0.0, "semi_honest"),
    (10, 0.5, 0.5, "semi_honest"),
    (10, 0.3, 0.3, "consistent"),
    (100, 0.1, 1.0, "semi_honest"),
    (100, -0.1, 0.1, "semi_honest"),
)


def _asked(case: tuple[int, float, float, Mode]) -> Json:
    clients, corrupt, dropout, mode = case
    return {"clients": clients, "corrupt": corrupt, "dropout": dropout, "mode": mode}


def _found(case: tuple[int, float, float, Mode]) -> Parameters:
    clients, corrupt, dropout, mode = case
    return parameters(clients, corrupt=corrupt, dropout=dropout, mode=mode)


def graphs() -> Json:
    # Seven keys have so few orders that a wrong rule may hit the right one; 24 have not.
    keys = [secret(index) + secret(100 + index) for index in range(24)]
    return {
        "title": "secure aggregation: neighbours, thresholds and places",
        "provenance": MADE + "; the method is that of Bell et al., CCS 2020, in whole numbers",
        "how": "find neighbours and threshold from clients, corrupt, dropout and mode, and refuse the impossible ones; "
        "list the neighbours of places, ascending; `order`: the indices of the keys in the order of the roster",
        "parameters": [
            {**_asked(case), "neighbours": _found(case).neighbours, "threshold": _found(case).threshold}
            for case in ASKED
        ],
        "neighbours": [
            {
                "position": position,
                "clients": clients,
                "degree": degree,
                "neighbours": list(graph.neighbours(position, clients, degree)),
            }
            for position, clients, degree in (
                (0, 3, 2),
                (2, 4, 3),
                (0, 100, 6),
                (1, 100, 6),
                (99, 100, 6),
                (50, 61, 60),
            )
        ],
        "order": [
            {"attempt": attempt, "keys": [key.hex() for key in some], "order": list(graph.order(some, attempt))}
            for attempt, some in (("attempt-1", keys[:7]), ("attempt-2", keys))
        ],
        "refused_parameters": [{**_asked(case), "code": "secagg_parameters"} for case in IMPOSSIBLE],
    }


def keys() -> Json:
    one, other = (KeyPair.from_private(secret(index)) for index in (0, 1))
    places = RosterKey(7, one.public), RosterKey(3, other.public)
    info = pair_info(CONTEXT, "mask", *places)
    key = agree(one.private, other.public, pair_info(CONTEXT, "channel", *places))
    data = channel.associated(CONTEXT, "shares", 7, 3)
    entropy = Drawn(0)
    box = channel.seal(key, secret(2), data, entropy)
    flipped = [(f"bit {bit}", bit) for bit in (0, 95, 96, 8 * len(box) - 129, 8 * len(box) - 1)]
    return {
        "title": "secure aggregation: context, common secrets and sealed boxes",
        "provenance": MADE + "; X25519: RFC 7748, HKDF-SHA256 without salt: RFC 5869, AES-256-GCM: NIST SP 800-38D",
        "how": "the digest is SHA-256 of the context's canonical JSON; `info` and `data` are HKDF info and associated "
        "data; a box is nonce, ciphertext, tag; refuse the others",
        "context": [
            {
                "json": canonical_json(to_json(CONTEXT)).decode(),
                "digest": CONTEXT.digest.hex(),
                "bound": CONTEXT.bind("example", b"abc", 5, b"").hex(),
            }
        ],
        "agreements": [
            {
                "positions": [7, 3],
                "privates": [one.private.hex(), other.private.hex()],
                "publics": [one.public.hex(), other.public.hex()],
                "purpose": "mask",
                "info": info.hex(),
                "secret": agree(one.private, other.public, info).hex(),
            }
        ],
        "derived": [{"secret": secret(3).hex(), "info": b"self".hex(), "key": derive(secret(3), b"self").hex()}],
        "boxes": [
            {
                "phase": "shares",
                "sender": 7,
                "recipient": 3,
                "key": key.hex(),
                "nonce": entropy.taken,
                "data": data.hex(),
                "plaintext": secret(2).hex(),
                "box": box.hex(),
            }
        ],
        "refused_keys": [
            {"name": name, "private": one.private.hex(), "public": public, "code": "secagg_key_invalid"}
            for name, public in (
                ("zero", "00" * 32),
                ("one", "01" + "00" * 31),
                ("of order eight", "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
                ("of order four, on the twist", "ec" + "ff" * 30 + "7f"),
                ("of order eight, the other", "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
                ("another one's with bit 255 set", _flip(other.public, 255).hex()),
                ("the prime itself", "ed" + "ff" * 30 + "7f"),
                ("the base point plus the prime", "f6" + "ff" * 30 + "7f"),
                ("too short", "05" * 31),
            )
        ],
        "refused_boxes": [
            *(
                {"name": name, "key": key.hex(), "data": data.hex(), "box": _flip(box, bit).hex(), "code": "secagg_box"}
                for name, bit in flipped
            ),
            {"name": "another recipient", "key": key.hex(), "box": box.hex(), "code": "secagg_box"}
            | {"data": channel.associated(CONTEXT, "shares", 7, 4).hex()},
            {"name": "too short", "key": key.hex(), "data": data.hex(), "box": box[:20].hex(), "code": "secagg_box"},
        ],
    }


def _flip(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def shares() -> Json:
    made: list[Json] = []
    for number, (threshold, count) in enumerate(((1, 2), (2, 3), (3, 5), (27, 48))):
        entropy = Drawn(1 << 12 | number << 14)
        whole = secret(200 + number) if number else b"\xff" * 32
        table = shamir.share(whole, threshold, count, entropy)
        made.append(
            {
                "secret": whole.hex(),
                "threshold": threshold,
                "entropy": entropy.taken,
                "shares": [row.astype("<u4").tobytes().hex() for row in table],
                "points": list(range(count - threshold + 1, count + 1)),
            }
        )
    good = made[2]
    wrong = bytearray(bytes.fromhex(good["shares"][2]))
    wrong[:4] = (shamir.PRIME).to_bytes(4, "little")
    return {
        "title": "secure aggregation: Shamir's shares of 32 bytes over the field of 2**31 + 11",
        "provenance": MADE,
        "how": "nine limbs of 31 bits, little-endian; coefficients from the highest power down, nine words each, from "
        "`entropy` as 32-bit little-endian words without those from 2**31 + 11 up; share x (from 1) is nine "
        "little-endian words; the shares of `points` give the secret; refuse the others",
        "shares": made,
        "refused_shares": [
            {"name": name, "threshold": 3, "points": points, "shares": rows, "code": "secagg_shares"}
            for name, points, rows in (
                ("too few", [1, 2], good["shares"][:2]),
                ("a point twice", [1, 2, 2], [*good["shares"][:2], good["shares"][1]]),
                ("the point of the secret", [0, 1, 2], good["shares"][:3]),
                ("outside the field", [1, 2, 3], [*good["shares"][:2], bytes(wrong).hex()]),
                ("no secret of 32 bytes", [1, 2, 4], good["shares"][:3]),
            )
        ],
    }


def masks() -> Json:
    spec = VectorSpec(
        (Segment("delta", 11, 26), Segment("metrics", 3, 32), Segment("bits", 5, 1), Segment("odd", 7, 13))
    )
    vector = np.arange(1, spec.length + 1, dtype=np.uint32) * np.uint32(0x9E3779B1)
    seeds = [(secret(300), 1), (secret(301), -1), (secret(302), 1)]
    masked = vector.copy()
    add_masks(masked, [MaskSeed(seed, 1 if sign == 1 else -1) for seed, sign in seeds])
    packed = pack(masked, spec)
    last = spec.packed_bytes - 1 - spec.segments[3].packed_bytes
    filled = bytearray(packed)
    filled[last] |= 0x80
    return {
        "title": "secure aggregation: masks, and masked vectors on the wire",
        "provenance": MADE + "; AES-256-CTR: NIST SP 800-38A",
        "how": "`expanded` is HKDF-Expand of the seed for `info`: a key of 32 bytes and a nonce of 12, followed by a "
        "block counter of 4; `words` are the 32-bit little-endian words [start, stop) of the stream. `masked`: the "
        "vector plus or minus the masks, modulo 2**32, then each segment's lowest bits packed; refuse the others",
        "streams": [
            {
                "seed": secret(300).hex(),
                "info": STREAM_INFO.hex(),
                "expanded": expand(secret(300), STREAM_INFO, 44).hex(),
                "start": start,
                "stop": stop,
                "words": mask_words(secret(300), start, stop).astype("<u4").tobytes().hex(),
            }
            for start, stop in ((0, 9), (3, 9), (65_535, 65_541), ((1 << 34) - 5, 1 << 34))
        ],
        "masked": [
            {
                "segments": [[segment.name, segment.length, segment.bits] for segment in spec.segments],
                "digest": spec.digest,
                "vector": vector.astype("<u4").tobytes().hex(),
                "masks": [{"seed": seed.hex(), "sign": sign} for seed, sign in seeds],
                "masked": reduced(masked, spec).astype("<u4").tobytes().hex(),
                "packed": packed.hex(),
            }
        ],
        "refused_packed": [
            {"name": name, "packed": data.hex(), "code": code}
            for name, data, code in (
                ("a byte less", packed[:-1], "truncated"),
                ("a byte more", packed + b"\0", "too_large"),
                ("filled with a one", bytes(filled), "malformed"),
            )
        ],
    }


FILES = {
    "secagg_graphs.json": graphs,
    "secagg_keys.json": keys,
    "secagg_shares.json": shares,
    "secagg_masks.json": masks,
}


def rendered() -> dict[str, str]:
    """File name → content, as it is committed."""
    return {name: json.dumps(make(), indent=1, allow_nan=False) + "\n" for name, make in FILES.items()}


if __name__ == "__main__":
    for file_name, content in rendered().items():
        (FOLDER / file_name).write_text(content, encoding="ascii")
