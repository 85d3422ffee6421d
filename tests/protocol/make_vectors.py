"""Makes protocol/vectors/: `python tests/protocol/make_vectors.py` rewrites the files; test_vectors checks them.

Deterministic: no clock, no random source. Numbers taken from elsewhere name their source.
"""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from coterie.protocol import spread
from coterie.protocol.canonical import canonical_json, parse_json, sha256_hex
from coterie.protocol.codecs import NO_STATE, Codec, Keys, Shape, parse
from coterie.protocol.conversion import to_json
from coterie.protocol.device import PlanRef, Task
from coterie.protocol.layout import Layout
from coterie.protocol.lineage import DOMAIN, GENESIS, LineageLink, fold
from coterie.protocol.metrics import MetricSums
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.sections import SectionSpec
from coterie.protocol.signing import Domain, SigningKey, sign_plan
from coterie.protocol.tensors import encode_tensors
from coterie.protocol.texts import as_bytes, as_places, texts_of
from coterie.protocol.update import METADATA_KEY, encode_update, read_update
from coterie.protocol.wire import BlobRef
from coterie.randomness import derive, stream, uniforms

Json = dict[str, Any]
FOLDER = Path(__file__).parents[2] / "protocol" / "vectors"
MADE = "made by tests/protocol/make_vectors.py with coterie's Python implementation"

# RFC 8785 appendix B: the bits of a double, and its text.
RFC_8785_NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}
# RFC 8032 section 7.1, TEST 1 and TEST 2: seeds and public keys.
COORDINATOR = SigningKey.from_seed(bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))
RESEARCHER = SigningKey.from_seed(bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"))
SEEDS = {
    COORDINATOR.public: "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
    RESEARCHER.public: "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
}
LAYOUT = Layout.of({"0.weight": (3, 2), "0.bias": (3,), "scale": ()})


def canonical() -> Json:
    inputs = {
        "sorted keys, no white space": '{ "b": [1, 2.0, -0.0], "a": null, "aa": true }',
        "keys by UTF-16 code units": '{"\\ufb33":1,"\\ud83d\\ude00":2,"\\u20ac":3,"1":4}',
        "escapes": '"\\u20ac$\\u000F\\u000aA\'\\u0042\\u0022\\u005c\\/\\u007f\\b\\t\\f\\r"',
        "numbers": "[333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001]",
        "a whole number that no double holds": "[9007199254740993]",
        "empty": '{"a":[],"b":{},"c":""}',
    }
    wrong = {
        "a key twice": '{"a":1,"a":2}',
        "NaN": "[NaN]",
        "infinity": "[1e400]",
        "65 levels": "[" * 66 + "]" * 66,
        "two values": "1 2",
        "not closed": '{"a":1',
    }
    return {
        "title": "canonical JSON (RFC 8785) and strict reading",
        "provenance": f"numbers: RFC 8785 appendix B; the rest {MADE}",
        "how": "read `input` strictly, write it canonically, compare with `output` and its SHA-256; refuse the others",
        "numbers": [{"bits": bits, "text": text} for bits, text in RFC_8785_NUMBERS.items()],
        "cases": [
            {"name": name, "input": text, "output": output.decode(), "sha256": sha256_hex(output)}
            for name, text in inputs.items()
            for output in [canonical_json(parse_json(text.encode()))]
        ],
        "refused": [{"name": name, "input": text, "code": "json_invalid"} for name, text in wrong.items()]
        + [{"name": "a lone surrogate", "input": '"\\ud800"', "code": "not_canonical"}],
    }


def layouts() -> Json:
    schema = DataSchema(
        (
            Feature(name="image", dtype="uint8", shape=(8, 8), low=0, high=16, scale=0.0625),
            Feature(name="body", shape=(2,), columns=("age", "height"), offset=(40.0, 1.7), scale=(0.1, 5.0)),
        ),
        Label(name="kind", classes=("cat", "dog", 7), column="species"),
    )
    slices: list[Any] = [None, [[0, 10]], [[2, 8]], [[0, 2], [4, 6], [8, 10]]]
    tensor = {"name": "a", "shape": [2]}
    wrong: dict[str, Any] = {
        "no tensors": {"tensors": []},
        "a name twice": {"tensors": [tensor, tensor]},
        "a size of zero": {"tensors": [{"name": "a", "shape": [0]}]},
        "one more field": {"tensors": [{**tensor, "dtype": "F32"}]},
    }
    return {
        "title": "global layout and data schema: digests, offsets, segments",
        "provenance": MADE,
        "how": "a digest is the SHA-256 of a value's canonical JSON; segments are the runs of `slices` cut at "
        "tensors, rows how many rows of a tensor each holds if it begins and ends between rows, else 1",
        "layout": to_json(LAYOUT),
        "size": LAYOUT.size,
        "offsets": dict(LAYOUT.offsets),
        "digest": LAYOUT.digest,
        "segments": [{"slices": s, "segments": list(LAYOUT.segments(s)), "rows": list(LAYOUT.rows(s))} for s in slices],
        "schema": to_json(schema),
        "schema_digest": schema.digest,
        "refused": [{"name": name, "layout": value, "code": "layout_invalid"} for name, value in wrong.items()],
    }


VECTORS: dict[str, tuple[list[int], list[float]]] = {
    "small": ([3, 2], [0.0, 1.0, -2.5, 0.1, -0.3]),
    "ties": ([4], [127.0, 0.5, 1.5, -2.5]),
    "zeros": ([2, 2], [0.0, -0.0, 1e-45, 3.0]),
    "float16 edges": ([5], [65504.0, -65519.0, 6.1e-5, 5.96e-8, 2.9e-8]),
    "one each": ([1, 1, 1], [3e4, -7.25, 1e-7]),
}


HEADER = {"task": "task_1", "plan": "plan-1", "base": "base-1", "section": "delta"}
KEYS = Keys.of(**HEADER)
# Codecs whose definition fixes every bit of the payload; of the others it fixes what a payload decodes to.
EXACT = (
    "float32", "float16", "bfloat16", "float64", "int8", "int8:channel", "int8+rice", "topk:0.4", "randk:0.4",
    "terngrad", "diff_sparse_quant",
)  # fmt: skip
BOUNDED = (
    "qsgd:4", "qsgd:2+rice", "round:1", "sign", "eden:1", "eden:3", "eden:4", "eden:7",
    "eden:8", "eden:4:biased", "drive",
    "rotate+grid:4", "rotate+grid:6:8", "rotate+grid:16:8", "powersgd:1",
)  # fmt: skip
MATRIX = ([12, 3], [4, 1], [round(0.37 * (7 * n % 15 - 7), 2) for n in range(15)])
LONG = [4200, 30, 40]


def codecs() -> Json:
    cases: list[Json] = []
    for codec in map(parse, (*EXACT, *BOUNDED)):
        forms = {name: (segments, [1] * len(segments), values) for name, (segments, values) in VECTORS.items()}
        for name, (segments, rows, values) in {**forms, "a matrix": MATRIX}.items():
            shape, vector = Shape(tuple(segments), tuple(rows)), np.array(values, codec.dtype)
            payload = _payload(codec, name, vector, shape)
            decoded = codec.decode(payload, KEYS, shape, 0, vector.size)
            part = codec.decode(payload, KEYS, shape, 1, vector.size - 1)
            error = float(((decoded.astype(np.float64) - vector.astype(np.float64)) ** 2).sum())
            cases.append(
                {
                    "name": name,
                    "codec": codec.name,
                    "exact": codec.name in EXACT,
                    "segments": segments,
                    "rows": rows,
                    "vector": vector.tobytes().hex(),
                    "payload": payload.hex(),
                    "decoded": decoded.tobytes().hex(),
                    "decoded_from_1_to_minus_1": part.tobytes().hex(),
                    "squared_error": error,
                }
            )
    return {
        "title": "codecs: encode and decode, bit for bit",
        "provenance": MADE,
        "how": "numbers are little-endian hex: float32, but float64 for the codec float64; decode `payload` whole and "
        "in part with the seeds that follow from `header` and compare; encode `vector`: the payload of an `exact` case "
        "is `payload`, that of another decodes with a squared error of at most 1.05 times `squared_error` plus 1e-9 of "
        "the vector's; of a `long` payload the SHA-256 of its decoded bytes is given; "
        "the refused payloads and vectors must be refused",
        "header": HEADER,
        "seeds": {"own": KEYS.own.hex(), "shared": KEYS.shared.hex()},
        "streams": [
            {
                "label": label,
                "seed": derive(KEYS.own, label).hex(),
                "start": start,
                "bytes": stream(derive(KEYS.own, label), start, start + 40).hex(),
            }
            for label, start in (("rotate", 0), ("round", 0), ("round", 5), ("select", 65_530))
        ],
        "cases": cases,
        "long": [
            _long(name)
            for name in (
                "int8+rice",
                "topk:0.01",
                "randk:0.1",
                "eden:1",
                "eden:3",
                "eden:4",
                "drive",
                "qsgd:4",
                "rotate+grid:5",
                "rotate+grid:8:1",
                "rotate+grid:13",
                "diff_sparse_quant",
            )
        ],
        "refused_payloads": [
            {"name": name, "codec": codec, "segments": segments, "payload": payload, "code": code}
            for name, codec, segments, payload, code in (
                ("short", "float32", [2], "00000000000000", "truncated"),
                ("short", "float16", [2], "000000", "truncated"),
                ("short", "float64", [1], "00", "truncated"),
                ("scales only", "int8", [2], "0000803f", "truncated"),
                ("NaN scale", "int8", [1], "0000c07f01", "not_finite"),
                ("infinite scale", "int8", [1], "0000807f01", "not_finite"),
                ("negative scale", "int8", [1], "000080bf01", "malformed"),
                ("level -128", "int8", [1], "0000803f80", "malformed"),
                ("a block of 65535 bytes", "int8+rice", [1], "0000803fffff", "malformed"),
                ("a Rice parameter above the width", "int8+rice", [1], "0000803f020009ff", "malformed"),
                ("three kept of two", "topk:0.1", [20], "0300000004000000" + "00" * 30, "malformed"),
                ("a kept element outside", "topk:0.1", [20], "0200000002000000" + "1103" + "00" * 8, "malformed"),
                ("level 2", "terngrad", [1], "0000803f04", "malformed"),
                ("a filling of ones", "sign", [3], "0000803f08", "malformed"),
                ("negative scale", "eden:1", [64], "000080bf" + "00" * 8, "malformed"),
                ("infinite scale", "rotate+grid:1", [64], "0000807f" + "00" * 8, "not_finite"),
                ("falling edges", "diff_sparse_quant", [2], "000000000000f03f" + "00" * 9, "malformed"),
            )
        ],
        "refused_vectors": [
            {"name": name, "codec": codec, "segments": [1], "vector": vector, "code": code}
            for name, codec, vector, code in (
                ("NaN", "float32", "0000c07f", "not_finite"),
                ("infinity", "int8", "0000807f", "not_finite"),
                ("65520 rounds to infinity", "float16", struct.pack("<f", 65520).hex(), "out_of_range"),
                ("the largest float32", "int8", "ffff7f7f", "out_of_range"),
                ("the largest float32", "bfloat16", "ffff7f7f", "out_of_range"),
                ("2e15", "eden:4", struct.pack("<f", 2e15).hex(), "out_of_range"),
            )
        ],
    }


def _payload(codec: Codec, name: str, vector: Any, shape: Shape) -> bytes:
    """The payload of a case. Another machine may round another way in codecs that leave it open, so what was committed
    for them stays.
    """
    file = FOLDER / "codecs.json"
    before: Json = json.loads(file.read_text("ascii")) if file.exists() else {}
    kept: list[Json] = [*before.get("cases", []), *before.get("long", [])]
    for case in kept:
        if (case["name"], case["codec"]) == (name, codec.name) and codec.name not in EXACT:
            return bytes.fromhex(case["payload"])
    return codec.encode(vector, KEYS, shape, NO_STATE)[0]


def _long(name: str) -> Json:
    """A payload over several blocks, and the digest of what it decodes to."""
    codec, shape = parse(name), Shape.flat(*LONG)
    vector = uniforms(derive(KEYS.own, "vector"), 0, shape.length) - np.float32(0.5)
    payload = _payload(codec, "long", vector, shape)
    decoded = codec.decode(payload, KEYS, shape, 0, shape.length)
    return {
        "name": "long",
        "codec": name,
        "segments": LONG,
        "payload": payload.hex(),
        "decoded_sha256": sha256_hex(decoded.tobytes()),
    }


SPECS = (
    SectionSpec.over("delta", LAYOUT, value_range=(-8.0, 8.0)),
    SectionSpec.extra("metrics", 2),
)
DELTA = np.array([0.5, -1, 2, 0, 0.25, 8, -8, 0.125, 3, 1e-3], np.float32)
METRICS = np.array([12.75, 32.0])
NAMES = {"task": "task_017f22e279b070008000000000000001", "plan": "ab" * 32, "base": "cd" * 32}


def updates() -> Json:
    good = {
        codec: encode_update(
            task=NAMES["task"],
            plan=NAMES["plan"],
            base=NAMES["base"],
            weight=32,
            steps=4,
            specs=SPECS,
            sections={"delta": DELTA, "metrics": METRICS},
            codecs={"delta": codec},
        ).data
        for codec in ("float32", "float16", "int8")
    }
    header: Json = {
        **NAMES,
        "format": "coterie-update-1",
        "kind": "update",
        "weight": 32,
        "steps": 4,
        "clients": 1,
        "sections": [
            {"name": "delta", "codec": "float32", "length": 10},
            {"name": "metrics", "codec": "float64", "length": 2},
        ],
    }

    def crafted(delta: bytes = DELTA.tobytes(), metrics: bytes | None = METRICS.tobytes(), **change: Any) -> bytes:
        payloads = {"delta": delta} if metrics is None else {"delta": delta, "metrics": metrics}
        tensors = {name: np.frombuffer(payload, np.uint8) for name, payload in payloads.items()}
        return encode_tensors(tensors, {METADATA_KEY: canonical_json({**header, **change}).decode()})

    def sections(**change: Any) -> list[Json]:
        return [{**header["sections"][0], **change}, header["sections"][1]]

    whole = crafted()
    wrong: list[tuple[str, bytes, str]] = [
        ("empty", b"", "truncated"),
        ("cut", whole[:-1], "truncated"),
        ("left over", whole + b"\0", "wrong_format"),
        ("no safetensors", b"\x02\0\0\0\0\0\0\0[]", "wrong_format"),
        ("a header of 2**40 bytes", struct.pack("<Q", 1 << 40) + b"{}", "wrong_format"),
        ("another format", crafted(format="coterie-update-0"), "wrong_format"),
        ("another task", crafted(task="task_x"), "wrong_task"),
        ("another plan", crafted(plan="ac" * 32), "wrong_plan"),
        ("another base", crafted(base="ce" * 32), "wrong_base"),
        ("negative weight", crafted(weight=-1), "bad_weight"),
        ("fractional weight", crafted(weight=0.5), "bad_weight"),
        ("negative steps", crafted(steps=-1), "bad_steps"),
        ("of two clients", crafted(clients=2), "bad_clients"),
        ("an accumulator", crafted(kind="accumulator"), "wrong_kind"),
        ("another kind", crafted(kind="average"), "wrong_format"),
        ("a section absent", crafted(metrics=None, sections=header["sections"][:1]), "missing_section"),
        ("another length", crafted(sections=sections(length=11)), "wrong_length"),
        ("an unknown codec", crafted(sections=sections(codec="zip")), "unknown_codec"),
        ("float64 for a slice", crafted(sections=sections(codec="float64")), "unknown_codec"),
        ("a short payload", crafted(DELTA[1:].tobytes()), "truncated"),
        ("a long payload", crafted(DELTA.tobytes() + b"\0"), "too_large"),
        ("NaN", crafted(np.where(DELTA == 0, np.float32(np.nan), DELTA).tobytes()), "not_finite"),
        ("out of range", crafted(np.where(DELTA == 8, np.float32(8.5), DELTA).tobytes()), "out_of_range"),
    ]
    return {
        "title": "update files",
        "provenance": MADE,
        "how": "read `file` against `specs`, expecting `names`; compare header and decoded sections (float32, and "
        "float64 for metrics, little-endian hex); encoding the same values gives the same file",
        "specs": [to_json(spec) for spec in SPECS],
        "names": NAMES,
        "vectors": {"delta": DELTA.tobytes().hex(), "metrics": METRICS.tobytes().hex()},
        "cases": [
            {
                "codec": codec,
                "weight": 32,
                "steps": 4,
                "file": data.hex(),
                "sha256": sha256_hex(data),
                "delta": read_update(data, SPECS).decode("delta").tobytes().hex(),
                "metrics": METRICS.tobytes().hex(),
            }
            for codec, data in good.items()
        ],
        "refused": [{"name": name, "file": data.hex(), "code": code} for name, data, code in wrong],
    }


def signatures() -> Json:
    plan = PlanRef(id="ab" * 32, signature=sign_plan(RESEARCHER, "ab" * 32), signer=RESEARCHER.public)
    task = Task(
        id=NAMES["task"],
        device="dev_017f22e279b070008000000000000002",
        experiment="exp_017f22e279b070008000000000000003",
        round=3,
        kind="train",
        plan=plan,
        model=BlobRef(sha256="cd" * 32, size=1000),
        frozen=None,
        hyper={"lr": 1.0, "mu": 1e-7},
        codecs=("int8", "float32"),
        lease_ms=60_000,
        weight_cap=500,
        upload_limit=10_000,
        seed=7,
        edge=None,
        secure=None,
        privacy=None,
    )
    newer = Task.model_validate({**task.model_dump(mode="json"), "attempt": {"number": 1.0, "name": "\u20ac"}})
    signed = [item.signed(COORDINATOR) for item in (task, newer)]
    first = signed[0].signature
    message = Domain.TASK.value + signed[0].signed_bytes()
    return {
        "title": "Ed25519 signatures over tasks and plans",
        "provenance": f"seeds and public keys: RFC 8032 section 7.1, TEST 1 and TEST 2; the rest {MADE}",
        "how": "messages are hex with their domain; a task's message is the canonical JSON of all its fields but "
        "`signature`; the refused signatures must not verify",
        "keys": [{"seed": seed, "public": public} for public, seed in SEEDS.items()],
        "tasks": [
            {
                "public": COORDINATOR.public,
                "task": item.model_dump(mode="json"),
                "message": (Domain.TASK.value + item.signed_bytes()).hex(),
            }
            for item in signed
        ],
        "plans": [
            {
                "public": RESEARCHER.public,
                "plan": plan.id,
                "message": (Domain.PLAN.value + plan.id.encode()).hex(),
                "signature": plan.signature,
            }
        ],
        "refused": [
            {"name": name, "public": public, "message": text.hex(), "signature": signature, "code": "signature_invalid"}
            for name, public, text, signature in (
                ("another key", RESEARCHER.public, message, first),
                ("another round", COORDINATOR.public, message.replace(b'"round":3', b'"round":4'), first),
                ("another domain", COORDINATOR.public, message.replace(b"coterie task", b"coterie plan", 1), first),
                ("a signature cut", COORDINATOR.public, message, first[:-4]),
                ("no signature", COORDINATOR.public, message, ""),
                ("base64 for URLs", COORDINATOR.public, message, first.replace("+", "-").replace("/", "_")[:-2]),
                ("a key in capitals", COORDINATOR.public.upper(), message, first),
                ("a changed task", COORDINATOR.public, Domain.TASK.value + task.signed_bytes(), signed[1].signature),
            )
        ],
    }


TEXT_FEATURE: Json = {"encoding": "utf-8", **to_json(Feature(name="city", dtype="uint8", shape=(8,), encoding="utf-8"))}


def texts() -> Json:
    cells = ["Ulm", " Bonn ", "", None, "K\u00f6ln", "ABCDEFGHI", "007", 7, 7.0, 7.5, 1e-7, -0.0, True, "\u6771\u4eac"]
    vocabulary = ("Bonn", "7", "007", "true", "1e-7")
    return {
        "title": "Cells of text as a schema reads them: bytes, and places in a vocabulary.",
        "provenance": "coterie's own definition; numbers as RFC 8785 writes them.",
        "how": "strip spaces at the ends of `cell` and take its `text`; its UTF-8 bytes with zeros up to `length` are "
        "`bytes`, all zeros where they are more; `place` is that in the vocabulary, from 1, or 0. Refuse the others.",
        "length": 8,
        "vocabulary": list(vocabulary),
        "cells": [
            {
                "cell": cell,
                "text": (text := (texts_of(np.array([cell], object)) or [""])[0]),
                "bytes": as_bytes([text], 8).tobytes().hex(),
                "place": int(as_places([text], vocabulary)[0]),
            }
            for cell in cells
        ],
        "refused": [
            {"feature": {**TEXT_FEATURE, **changes}, "code": "schema_invalid"}
            for changes in (
                {"encoding": "latin-1"},
                {"encoding": None},
                {"vocabulary": ["a"]},
                {"dtype": "int32"},
                {"high": 3},
                {"columns": ["a", "b"]},
            )
        ],
    }


def spreads_of_clients() -> Json:
    metrics = ("examples", "loss", "accuracy")
    cases = {
        "a mean on the grid": (4.0, 2.0, 3.0),
        "a mean halfway between two values goes to the lower": (256.0, 128.0, 129.0),
        "zero and one": (8.0, 0.0, 8.0),
        "below zero": (2.0, -3.0, 0.5),
        "beyond both ends": (1.0, 1e9, -1e9),
        "a thousandth": (1000.0, 1.0, 999.0),
    }

    def places(sums: tuple[float, ...]) -> list[int]:
        counts = spread.histogram(metrics, MetricSums.from_vector(metrics, np.array(sums)))
        return [int(place) for place in np.argmax(counts.reshape(2, -1), axis=1)]

    return {
        "title": "Where a client counts itself in an evaluation",
        "provenance": MADE,
        "how": "build the grid (see coterie.protocol.spread) and compare its values; divide each sum but the first by "
        "the first, and find the nearest value of the grid, the lower of two; `places` are its numbers from 0. The "
        "section is for each metric but `examples` as many float32 as the grid has values, 1 at the place, else 0.",
        "grid": [float(value) for value in spread.GRID],
        "metrics": list(metrics),
        "cases": [{"name": name, "sums": list(sums), "places": places(sums)} for name, sums in cases.items()],
        "refused": [
            {"name": name, "counts": counts, "code": "metric_invalid"}
            for name, counts in (
                ("nobody counts", {}),
                ("only one metric counts", {"100": 1.0}),
                ("a metric counts twice", {"100": 1.0, "101": 1.0, "600": 1.0}),
                ("half a client", {"100": 0.5, "101": 0.5, "600": 1.0}),
                ("two clients", {"100": 2.0, "600": 2.0}),
            )
        ],
    }


def lineages() -> Json:
    names: Json = {"experiment": "exp_017f22e279b070008000000000000003", "plan": "ab" * 32}
    other_plan = {**names, "plan": "ac" * 32}
    # Round 2 was abandoned.
    links = [LineageLink(round=number, version=f"{10 + number:02x}" * 32) for number in (0, 1, 3, 4)]
    chain = [
        {
            "round": link.round,
            "version": link.version,
            "before": fold(GENESIS, links[:place], **names),
            "head": fold(GENESIS, links[: place + 1], **names),
        }
        for place, link in enumerate(links)
    ]
    forked = [*links[:2], LineageLink(round=3, version="ff" * 32), links[3]]
    candidate = "5a" * 32

    def place(number: int, of: list[LineageLink] = links, plan: Json = names) -> Json:
        ending = [link for link in of if link.round <= number]
        return {"plan": plan["plan"], "round": number, "head": fold(GENESIS, ending, **plan)}

    def task(number: int, of: list[LineageLink] = links, **changes: Any) -> Json:
        before = fold(GENESIS, [link for link in of if link.round < number], **names)
        version = next((link.version for link in of if link.round == number), candidate)
        lineage = {"round": number, "before": before}
        asked = {"kind": "train", "secure": False, "plan": names["plan"], "version": version, "lineage": lineage}
        return asked | changes

    def case(name: str, seen: Json | None, asked: Json, told: list[LineageLink] = links, **more: Any) -> Json:
        return {"name": name, "seen": seen, "task": asked, "links": [link.model_dump() for link in told], **more}

    evaluation: Json = {"kind": "evaluate", "version": candidate}
    silent: Json = {"lineage": None}
    later: Json = {"lineage": {"round": 0, "before": "cd" * 32}}
    crafted: Json = {"version": "ee" * 32}
    moved: Json = {"plan": other_plan["plan"]}
    return {
        "title": "The chain of an experiment's versions",
        "provenance": MADE,
        "how": "each `head` is the hex of SHA-256 over `domain` and the canonical JSON of before, experiment, plan, "
        "round and version. A device that remembers `seen` is given `task`, and of `links` those after the round that "
        "it asks for, in one answer; it takes the tasks of `cases`, and remembers `remembers`, and refuses the others",
        "domain": DOMAIN.decode(),
        **names,
        "chain": chain,
        "cases": [
            case("the first sight", None, task(3), remembers=place(3)),
            case("the initial version", None, task(0), remembers=place(0)),
            case("the same version again", place(3), task(3), remembers=place(3)),
            case("the next version", place(3), task(4), [], remembers=place(4)),
            case("two versions later", place(1), task(4), remembers=place(4)),
            case("an earlier version", place(4), task(1), remembers=place(4)),
            case("a candidate, held to the chain", place(1), task(5, **evaluation), remembers=place(1)),
            case("no history, in clear, and none known", None, task(3, **silent), remembers=None),
        ],
        "refused": [
            case(name, seen, asked, told, code="lineage_broken")
            for name, seen, asked, told in (
                ("no history where one is known", place(1), task(3, **silent), links),
                ("no history under secure aggregation", None, task(3, secure=True, **silent), links),
                ("something before the initial version", None, task(0, **later), links),
                ("the same round, another version", place(3), task(3, **crafted), links),
                ("the next version of a fork", place(3), task(4, forked), forked),
                ("a later version of a fork, told as the true chain", place(3), task(4, forked), links),
                ("a version that was left out", place(0), task(4, [*links[:2], links[3]]), links),
                ("set back: an earlier version, and no links to the one seen", place(4), task(1), links[:2]),
                ("set back, and gone on otherwise", place(3), task(4, forked), forked),
                ("another plan", place(3), task(4, **moved), links),
                ("a candidate of a fork", place(3), task(5, forked, **evaluation), forked),
                ("links that do not rise", place(1), task(4), [links[1]]),
            )
        ],
    }


FILES = {
    "lineage.json": lineages,
    "canonical.json": canonical,
    "layout.json": layouts,
    "codecs.json": codecs,
    "update.json": updates,
    "signatures.json": signatures,
    "spread.json": spreads_of_clients,
    "texts.json": texts,
}


def rendered() -> dict[str, str]:
    """File name → content, as it is committed."""
    return {name: json.dumps(make(), indent=1, allow_nan=False) + "\n" for name, make in FILES.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file_name, content in rendered().items():
        (FOLDER / file_name).write_text(content, encoding="ascii")
