"""docs/security.md says what the code says: its diagrams are the tables, its places and codes are there."""

import importlib
import re
from pathlib import Path

import pytest

from coterie.privacy.secagg import client, server

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
ERRORS = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## The protocol, step by step\n")[1].split("## What is stored")[0]
CHECKS = PAGE.split("## Checks that every client makes\n")[1].split("\n## ")[0]
PLACES = sorted(set(re.findall(r"`([a-z_]+)\.([A-Za-z_]+)`", SECTION)) - {("np", "random"), ("os", "urandom")})
ROWS = [row.strip("| ").split(" | ") for row in CHECKS.splitlines() if row.startswith("| ")][1:]


def _folder(module: str) -> str:
    """Where a module of the page lies: what needs more than one attempt is the device's."""
    folders = ("privacy/secagg", "client_sdk/device")
    return next(folder for folder in folders if (ROOT / folder / f"{module}.py").exists())


def test_the_diagrams_are_the_tables() -> None:
    drawn = [part.split("```")[0].strip() for part in PAGE.split("```mermaid\n")[1:3]]
    assert drawn == [client.diagram().strip(), server.diagram().strip()]


@pytest.mark.parametrize("module,name", PLACES)
def test_places_in_the_code_are_there(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(f"coterie.{_folder(module).replace('/', '.')}.{module}"), name)


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_checks_are_refused_with_the_code_that_stands_there(row: list[str]) -> None:
    module = row[2].strip("`").split(".")[0]
    code = row[3].strip("`")
    if code == "–":
        return
    source = (ROOT / f"{_folder(module)}/{module}.py").read_text(encoding="utf-8")
    rules = (ROOT / "privacy" / "secagg" / "client_rules.py").read_text(encoding="utf-8")
    assert f'code="{code}"' in source + rules
    assert f"### {code.replace('_', '-')}\n" in ERRORS


def test_files_that_are_named_are_there() -> None:
    for name in re.findall(r"`((?:protocol|tests|privacy)/[a-z_/.]+)`", PAGE):
        assert (ROOT / name).exists(), name
