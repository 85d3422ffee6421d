"""docs/reveals.md: a row for each thing that a step tells, by the words of reports, and tests that exist."""

import ast
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from coterie.aggregation.plan.session_manifest import KIND_BY_KEY
from coterie.aggregation.vertical.linear.terms import LinearTerms
from coterie.aggregation.vertical.trees.terms import TreeTerms
from coterie.client_sdk.party.agreement import told_by_calls
from coterie.client_sdk.party.linear_terms import told_by_linear
from coterie.client_sdk.party.tree_terms import told_by_trees
from coterie.protocol.disclosures import KINDS, Disclosure

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "reveals.md").read_text(encoding="utf-8")
TERMS: Final = TreeTerms(label_owner="owner", feature_owners=("feature",))
LINEAR: Final = LinearTerms(label_owner="owner", feature_owners=("feature",))
METHODS: Final = ("Of every method", "Alignment", "Linear models", "Boosted trees", "Split networks", "Evaluation")


def rows(heading: str) -> list[list[str]]:
    """The cells of the rows below a heading: step, what, kind, who, what reduces it, tests."""
    part = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line[:2] == "| "][1:]


def told(heading: str) -> set[tuple[str, str]]:
    """Step and kind of each row."""
    return {(row[0], row[2].strip("`")) for row in rows(heading)}


def test_methods_stand_in_their_order() -> None:
    assert re.findall(r"^## (.+)$", PAGE, re.MULTILINE) == [*METHODS]


def test_every_row_says_all_and_names_tests_that_are_there() -> None:
    found = [row for heading in METHODS for row in rows(heading)]
    assert len(found) > 15
    for row in found:
        assert len(row) == 6 and all(row), row
        assert row[2].strip("`") in KINDS, row[2]
        tests = re.findall(r"`(tests/[^`]+)::(\w+)`", row[5])
        assert tests, row
        for file, function in tests:
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            assert function in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, function


@pytest.mark.parametrize(
    ("heading", "told_by"),
    [
        ("Boosted trees", partial(told_by_trees, TERMS, "owner")),
        ("Linear models", partial(told_by_linear, LINEAR, "owner")),
    ],
)
def test_what_a_method_tells_is_on_the_page_and_nothing_else(
    heading: str, told_by: Callable[[str, str, int | None], list[Disclosure]]
) -> None:
    """In either direction: who tells it is the label owner for those that feature owners learn."""
    said: set[tuple[str, str, bool]] = set()
    for task in ("train", "predict"):
        said |= {(task, each.kind, each.sender == "owner") for each in told_by(task, f"{task} 0", 3)}
    page = {(row[0], row[2].strip("`"), "of the label owner" in row[3]) for row in rows(heading)}
    assert page == said


def test_what_split_networks_alignment_and_calls_tell_is_on_the_page() -> None:
    assert {kind for _, kind in told("Split networks")} == {*KIND_BY_KEY.values(), "values"}
    calls = {each.kind for each in told_by_calls(["feature"], "owner", TERMS.digest)}
    assert {kind for _, kind in told("Of every method")} == calls | {"plan", "opaque"}
    assert {kind for _, kind in told("Alignment")} == {
        "row_counts", "blinded_ids", "memberships", "intersection_sizes",
    }  # fmt: skip
