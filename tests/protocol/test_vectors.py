"""The committed vectors are current, and this SDK passes them as any other must: from the files alone."""

import base64
import hashlib
import json
import runpy
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from coterie import errors
from coterie.aggregation.plan.manifest import Manifest
from coterie.protocol.canonical import canonical_json, parse_json, sha256_hex
from coterie.protocol.codecs import FAMILIES, NO_STATE, Keys, Shape, families, parse
from coterie.protocol.conversion import from_json, to_json
from coterie.protocol.device import Task
from coterie.protocol.layout import Layout
from coterie.protocol.lineage import LineageLink, head
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.sections import SectionSpec
from coterie.protocol.signing import Domain, SigningKey, verify, verify_plan
from coterie.protocol.update import REFUSALS, encode_update, read_update

FOLDER = Path(__file__).parents[2] / "protocol" / "vectors"
FILES: dict[str, Any] = {path.stem: json.loads(path.read_text("ascii")) for path in sorted(FOLDER.glob("*.json"))}


def cases(file: str, *keys: str) -> list[Any]:
    return [
        pytest.param(case, id=f"{file}-{key}-{case.get('name', '')}-{case.get('codec', '')}-{index}")
        for key in keys
        for index, case in enumerate(FILES[file][key])
    ]


def floats(text: str, codec: str = "float32") -> Any:
    return np.frombuffer(bytes.fromhex(text), parse(codec).dtype)


GENERATORS = (
    "protocol/make_vectors.py",
    "protocol/make_http_vectors.py",
    "protocol/make_training_vectors.py",
    "privacy/make_secagg_vectors.py",
    "privacy/make_secagg_transcript.py",
    "privacy/make_noise_vectors.py",
    "privacy/make_session_vectors.py",
    "client_sdk/make_lies.py",
    "client_sdk/make_plan_vectors.py",
)


def test_the_committed_files_are_those_that_the_generators_make() -> None:
    made: dict[str, str] = {}
    for generator in GENERATORS:
        made |= runpy.run_path(str(Path(__file__).parents[1] / generator))["rendered"]()
    assert set(made) == {path.name for path in FOLDER.glob("*.json")}
    for name, content in made.items():
        assert (FOLDER / name).read_text("ascii") == content, f"run the generators {GENERATORS}: {name} differs"


@pytest.mark.parametrize("file", FILES.values(), ids=FILES.keys())
def test_every_file_says_what_it_is_where_from_and_what_must_fail(file: Any) -> None:
    assert file["title"] and file["provenance"] and file["how"]
    refused = [case for key, items in file.items() if key.startswith("refused") for case in items]
    assert refused and all(case["code"] for case in refused)


@pytest.mark.parametrize("case", cases("plan", "cases"))
def test_the_update_of_a_whole_training(case: Any) -> None:
    manifest = Manifest.from_bytes(canonical_json({**FILES["plan"]["manifest"], "training": case["training"]}))
    data = bytes.fromhex(case["update"])
    update = read_update(data, manifest.sections)
    header = update.header
    assert manifest.id == header.plan == case["plan"]
    assert header.base == sha256_hex(bytes.fromhex(FILES["plan"]["version"]))
    assert (header.weight, header.steps, sha256_hex(data)) == (case["weight"], case["steps"], case["sha256"])
    assert dict(zip(manifest.metrics, update.decode("metrics").tolist(), strict=True)) == case["metrics"]


@pytest.mark.parametrize("case", cases("plan", "refused_manifests"))
def test_manifests_that_must_be_refused(case: Any) -> None:
    with pytest.raises(errors.PlanRefused) as caught:
        Manifest.from_bytes(canonical_json({**FILES["plan"]["manifest"], **case["change"]}))
    assert caught.value.reason == case["code"]


@pytest.mark.parametrize("case", cases("lineage", "chain"))
def test_heads_of_versions(case: Any) -> None:
    file = FILES["lineage"]
    said = {name: case.get(name) or file.get(name, 0) for name in ("before", "experiment", "plan", "round", "version")}
    assert hashlib.sha256(file["domain"].encode() + canonical_json(said)).hexdigest() == case["head"]
    link = LineageLink(round=case["round"], version=case["version"])
    assert head(case["before"], link, experiment=file["experiment"], plan=file["plan"]) == case["head"]


@pytest.mark.parametrize("case", cases("canonical", "numbers"))
def test_numbers(case: Any) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(case["bits"]))
    assert canonical_json(number).decode() == case["text"]


@pytest.mark.parametrize("case", cases("canonical", "cases"))
def test_canonical_bytes(case: Any) -> None:
    data = canonical_json(parse_json(case["input"].encode()))
    assert (data.decode(), sha256_hex(data)) == (case["output"], case["sha256"])


@pytest.mark.parametrize("case", cases("canonical", "refused"))
def test_json_that_must_be_refused(case: Any) -> None:
    with pytest.raises(errors.InputError) as caught:
        canonical_json(parse_json(case["input"].encode()))
    assert caught.value.reason == case["code"]


def test_layout_and_schema() -> None:
    file = FILES["layout"]
    layout = from_json(Layout, file["layout"], code="layout_invalid")
    assert (layout.size, dict(layout.offsets), layout.digest) == (file["size"], file["offsets"], file["digest"])
    assert layout.digest == sha256_hex(canonical_json(file["layout"]))
    for case in file["segments"]:
        assert list(layout.segments(case["slices"])) == case["segments"]
        assert list(layout.rows(case["slices"])) == case["rows"]
    assert DataSchema.from_json(file["schema"]).digest == file["schema_digest"]


@pytest.mark.parametrize("case", cases("texts", "cells"))
def test_a_cell_of_text(case: Any) -> None:
    file = FILES["texts"]
    length, vocabulary = file["length"], tuple(file["vocabulary"])
    features = (
        Feature(name="bytes", dtype="uint8", shape=(length,), encoding="utf-8", columns=("cell",)),
        Feature(name="place", dtype="int32", vocabulary=vocabulary, columns=("cell",)),
    )
    for feature in features:
        schema = DataSchema((feature,), Label(name="none", constant=0))
        read = schema.check({"cell": np.array([case["cell"]], object)}, "the vector")[feature.name][0]
        assert (read.tobytes().hex() if feature.encoding else read) == case[feature.name]


@pytest.mark.parametrize("case", cases("texts", "refused"))
def test_a_reading_of_text_that_must_be_refused(case: Any) -> None:
    label = to_json(Label(name="none", constant=0))
    with pytest.raises(errors.ConfigurationError) as caught:
        DataSchema.from_json({"features": [case["feature"]], "label": label})
    assert caught.value.reason == case["code"]


@pytest.mark.parametrize("case", cases("layout", "refused"))
def test_layouts_that_must_be_refused(case: Any) -> None:
    with pytest.raises(errors.InputError) as caught:
        from_json(Layout, case["layout"], code="layout_invalid")
    assert caught.value.reason == case["code"]


KEYS = Keys.of(**FILES["codecs"]["header"])


def test_codec_seeds_and_streams() -> None:
    seeds = FILES["codecs"]["seeds"]
    assert (KEYS.own.hex(), KEYS.shared.hex()) == (seeds["own"], seeds["shared"])
    for case in FILES["codecs"]["streams"]:
        seed = hashlib.sha256(KEYS.own + case["label"].encode()).digest()
        counter = (case["start"] // 16).to_bytes(16, "big")
        whole = Cipher(algorithms.AES(seed), modes.CTR(counter)).encryptor().update(bytes(64))
        skip = case["start"] % 16
        assert (seed.hex(), whole[skip : skip + 40].hex()) == (case["seed"], case["bytes"])


@pytest.mark.parametrize("case", cases("codecs", "cases"))
def test_codec(case: Any) -> None:
    codec, shape = parse(case["codec"]), Shape(tuple(case["segments"]), tuple(case["rows"]))
    payload, size = bytes.fromhex(case["payload"]), shape.length
    assert codec.decode(payload, KEYS, shape, 0, size).tobytes().hex() == case["decoded"]
    assert codec.decode(payload, KEYS, shape, 1, size - 1).tobytes().hex() == case["decoded_from_1_to_minus_1"]
    vector = floats(case["vector"], codec.name)
    made, _ = codec.encode(vector, KEYS, shape, NO_STATE)
    if case["exact"]:
        assert made.hex() == case["payload"]
    exact = vector.astype(np.float64)
    error = float(((codec.decode(made, KEYS, shape, 0, size).astype(np.float64) - exact) ** 2).sum())
    assert error <= 1.05 * case["squared_error"] + 1e-9 * float((exact**2).sum())


@pytest.mark.parametrize("case", cases("codecs", "long"))
def test_long_codec_payload(case: Any) -> None:
    codec, shape = parse(case["codec"]), Shape.flat(*case["segments"])
    decoded = codec.decode(bytes.fromhex(case["payload"]), KEYS, shape, 0, shape.length)
    assert sha256_hex(decoded.tobytes()) == case["decoded_sha256"]


@pytest.mark.parametrize("case", cases("codecs", "refused_payloads", "refused_vectors"))
def test_codec_input_that_must_be_refused(case: Any) -> None:
    codec, shape = parse(case["codec"]), Shape.flat(*case["segments"])
    with pytest.raises(errors.UpdateRefused) as caught:
        if "payload" in case:
            codec.decode(bytes.fromhex(case["payload"]), KEYS, shape, 0, shape.length)
        else:
            codec.encode(floats(case["vector"], codec.name), KEYS, shape, NO_STATE)
    assert caught.value.reason == case["code"]


def test_every_family_of_codecs_has_vectors() -> None:
    seen = {family for case in FILES["codecs"]["cases"] for family in families(case["codec"])}
    # Error feedback changes what is encoded, not how.
    assert seen == set(FAMILIES) - {"ef"}


SPECS = [from_json(SectionSpec, spec, code="section_invalid") for spec in FILES["update"]["specs"]]


@pytest.mark.parametrize("case", cases("update", "cases"))
def test_update_file(case: Any) -> None:
    file = FILES["update"]
    data = bytes.fromhex(case["file"])
    update = read_update(data, SPECS, **file["names"])
    update.check_finite()
    assert (update.header.weight, update.header.steps) == (case["weight"], case["steps"])
    assert update.header.section("delta").codec == case["codec"]
    for name in ("delta", "metrics"):
        assert update.decode(name).tobytes().hex() == case[name]
    sections = {
        "delta": floats(file["vectors"]["delta"]),
        "metrics": floats(file["vectors"]["metrics"], "float64"),
    }
    again = encode_update(
        **file["names"], weight=32, steps=4, specs=SPECS, sections=sections, codecs={"delta": case["codec"]}
    ).data
    assert again == data and sha256_hex(data) == case["sha256"]


@pytest.mark.parametrize("case", cases("update", "refused"))
def test_updates_that_must_be_refused(case: Any) -> None:
    with pytest.raises(errors.UpdateRefused) as caught:
        read_update(bytes.fromhex(case["file"]), SPECS, **FILES["update"]["names"]).check_finite()
    assert caught.value.reason == case["code"]


def test_the_update_vectors_show_every_cause_that_a_file_can_show() -> None:
    shown = {case["code"] for case in FILES["update"]["refused"]}
    # An unknown section needs another plan, a part a rule; malformed payloads are among the vectors of codecs.
    assert set(REFUSALS) - shown == {"unknown_section", "malformed", "partial_update"}


def test_keys() -> None:
    for case in FILES["signatures"]["keys"]:
        assert SigningKey.from_seed(bytes.fromhex(case["seed"])).public == case["public"]


@pytest.mark.parametrize("case", cases("signatures", "tasks"))
def test_task_signature(case: Any) -> None:
    task = Task.model_validate(case["task"])
    task.verify(case["public"])
    assert (Domain.TASK.value + task.signed_bytes()).hex() == case["message"]
    plainly_verifies(case["public"], case["message"], case["task"]["signature"])
    without = {name: value for name, value in case["task"].items() if name != "signature"}
    assert Domain.TASK.value + canonical_json(without) == bytes.fromhex(case["message"])


@pytest.mark.parametrize("case", cases("signatures", "plans"))
def test_plan_signature(case: Any) -> None:
    verify_plan(case["public"], case["plan"], case["signature"])
    plainly_verifies(case["public"], case["message"], case["signature"])


@pytest.mark.parametrize("case", cases("signatures", "refused"))
def test_signatures_that_must_be_refused(case: Any) -> None:
    data = bytes.fromhex(case["message"])
    domain = next(domain for domain in Domain if data.startswith(domain.value))
    with pytest.raises(errors.Unauthenticated) as caught:
        verify(case["public"], domain, data.removeprefix(domain.value), case["signature"])
    assert caught.value.reason == case["code"]


def plainly_verifies(public: str, message: str, signature: str) -> None:
    """The signature verifies with the bare primitive over the message as the file gives it."""
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
    key.verify(base64.b64decode(signature), bytes.fromhex(message))
