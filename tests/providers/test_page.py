"""docs/providers.md says of every environment and every row of the table what the list of proven things and the table
say.
"""

import json
import re
from pathlib import Path

import pytest

from coterie.compute.onnx.providers import PROVIDERS
from coterie.compute.runtime.conformance import ALL_RECIPES
from coterie.compute.runtime.recipes import RECIPES
from coterie.compute.runtime.step_recipes import STEPS
from tests.providers.environments import ENVIRONMENTS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "providers.md").read_text(encoding="utf-8")
_PROVED = PAGE.partition("## What was proved")[2].partition("\n## ")[0]
PROVEN = json.loads(Path(__file__).with_name("proven.json").read_text(encoding="utf-8"))
# What the page calls files of a kind.
_FILES = {"exports": "exported files", "control flow": "files with loops or choices", "float64": "of float64"}


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda environment: environment.name)
def test_the_page_says_what_was_proved(environment: object) -> None:
    name = getattr(environment, "name", "")
    (row,) = re.findall(rf"^\| `{re.escape(name)}` \|.*\|(.*)\|$", _PROVED, re.MULTILINE)
    proof = PROVEN.get(name)
    if proof is None:
        assert "nothing yet" in row
        return
    told = f"{proof['agrees']} recipes, {proof['graphs']} graphs of plans, {proof['trainings']} trainings"
    assert told in row and (f"{proof['whole']} of the graphs without the CPU" in row)
    for kind, count in proof.get("files", {}).items():
        assert f"{count} {_FILES[kind]}" in row
    # Recipes that are newer than the proof: only where it takes a device that few machines have.
    untried = proof.get("untried", [])
    assert not untried or getattr(environment, "device", "")
    for recipe in (*proof["declined"], *untried):
        assert f"*{recipe}*" in row
    assert proof["agrees"] + len(proof["declined"]) + len(untried) == len(ALL_RECIPES)


@pytest.mark.capability("G15")
def test_g15_every_row_of_the_table_is_on_the_page() -> None:
    for target, row in PROVIDERS.items():
        assert re.search(rf"^\|[^|]*`{target}`", PAGE, re.MULTILINE), target
        assert row.runtime.removesuffix("ExecutionProvider").lower() in PAGE.lower()


def test_the_page_counts_the_recipes() -> None:
    assert f"{len(RECIPES)} single rules" in PAGE and len(STEPS) == 6
