"""docs/threats.md: every cell names tests that exist, or says that the adversary learns everything."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "threats.md").read_text()


def tables() -> list[list[list[str]]]:
    """The page's tables, as rows of cells, without their heads."""
    found: list[list[list[str]]] = [[]]
    for line in PAGE.splitlines():
        if line.startswith("|"):
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        elif found[-1]:
            found.append([])
    return [table[2:] for table in found if table]


def played() -> dict[str, list[str]]:
    """The tests behind each number."""
    return {row[0]: re.findall(r"`(tests/[^`]+)`", row[2]) for row in tables()[1]}


def test_every_cell_has_a_test_or_says_everything() -> None:
    matrix, tests = tables()[0], played()
    assert len(matrix) >= 7
    for adversary, *cells in matrix:
        assert len(cells) == 7, adversary
        for cell in cells:
            keys = re.findall(r"\bT\d+\b", cell)
            assert keys or cell == "**everything**", f"{adversary}: {cell!r}"
            assert all(tests.get(key) for key in keys), f"{adversary}: {cell!r} names a test that is not below"


def test_every_test_of_the_page_is_there() -> None:
    for key, names in played().items():
        assert names, key
        for name in names:
            file, _, function = name.partition("::")
            tree = ast.parse((ROOT / file).read_text())
            assert function in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, name


def test_no_test_of_the_page_is_left_unused() -> None:
    used = {key for row in tables()[0] for cell in row for key in re.findall(r"\bT\d+\b", cell)}
    assert used == set(played())
