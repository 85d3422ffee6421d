"""docs/extending.md is true: each section adds what it says, as it says, to a copy of the house, and uses it there.

<!-- add: PATH -->       the block becomes a new file of the copy
<!-- change: PATH -->    a block of lines: those with + are added between the others, which stand there once
<!-- use -->             a program, which fails without the additions and ends well with them
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "extending.md"
FOLDERS = ("compute", "protocol", "privacy", "aggregation", "client_sdk", "simulation", "server", "cli")
SECTION = re.compile(r"^## (?P<title>.+)$\n(?P<text>(?:(?!^## ).*\n?)*)", re.MULTILINE)
BLOCK = re.compile(
    r"^<!-- (?P<verb>add|change|use)(?:: (?P<path>\S+))? -->\n```\w+\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """What is done with a block, to which file, and its text."""

    verb: str
    path: str
    text: str


def sections(page: str) -> Iterator[tuple[str, list[Block]]]:
    """The sections of the page that add something."""
    for section in SECTION.finditer(page):
        found = [Block(block["verb"], block["path"] or "", block["text"]) for block in BLOCK.finditer(section["text"])]
        if found:
            yield section["title"], found


def copied(folder: Path) -> Path:
    """A copy of the house as one package."""
    house = folder / "coterie"
    shutil.copytree(ROOT / "src" / "coterie", house, symlinks=True, ignore=lambda _, names: {*FOLDERS} & {*names})
    for name in FOLDERS:
        shutil.copytree(ROOT / name, house / name)
    return house


def apply(house: Path, block: Block) -> None:
    """Add the file, or the lines."""
    file = house / block.path
    if block.verb == "add":
        assert not file.exists(), f"{block.path} is there already"
        newest = max(path.name[:4] for path in (ROOT / "server/store/migrations/versions").glob("[0-9]*.py"))
        file.parent.mkdir(exist_ok=True)
        file.write_text(block.text.replace("NEWEST", newest), encoding="utf-8")
        return
    lines = block.text.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line[0] == " ")
    text = file.read_text(encoding="utf-8")
    assert text.count(before) == 1, f"{block.path} has not once:\n{before}"
    file.write_text(text.replace(before, "".join(line[1:] for line in lines)), encoding="utf-8")


def used(house: Path, program: str) -> subprocess.CompletedProcess[str]:
    """What comes of the program with this house."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COTERIE_")}
    folder = house.parent / "work"
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(house.parent), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


SECTIONS = dict(sections(PAGE.read_text(encoding="utf-8")))


@pytest.mark.snippet
@pytest.mark.parametrize("title", SECTIONS)
def test_what_the_section_adds_can_be_used(title: str, tmp_path: Path) -> None:
    house = copied(tmp_path)
    program = "".join(block.text for block in SECTIONS[title] if block.verb == "use")
    assert program and used(house, program).returncode != 0, "it must not work before anything is added"
    for block in SECTIONS[title]:
        if block.verb != "use":
            apply(house, block)
    done = used(house, f"import coterie\nassert coterie.__file__ == {str(house / '__init__.py')!r}\n{program}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_lines_go_between_those_that_stand_there(tmp_path: Path) -> None:
    (tmp_path / "table.py").write_text("a\nb\nc\n", encoding="utf-8")
    apply(tmp_path, Block("change", "table.py", " a\n+new\n b\n"))
    assert (tmp_path / "table.py").read_text(encoding="utf-8") == "a\nnew\nb\nc\n"
    with pytest.raises(AssertionError, match="has not once"):
        apply(tmp_path, Block("change", "table.py", " a\n+new\n b\n"))
