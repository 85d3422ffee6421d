"""Makes protocol/vectors/distributed_noise.json: `python tests/privacy/make_noise_vectors.py` rewrites the file.

Inputs are whole numbers, so that every sum of the rotation is exact and the file is the same on every machine.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from coterie.privacy.dp import spread
from coterie.privacy.dp.distributed import DistributedNoise, decode, encode, event
from coterie.privacy.dp.noise.conditional_rounding import largest_square
from coterie.privacy.dp.noise.source import NoiseSource
from coterie.randomness import stream

Json = dict[str, Any]
FOLDER = Path(__file__).parents[2] / "protocol" / "vectors"
SEED = bytes(range(32))
TERMS = {
    "discrete_gaussian": DistributedNoise(
        mechanism="discrete_gaussian", clip=128.0, scale=3.5, variance=900.0, contributors=16, bits=16, length=100
    ),
    "discrete_gaussian, two tables": DistributedNoise(
        mechanism="discrete_gaussian", clip=128.0, scale=3.5, variance=90000.0, contributors=16, bits=20, length=70
    ),
    "skellam": DistributedNoise(
        mechanism="skellam", clip=128.0, scale=3.5, variance=40.5, contributors=16, bits=12, length=5
    ),
}
REFUSED: tuple[tuple[str, Json], ...] = (
    ("a clip of zero", {"clip": 0.0}),
    ("a negative scale", {"scale": -1.0}),
    ("too little noise", {"variance": 3.9}),
    ("more noise than Skellam's sampler has", {"mechanism": "skellam", "variance": 2097152.0}),
    ("nobody to count on", {"contributors": 0}),
    ("33 bits", {"bits": 33}),
    ("clip times scale beyond 2**30", {"scale": 8589934592.0}),
)


def secret(number: int) -> bytes:
    """Some 32 bytes, each number its own."""
    return stream(SEED, 1 << 20 | number << 5, (1 << 20 | number << 5) + 32)


def wave(length: int) -> list[int]:
    """Small whole numbers of both signs: (7 i mod 23) - 11."""
    return [7 * i % 23 - 11 for i in range(length)]


def told(terms: DistributedNoise) -> Json:
    """The terms, as a task and its section say them."""
    return {**terms.message.model_dump(), "bits": terms.bits, "length": terms.length}


def spreads() -> list[Json]:
    """Dealing and rotation."""
    return [
        {
            "length": length,
            "stride": spread.stride(length),
            "padded": spread.padded(length),
            "shared": secret(length).hex(),
            "vector": wave(length),
            "spread": spread.spread(np.array(wave(length), np.float64), secret(length)).tolist(),
        }
        for length in (1, 5, 64, 70, 100, 321)
    ]


def encodings() -> list[Json]:
    """Whole clients, and the sum of three of one vector."""
    found: list[Json] = []
    for number, (name, terms) in enumerate(TERMS.items()):
        vector, shared = np.array(wave(terms.length), np.float64), secret(100 + number)
        keys = [secret(200 + 10 * number + client) for client in range(3)]
        numbers = [encode(vector, terms, shared, NoiseSource(key)).numbers for key in keys]
        total = np.zeros(terms.padded, np.uint32)
        for row in numbers:
            total = (total + row) % np.uint32(1 << terms.bits)
        found.append(
            {
                "name": name,
                "terms": told(terms),
                "square": terms.square,
                "rho": event(terms).rho,
                "shared": shared.hex(),
                "vector": wave(terms.length),
                "keys": [key.hex() for key in keys],
                "numbers": [row.tolist() for row in numbers],
                "sum": total.tolist(),
                "decoded": decode(total, terms, shared).tolist(),
            }
        )
    return found


def rendered() -> dict[str, str]:
    """File name → content, as it is committed."""
    content: Json = {
        "title": "noise that clients share under secure aggregation: dealing, rotation, rounding, shares, the sum",
        "provenance": "made by tests/privacy/make_noise_vectors.py with coterie's Python implementation; Kairouz, Liu "
        "and Steinke 2021 (arXiv:2102.06387), Agarwal, Kairouz and Liu 2021 (arXiv:2110.04995)",
        "how": "`spread`: coordinate i is dealt coordinate (i * stride) mod length, zeros up to `padded`; then blocks "
        "of 4096 and, for the rest, of its binary digits (largest first, 64 at least) become H (s * x) / sqrt(n), H in "
        "Sylvester's order, signs s the bits of the key stream of SHA-256(shared || 'rotate'), 1 for -1. `square` is "
        "the bound of the squares after rounding. Decode `sum` to `decoded`, to 1e-9. `keys` and `numbers`: this "
        "implementation's reading of AES-256-CTR streams; a client whose rounding stays within `square` and whose "
        "shares have the distribution to 2**-128 may read its stream in another order. Refuse the terms in `refused`",
        "bounds": [
            {"norm": norm, "length": length, "square": largest_square(norm, length)}
            for norm, length in ((1.0, 1), (0.5, 64), (100.0, 10000), (448.0, 128), (5000.5, 1 << 20))
        ],
        "spreads": spreads(),
        "encodings": encodings(),
        "refused": [
            {"name": name, "terms": {**told(TERMS["discrete_gaussian"]), **changed}, "code": "noise_terms"}
            for name, changed in REFUSED
        ],
    }
    return {"distributed_noise.json": json.dumps(content, indent=None, separators=(",", ":"), allow_nan=False) + "\n"}


if __name__ == "__main__":
    for file_name, content in rendered().items():
        (FOLDER / file_name).write_text(content, encoding="ascii")
