"""A client in JavaScript, on WebCrypto alone, passes the vectors of secure aggregation.

`webcrypto/` does what docs/security.md says under "The bytes". Where no Node.js is installed that has X25519 and
Ed25519 in WebCrypto (20 and 24 have) the tests are skipped; with COTERIE_REQUIRE_NODE they fail.
"""

import importlib.util
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie.privacy.secagg.roster import model_digest
from coterie.protocol.device import Task
from coterie.protocol.secagg import SecureTerms
from tests.node_js import node

ROOT = Path(__file__).resolve().parents[3]
VECTORS = ROOT / "protocol" / "vectors"
FOLDER = Path(__file__).parent / "webcrypto"
LIBRARY = sorted(path.name for path in FOLDER.glob("*.mjs") if path.name != "driver.mjs")
LISTS = ("secagg_graphs", "secagg_keys", "secagg_shares", "secagg_masks")
TEXTS = {
    "secagg_keys": (("context", "bound"), ("agreements", "secret"), ("derived", "key"), ("boxes", "box")),
    "secagg_masks": (("streams", "words"), ("masked", "packed")),
    "codecs": (("streams", "bytes"),),
}
NOISE = ("distributed_noise.bounds", "distributed_noise.spreads", "distributed_noise.encodings")
Report = dict[str, dict[str, Any]]


def _groups(file: str) -> dict[str, list[Any]]:
    """The lists of cases in a file of vectors."""
    whole: dict[str, Any] = json.loads((VECTORS / f"{file}.json").read_text(encoding="utf-8"))
    return {group: cases for group, cases in whole.items() if isinstance(cases, list)}


EXPECTED = {f"{file}.{group}": len(cases) for file in LISTS for group, cases in _groups(file).items()}


@pytest.fixture(scope="module")
def run() -> Callable[..., Any]:
    """The driver over a folder of vectors, and what it prints."""
    found = node()

    def driver(vectors: Path, *words: str) -> Any:
        done = subprocess.run(
            [found, str(FOLDER / "driver.mjs"), str(vectors), *words], capture_output=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stderr.decode()[-2000:]
        return json.loads(done.stdout)

    return driver


@pytest.fixture(scope="module")
def report(run: Callable[..., Any]) -> Report:
    return run(VECTORS)


@pytest.mark.parametrize("group", EXPECTED)
def test_every_case_of_the_vectors_passes(group: str, report: Report) -> None:
    assert report[group] == {"tried": EXPECTED[group], "failed": []}


def test_it_plays_each_client_of_the_transcript_in_both_modes(report: Report) -> None:
    transcript = json.loads((VECTORS / "secagg_transcript.json").read_text(encoding="utf-8"))
    sessions = transcript["sessions"].values()
    tried = sum(len(session["clients"]) + 1 for session in sessions) + len(transcript["refused"])
    assert report["secagg_transcript"] == {"tried": tried, "failed": []}


def test_it_refuses_what_the_page_says_beyond_the_transcript(report: Report) -> None:
    assert report["checks"]["failed"] == [] and report["checks"]["tried"] > 30


def test_what_it_stands_on_passes_too(report: Report) -> None:
    others = {group: found for group, found in report.items() if group not in EXPECTED}
    assert {group.split(".")[0] for group in others} >= {"signatures", "canonical", "codecs", "distributed_noise"}
    assert [failed for found in others.values() for failed in found["failed"]] == []
    assert all(found["tried"] for found in others.values())


def _flipped(text: str) -> str:
    """Text with another last digit."""
    return text[:-1] + ("0" if text[-1] != "0" else "1")


def _changed(file: str, vectors: dict[str, Any]) -> None:
    """Change one digit in the first case of every group, in what must come out of it."""
    if file == "secagg_graphs":
        vectors["parameters"][0]["threshold"] += 1
        vectors["neighbours"][0]["neighbours"][0] += 1
        vectors["order"][0]["order"].reverse()
    elif file == "secagg_shares":
        vectors["shares"][0]["shares"][1] = _flipped(vectors["shares"][0]["shares"][1])
    elif file == "secagg_transcript":
        for session in vectors["sessions"].values():
            session["sum"][0] += 1
            for client in session["clients"]:
                client["entropy"] = _flipped(client["entropy"])
    elif file == "distributed_noise":
        vectors["bounds"][0]["square"] += 1
        vectors["spreads"][0]["spread"][0] += 1e-8
        vectors["encodings"][0]["decoded"][0] += 1e-8
    elif file == "codecs":
        first = next(case for case in vectors["cases"] if case["codec"].startswith("rotate+grid"))
        first["decoded"] = _flipped(first["decoded"])
        longest = next(case for case in vectors["long"] if case["codec"].startswith("rotate+grid"))
        longest["decoded_sha256"] = _flipped(longest["decoded_sha256"])
    for group, field in TEXTS.get(file, ()):
        vectors[group][0][field] = _flipped(vectors[group][0][field])
    for group in (name for name in vectors if name.startswith("refused") and file in LISTS):
        vectors[group][0]["code"] = "another"


def test_it_fails_on_vectors_of_which_one_digit_is_changed(tmp_path: Path, run: Callable[..., Any]) -> None:
    for path in VECTORS.glob("*.json"):
        vectors = json.loads(path.read_text(encoding="utf-8"))
        _changed(path.stem, vectors)
        (tmp_path / path.name).write_text(json.dumps(vectors), encoding="utf-8")
    found: Report = run(tmp_path)
    changed = (*EXPECTED, *NOISE, "codecs.streams", "codecs.cases", "codecs.long")
    assert {group: len(found[group]["failed"]) for group in changed} == dict.fromkeys(changed, 1)
    # The last entropy of a client of the transcript is a nonce, so the boxes of all clients change, and the sums do.
    assert len(found["secagg_transcript"]["failed"]) >= 12


def test_it_plays_every_client_of_a_ring(tmp_path: Path, run: Callable[..., Any]) -> None:
    found = importlib.util.spec_from_file_location("made", ROOT / "tests" / "privacy" / "make_secagg_transcript.py")
    assert found is not None and found.loader is not None
    made: Any = importlib.util.module_from_spec(found)
    found.loader.exec_module(made)
    few = made.terms("semi_honest")

    def terms(mode: str) -> SecureTerms:
        return few.model_copy(update={"mode": mode, "max_clients": 64})

    made.CLIENTS, made.terms = 61, terms
    session, refused = made.session("semi_honest")
    assert session["parameters"]["neighbours"] == 20
    vectors = {"sessions": {"semi_honest": session}, "refused": refused}
    (tmp_path / "secagg_transcript.json").write_text(json.dumps(vectors), encoding="ascii")
    assert run(tmp_path, "--transcript") == {"tried": 62 + len(refused), "failed": []}


def test_what_clients_must_have_been_asked_alike(run: Callable[..., Any]) -> None:
    signatures = json.loads((VECTORS / "signatures.json").read_text(encoding="utf-8"))
    asked = [model_digest(Task.model_validate(case["task"])) for case in signatures["tasks"]]
    assert len(asked) > 1 and run(VECTORS, "--models") == asked


@pytest.mark.parametrize("name", LIBRARY)
def test_it_needs_nothing_but_webcrypto(name: str) -> None:
    source = (FOLDER / name).read_text(encoding="utf-8")
    imported = re.findall(r"(?:from|import)\s*\(?[\"']([^\"']+)", source)
    assert set(imported) <= {f"./{each}" for each in LIBRARY}
    assert not re.search(r"\b(require|process|Buffer|__dirname)\b", source)
    if name != "graph.mjs":
        assert not re.search(r"\bBigInt\(|\b\d+n\b", source)


def test_masking_is_measured(run: Callable[..., Any]) -> None:
    took = run(VECTORS, "--measure")
    print(f"Masks of {took['near']} neighbours over {took['length']} coordinates, Node.js {took['node']}: {took}")
    assert took["near"] == 48 and took["masks"] > 0
