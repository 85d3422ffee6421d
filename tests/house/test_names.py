"""Different things have different names, where a short one would say nothing of which thing is meant."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("protocol", "privacy", "aggregation", "client_sdk", "simulation", "server", "cli", "benchmarks", "tests")
SHORT = frozenset(("Rule", "Phase", "Parts", "Shares"))


def named(source: str) -> Iterator[str]:
    """The classes and other names of types that a module makes."""
    for node in ast.parse(source).body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case _:
                pass


def test_every_way_of_naming_a_type_is_found() -> None:
    source = "class Rule: ...\nPhase = int\nParts: object = int\nShares: type = int\nfrom elsewhere import Other\n"
    assert sorted(named(source)) == ["Parts", "Phase", "Rule", "Shares"]


def test_a_short_name_is_that_of_one_thing() -> None:
    found = Counter(
        name
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "compute" not in path.relative_to(ROOT).parts
        for name in named(path.read_text(encoding="utf-8"))
        if name in SHORT
    )
    assert {name: times for name, times in found.items() if times > 1} == {}
