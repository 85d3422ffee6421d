"""Make protocol/vectors/training.json: the orders, numbers and held-out rows that every client draws alike."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from coterie.draws import HELD_OUT, LABEL, batch_order, held_out, random_inputs
from coterie.randomness import seed_of, stream

FOLDER = Path(__file__).parents[2] / "protocol" / "vectors"
Json = dict[str, Any]


def training() -> Json:
    return {
        "title": "What a device draws while it trains: seeds, orders of rows, random inputs, held-out rows",
        "provenance": "coterie's own definition, made by its reference implementation "
        "(`tests/protocol/make_training_vectors.py`); `known` is NIST SP 800-38A, F.5.5 (CTR-AES256), with the counter "
        "block that stands there",
        "how": "`known`: AES-256-CTR of `key` from the counter block `block` on turns `plain` into `cipher`. `seeds`: "
        "SHA-256 of the parts, each with its length (4 bytes, little-endian) before it; `stream` is the beginning of "
        "AES-256-CTR under that key, from the counter block 0, over zeros. `orders`: the stable order of the first "
        "`rows` 64-bit little-endian words. `random_inputs`: numbers [step * count, (step + 1) * count), float32 in "
        "little-endian hex: a 32-bit little-endian word's upper 24 bits times 2**-24. `held_out`: the rows whose "
        "64-bit word is below floor(share * 2**64), but never all. `refused_trainings`: of a manifest",
        "known": {
            "key": "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4",
            "block": "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff",
            "plain": "6bc1bee22e409f96e93d7e117393172a",
            "cipher": "601ec313775789a5b7a7f504bbf3d228",
        },
        "seeds": [
            {"parts": list(parts), "seed": seed_of(*parts).hex(), "stream": stream(seed_of(*parts), 0, 40).hex()}
            for parts in (
                (LABEL, "order", "7", "0"),
                (LABEL, "random", "7"),
                ("coterie-holdout-1",),
                ("", "\u00e4\u6771", "a"),
            )
        ],
        "orders": [
            {"rows": rows, "seed": seed, "epoch": epoch, "order": batch_order(rows, seed, epoch).tolist()}
            for rows, seed, epoch in ((1, 0, 0), (8, 7, 0), (8, 7, 1), (8, 8, 0), (37, 2**53 - 1, 12))
        ],
        "random_inputs": [
            {"seed": seed, "step": step, "count": count, "numbers": random_inputs(seed, step, count).tobytes().hex()}
            for seed, step, count in ((7, 0, 5), (7, 1, 5), (7, 3, 3), (2**53 - 1, 1000, 2))
        ],
        "held_out": [
            {"rows": rows, "share": share, "held_out": np.flatnonzero(held_out(rows, share)).tolist()}
            for rows, share in ((40, 0.25), (10, 0.0), (3, 0.999), (1, 0.9), (100, 0.1))
        ],
        "held_out_seed": HELD_OUT.hex(),
        "refused_trainings": [
            {"training": {"batch_size": 8, "epochs": 1, "max_steps": None, "holdout": 0.0, **wrong}, "code": code}
            for wrong, code in (
                ({"holdout": 1.0}, "plan_manifest"),
                ({"holdout": -0.1}, "plan_manifest"),
                ({"batch_size": 0}, "plan_manifest"),
                ({"epochs": 0}, "plan_manifest"),
                ({"max_steps": 0}, "plan_manifest"),
            )
        ],
    }


FILES: dict[str, Callable[[], Json]] = {"training.json": training}


def rendered() -> dict[str, str]:
    """File name → content, as it is committed."""
    return {name: json.dumps(make(), indent=1, allow_nan=False) + "\n" for name, make in FILES.items()}


if __name__ == "__main__":
    for file_name, content in rendered().items():
        (FOLDER / file_name).write_text(content, encoding="ascii")
