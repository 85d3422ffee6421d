"""docs/capabilities.md and the tests agree: every row names tests that exist and are marked with its id."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "capabilities.md"
SECTIONS = {"A": 17, "B": 11, "C": 14, "D": 9, "E": 23, "F": 14, "G": 19}
# Numbers that no row has: a row keeps its number, whatever becomes of those before it.
UNUSED = {"E9"}
NUMBERS = [f"{letter}{number}" for letter, last in SECTIONS.items() for number in range(1, last + 1)]
IDS = [number for number in NUMBERS if number not in UNUSED]
# Rows that may say which layer below owns them instead of naming a test.
BELOW = {"C10", "C14", "E2", "E5", "E10", "E11", "E12", "E21"}
ROW = re.compile(r"^\| (?P<id>[A-G]\d+) \| (?P<name>[^|]+) \| (?P<how>[^|]+) \| (?P<proof>[^|]+) \|$", re.MULTILINE)
NAMED = re.compile(r"`(?P<test>tests/[\w/]+\.py::\w+)`")


@cache
def _rows() -> dict[str, re.Match[str]]:
    return {found["id"]: found for found in ROW.finditer(PAGE.read_text(encoding="utf-8"))}


def _ids(decorator: ast.expr) -> list[str]:
    """The ids of one ``pytest.mark.capability(...)``; nothing for another decorator."""
    match decorator:
        case ast.Call(func=ast.Attribute(attr="capability"), args=args):
            return [str(arg.value) for arg in args if isinstance(arg, ast.Constant)]
        case _:
            return []


@cache
def _marked() -> dict[str, set[str]]:
    """Test → the ids that its markers, and those of its file, name."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                ids = {name for decorator in node.decorator_list for name in _ids(decorator)}
                found[f"{path.relative_to(ROOT).as_posix()}::{node.name}"] |= ids
    return found


def test_the_page_has_every_row_once() -> None:
    assert [found["id"] for found in ROW.finditer(PAGE.read_text(encoding="utf-8"))] == IDS


@pytest.mark.parametrize("row", IDS)
def test_a_row_names_tests_that_prove_it(row: str) -> None:
    proof = _rows()[row]["proof"]
    named = [found["test"] for found in NAMED.finditer(proof)]
    if not named:
        assert row in BELOW, f"{row} names no test"
        assert proof.startswith("below: "), f"{row} must say which layer owns it"
    for test in named:
        assert test in _marked(), f"{row}: there is no {test}"
        assert row in _marked()[test], f'{row}: {test} lacks pytest.mark.capability("{row}")'


def test_no_marker_names_a_row_that_is_not_there() -> None:
    assert {name for ids in _marked().values() for name in ids} <= set(IDS)
