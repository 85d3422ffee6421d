"""`coterie evaluate` as a user meets it: tables, JSON, a partner's worth, and mistakes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Coterie

from coterie.aggregation.evaluation.evaluation import evaluate_classes, stability
from coterie.aggregation.evaluation.partner_value import partner_value
from coterie.cli.failures import BAD_INPUT, USAGE

ROWS = 400


def columns() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    default = (rng.random(ROWS) < 0.3).astype(int)
    alone = np.round(1 / (1 + np.exp(-rng.normal(size=ROWS) - default)), 4)
    joint = np.round(np.clip(alone + 0.2 * default, 0, 1), 4)
    return {"default": default, "alone": alone, "joint": joint, "held": (np.arange(ROWS) % 2)}


def write(path: Path, **named: Any) -> None:
    lines = [",".join(named), *(",".join(map(str, row)) for row in zip(*named.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    found = columns()
    write(tmp_path / "joint.csv", default=found["default"], chance=found["joint"], held=found["held"])
    write(tmp_path / "alone.csv", default=found["default"], chance=found["alone"])
    return found


def test_figures_of_both_sides_and_a_partners_worth(coterie: Coterie, files: dict[str, Any]) -> None:
    words = ("evaluate", "joint.csv", "--label", "default", "--score", "chance", "--held-out", "held")
    words = (*words, "--alone", "alone.csv", "--threshold", "0.4", "--bands", "5")
    done = coterie(*words)
    assert done.code == 0, done.err
    head, *lines = done.out.splitlines()
    assert head.split("  ")[-2:] == ["train", "held out"]
    held = files["held"] == 1
    label, joint, alone = files["default"], files["joint"], files["alone"]
    expected = evaluate_classes(joint[held], label[held], bands=5, thresholds=(0.4,))
    assert next(line for line in lines if line.startswith("auc ")).split()[2] == f"{expected.auc:.4f}"
    assert "auc on 200 rows:" in done.out and "held out, by bands of scores" in done.out
    printed = [json.loads(line) for line in coterie(*words, "--json").out.splitlines()]
    assert [line.pop("event") for line in printed] == ["evaluation", "evaluation", "stability", "partner_value"]
    assert [line.pop("part") for line in printed[:2]] == ["train", "held out"] and printed[1] == expected.to_json()
    assert printed[2]["index"] == stability(joint[~held], joint[held], bands=5)
    scores = {False: alone[held], True: joint[held]}
    value = partner_value(lambda coalition: scores[bool(coalition)], ("partner",), label[held])
    assert printed[3] == value.to_json() and value.gain.is_clear


def test_all_rows_of_a_file_and_labels_that_are_numbers(coterie: Coterie, files: dict[str, Any]) -> None:
    done = coterie("evaluate", "joint.csv", "--label", "default", "--score", "chance", "--json")
    (line,) = map(json.loads, done.out.splitlines())
    assert line["part"] == "all" and line["rows"] == ROWS
    done = coterie(
        "evaluate", "joint.csv", "--label", "default", "--score", "chance", "--numbers", "--alone", "alone.csv",
        "--metric", "mae", "--json",
    )  # fmt: skip
    first, value = map(json.loads, done.out.splitlines())
    error = np.abs(files["joint"] - files["default"]).mean()
    assert first["mae"] == pytest.approx(error) and value["joint"] == pytest.approx(error)
    assert value["gain"]["value"] == pytest.approx(value["alone"] - value["joint"])


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("joint.csv", "--score", "chanse"), "data_missing", "Did you mean chance?"),
        (("nowhere.csv",), "data_missing", "nowhere.csv"),
        (("empty.csv",), "data_empty", "empty.csv"),
        (("nothing.csv",), "data_empty", "nothing.csv"),
        (("text.csv",), "data_cell", "text.csv: column 'chance' holds no number in row 1"),
        (("cell.csv",), "data_cell", "row 2"),
        (("gap.csv",), "data_cell", "gap.csv: score 'chance': row 2 has no finite number"),
        (("three.csv",), "data_cell", "three.csv: label 'default': row 2 is not 0 or 1"),
        (("one.csv",), "data_classes", "label 'default' is 1 in every row."),
        (("joint.csv", "--held-out", "default"), "usage", "different columns"),
        (("sides.csv", "--held-out", "held"), "data_classes", "label 'default' is 0 in every row of train"),
        (("same.csv", "--held-out", "held"), "data_classes", "column 'held' is 1 in every row"),
        (("joint.csv", "--held-out", "chance"), "usage", "different columns"),
        (("half.csv", "--held-out", "held"), "data_cell", "half.csv: column 'held': row 2 is not 0 or 1"),
        (("joint.csv", "--alone", "gap.csv"), "data_cell", "gap.csv: score 'chance': row 2"),
        (("joint.csv", "--alone", "sides.csv"), "data_lengths", "joint.csv has 400 rows, and sides.csv 2"),
        (("sides.csv", "--alone", "turned.csv"), "rows_differ", "label 'default' differs in row 1"),
        (("joint.csv", "--alone", "alone.csv", "--metric", "briar"), "usage", "Did you mean brier?"),
        (("joint.csv", "--alone", "alone.csv", "--metric", "rmse"), "usage", "no metric 'rmse' of classes"),
        (("joint.csv", "--metric", "auc"), "usage", "without --alone"),
    ],
)
def test_mistakes_are_named(
    coterie: Coterie, tmp_path: Path, files: dict[str, Any], words: tuple[str, ...], code: str, says: str
) -> None:
    for name, rows in {
        "empty": (),
        "text": ("0,low,1", "1,high,0"),
        "cell": ("0,0.1,1", "1,high,0"),
        "gap": ("0,0.1,1", "1,,0"),
        "three": ("0,0.1,1", "2,0.2,0"),
        "one": ("1,0.1,1", "1,0.2,0"),
        "sides": ("0,0.1,0", "1,0.2,1"),
        "turned": ("1,0.1,0", "0,0.2,1"),
        "half": ("0,0.1,1", "1,0.2,0.5"),
        "same": ("0,0.1,1", "1,0.2,1"),
    }.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(["default,chance,held", *rows]) + "\n", encoding="utf-8")
    (tmp_path / "nothing.csv").touch()
    usual = ("--label", "default", *(() if "--score" in words else ("--score", "chance")))
    done = coterie("evaluate", *words, *usual, "--json")
    assert done.code == (USAGE if code == "usage" else BAD_INPUT), done.err
    refused = json.loads(done.out.splitlines()[-1])
    assert refused["code"] == code and says in f"{refused['message']} {refused['hint']}", refused
