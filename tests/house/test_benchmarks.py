"""Every benchmark prints its figures by benchmarks/lines.py, and what it prints has the fields that are promised."""

import ast
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from benchmarks.lines import Budget, Line, Peer, at_least, at_most, read, to_json, to_text
from tests.patience import patience

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SOURCES = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.py")}
# Answers the script that starts it, by a protocol of its own.
ANSWERING = {"step_peer"}
SCRIPTS = sorted(
    name for name, source in SOURCES.items() if '__name__ == "__main__"' in source and name not in ANSWERING
)
NUMBER: dict[str, Any] = {"type": ["number", "null"]}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "case": {"type": "string", "minLength": 1},
        "figure": NUMBER,
        "unit": {"type": "string", "minLength": 1},
        "peer": {
            "type": ["object", "null"],
            "properties": {"name": {"type": "string", "minLength": 1}, "figure": NUMBER},
            "required": ["name", "figure"],
            "additionalProperties": False,
        },
        "ratio": NUMBER,
        "budget": {
            "type": ["object", "null"],
            "properties": {
                "of": {"enum": ["figure", "ratio"]},
                "bound": {"enum": ["at most", "at least"]},
                "limit": {"type": "number"},
            },
            "required": ["of", "bound", "limit"],
            "additionalProperties": False,
        },
        "met": {"type": ["boolean", "null"]},
        "details": {"type": "object"},
    },
    "required": ["case", "figure", "unit", "peer", "ratio", "budget", "met", "details"],
    "additionalProperties": False,
}
# The smallest run of each that needs no data, and of each that does.
SMALL: dict[str, str] = {
    "aggregate": "--quick",
    "analytics": "--quick --only count mean",
    "audit": "--runs 1 --only gaussian_eps1",
    "check_in": "--cases bare --devices 2 --seconds 0.2",
    "codecs": "--quick --only float32 eden:4",
    "dp": "--quick",
    "import": "--only lenet_b16 --rounds 1",
    "lengths": "--only transformer --rounds 1",
    "parallel": "--only mlp_784_8_10_b16_sgd --rounds 1",
    "pipeline": "--quick --only batches",
    "private_step": "--only tiny_mlp_b16_sgd --rounds 1",
    "psi": "--sizes 500 --hashes 200",
    "providers": "--only mlp_784_128_10_b32 --environments",
    "round": "--clients 2 --parameters 1000 --over process",
    "secagg": "--clients 12 --dim 1000 --drop 0.1 --processes 1 --encode --lengths 2000",
    "simulate": "--quick --cases trivial",
    "steps_per_call": "--only tiny_mlp --groups 8 --rounds 1",
    "train_step": "--only tiny_mlp_b16_sgd --rounds 1",
    "update_door": "--quick",
    "vertical": "--task paillier --quick",
    "zoo": "--quick --rounds 1 --only logistic_regression",
}
SMALL_WITH_DATA: dict[str, str] = {
    "compressed": "--quick --codecs eden:4",
    "export": "--quick --only float16 --repeats 5",
    "fedavg_paper": "--quick --splits iid --workers 1 --rounds 1",
    "heart": "--quick --methods fedavg",
    "methods": "--quick --method fedavg",
    "partitions": "--quick --only iid",
    "private_mnist": "--quick --only central",
    "quantise": "--quick",
    "robust": "--quick --only mean --attacks none --alpha 1.0",
    "vertical": "--task trees --quick --processes 1 --cases all_rows",
    "vertical_linear": "--quick",
    "vertical_split": "--quick --only joined",
}
# Their smallest runs take a quarter of a minute; only how they print is looked at.
LONG = {"mailbox", "models", "shakespeare"}


def printed(source: str) -> Iterator[int]:
    """Lines that print on the standard output by themselves."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id="print"), keywords=keywords):
                if not any(keyword.arg == "file" for keyword in keywords):
                    yield node.lineno
            case ast.Attribute(value=ast.Name(id="sys"), attr="stdout"):
                yield node.lineno
            case _:
                pass


def called(source: str) -> set[str]:
    """Names that a script calls."""
    return {
        node.func.id
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


def run(name: str, options: str, data: Path | None = None) -> list[str]:
    """What a benchmark prints when it is started as its docstring says."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    if data is not None:
        environment["COTERIE_DATA"] = str(data)
    command = [sys.executable, str(FOLDER / f"{name}.py"), *options.split()]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, encoding="utf-8", timeout=patience(200)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def judged(line: dict[str, Any]) -> bool | None:
    """Whether the budget is met, by what the line itself says."""
    budget = line["budget"]
    found = None if budget is None else line[budget["of"]]
    if budget is None or found is None:
        return None
    return found <= budget["limit"] if budget["bound"] == "at most" else found >= budget["limit"]


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def check(texts: list[str]) -> None:
    """Every line has the fields, and the verdict that follows from them."""
    validator = Draft202012Validator(SCHEMA)
    lines: list[dict[str, Any]] = [json.loads(text, parse_constant=refuse_constant) for text in texts]
    assert lines
    for line in lines:
        validator.validate(line)
        beside = None if line["peer"] is None else line["peer"]["figure"]
        ratio = line["figure"] / beside if beside and line["figure"] is not None else None
        assert line["ratio"] == ratio
        assert line["met"] == judged(line)


def test_every_script_is_run_or_said_to_be_long() -> None:
    assert {*SMALL, *SMALL_WITH_DATA, *LONG} == set(SCRIPTS)


def test_printing_is_found() -> None:
    assert list(printed('import sys\nprint(1)\nprint(2, file=sys.stderr)\nsys.stdout.write("3")\n')) == [2, 4]


@pytest.mark.parametrize("name", sorted({*SOURCES} - {"lines"}))
def test_nothing_is_printed_but_by_lines(name: str) -> None:
    assert list(printed(SOURCES[name])) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_shows_lines_and_has_json(name: str) -> None:
    assert "show" in called(SOURCES[name]) and '"--json"' in SOURCES[name]


@pytest.mark.parametrize("name", SMALL)
def test_a_script_prints_the_promised_fields(name: str) -> None:
    check(run(name, f"{SMALL[name]} --json"))


@pytest.mark.parametrize("name", SMALL_WITH_DATA)
def test_a_script_on_data_prints_the_promised_fields(name: str, data_dir: Path) -> None:
    check(run(name, f"{SMALL_WITH_DATA[name]} --json", data_dir))


def test_people_read_text() -> None:
    (told, *more) = run("codecs", "--quick --only eden:4")
    assert told.startswith("eden:4: ") and "copy-and-add" in told and "budget ratio at most 6: " in told
    assert all(line.startswith("    ") for line in more)


def test_people_read_tables(data_dir: Path) -> None:
    heading, row, _ = run("robust", "--quick --only mean --attacks none nan --alpha 1.0", data_dir)
    assert heading.split() == ["Dirichlet", "1.0", "none", "nan"]
    rule, *cells = row.split()
    assert rule == "mean" and all(0 <= float(cell) <= 1 for cell in cells) and len(cells) == 2


@pytest.mark.parametrize(
    ("figure", "peer", "budget", "met"),
    [
        (2.0, None, at_most(2.0), True),
        (2.1, None, at_most(2.0), False),
        (2.0, None, at_least(2.0), True),
        (1.9, None, at_least(2.0), False),
        (1.0, 2.0, at_most(0.5, "ratio"), True),
        (1.1, 2.0, at_most(0.5, "ratio"), False),
        (1.1, 2.0, at_least(0.5, "ratio"), True),
        (1.0, None, at_most(0.5, "ratio"), None),
        (1.0, 0.0, at_most(0.5, "ratio"), None),
        (None, 2.0, at_most(0.5), None),
        (1.0, 2.0, None, None),
        (math.nan, None, at_least(0.5), False),
        (math.inf, None, at_most(0.5), False),
    ],
)
def test_a_budget_is_judged(figure: float | None, peer: float | None, budget: Budget | None, met: bool | None) -> None:
    assert Line("case", figure, "s", None if peer is None else Peer("peer", peer), budget).met is met


def test_a_line_comes_back_from_its_json() -> None:
    line = Line("case", 1.5, "ms", Peer("peer", 3.0), at_most(0.6, "ratio"), {"rows": 3, "each": [1.0, 2.0], "of": {}})
    check([to_json(line)])
    assert read(to_json(line)) == line


def test_numbers_that_json_lacks_are_null() -> None:
    line = json.loads(to_json(Line("case", math.nan, "ms", Peer("peer", None), details={"worst": [math.inf, 1.0]})))
    assert (line["figure"], line["peer"]["figure"], line["details"]) == (None, None, {"worst": [None, 1.0]})


def test_a_line_with_other_fields_is_refused() -> None:
    with pytest.raises(ValueError, match="A line of a benchmark has the fields case, figure"):
        read('{"case": "x", "seconds": 1.0}')


def test_text_says_whether_a_budget_is_met() -> None:
    line = Line("case", 2.0, "ms", Peer("peer", 1.0), at_most(1.0, "ratio"), {"rows": 12345, "share": 0.25})
    told = "case: 2 ms; peer 1, ratio 2; budget ratio at most 1: MISSED; rows=12345, share=0.25"
    assert to_text(line) == told
