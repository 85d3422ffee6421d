"""docs/algorithms.md has a row for every method, and every command in it is one of the benchmark's."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from coterie.aggregation.horizontal import ALGORITHMS
from coterie.aggregation.server_optimizers import SERVER_OPTIMIZERS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
BENCHMARK: dict[str, Any] = runpy.run_path(str(ROOT / "benchmarks" / "methods.py"))
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
