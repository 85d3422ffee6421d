"""docs/algorithms.md has a row for every method, and every command in it is one of a benchmark or of tests."""

import re
import runpy
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from coterie.aggregation.horizontal import ALGORITHMS
from coterie.aggregation.methods import METHODS
from coterie.aggregation.reducers.text import RULES, STEPS
from coterie.aggregation.selection import SELECTORS
from coterie.aggregation.server_optimizers import SERVER_OPTIMIZERS
from coterie.protocol.codecs import FAMILIES, parse
from coterie.simulation import partition

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ")]


def script(name: str) -> dict[str, Any]:
    """A benchmark's names. Started as a program it finds the modules beside it."""
    with patch.object(sys, "path", [str(ROOT / "benchmarks"), *sys.path]):
        return runpy.run_path(str(ROOT / "benchmarks" / f"{name}.py"))


def asked_of(name: str) -> set[str]:
    """What the page's commands give a script by ``--only``."""
    given = re.findall(rf"`python benchmarks/{name}\.py --only ([^`]+)`", PAGE)
    return {word.strip("'\"") for words in given for word in words.split()}


BENCHMARK = script("methods")
NAMES = {*BENCHMARK["METHODS"], *BENCHMARK["BASELINES"]}


def test_every_command_of_the_page_is_one_of_the_benchmark_and_every_method_has_one() -> None:
    commands = set(re.findall(r"benchmarks/methods\.py --method ([a-z-]+)", PAGE))
    assert commands == NAMES
    assert set(ALGORITHMS) <= commands
    assert {f"fed{name}" for name in SERVER_OPTIMIZERS if name != "sgd"} <= commands


@pytest.mark.parametrize("name", sorted(NAMES))
def test_its_task_is_an_experiment(name: str) -> None:
    """What a method needs is set, so that none is refused."""
    wanted = BENCHMARK["experiment"](name, 2)
    assert wanted.name == f"methods-{name}" and (name not in ALGORITHMS or wanted.algorithm.name in (name, "fedavg"))


def test_every_reducer_and_step_has_a_row_and_a_command() -> None:
    asked = asked_of("robust")
    assert asked <= set(script("robust")["REDUCERS"])
    parts = {part.partition("(")[0] for text in asked for part in re.split(r"\+(?=[a-z])", text)}
    assert parts == {*RULES, *STEPS}


def test_every_selection_has_a_row() -> None:
    assert {name for name in SELECTORS if any(row.startswith(f"| `{name}") for row in ROWS)} == set(SELECTORS)


def test_every_codec_has_a_row_and_a_command() -> None:
    asked = asked_of("codecs")
    families = {re.split(r"[:(]", piece)[0] for name in asked for piece in parse(name).name.split("+")}
    # float64 is for sums alone.
    assert families == set(FAMILIES) - {"float64"}


def test_every_partitioner_has_a_row_and_a_command() -> None:
    made = script("partitions")["PARTITIONS"]
    assert asked_of("partitions") == set(made)
    helpers = {"Change", "Partition", "RowIndices", "split"}
    changes = {"Noise": "noise", "Turns": "turns", "LabelNoise": "label_noise"}
    assert {changes.get(name, name) for name in set(partition.__all__) - helpers} == set(made)


def test_every_question_has_a_row_and_a_command() -> None:
    assert asked_of("analytics") == set(script("analytics")["QUERIES"]) == set(METHODS) - set(ALGORITHMS)


def test_what_the_page_has_from_tests_is_there() -> None:
    paths = [path for words in re.findall(r"`python -m pytest ([^`]+)`", PAGE) for path in words.split()]
    assert paths and all((ROOT / path).is_file() for path in paths)


def test_the_index_names_every_section_in_order() -> None:
    prose = re.sub(r"^```.*?^```", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    sections = re.findall(r"^## (.+)$", prose, flags=re.MULTILINE)
    anchors = [re.sub(r"[^a-z -]", "", title.lower()).replace(" ", "-") for title in sections]
    assert re.findall(r"^- \[([^]]+)\]\(#([a-z-]+)\)", PAGE, flags=re.MULTILINE) == list(
        zip(sections, anchors, strict=True)
    )
