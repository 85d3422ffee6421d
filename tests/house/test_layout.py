"""The folders, the links, the wheel's table and the tools' lists agree."""

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WHEEL: dict[str, Any] = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
SDIST: dict[str, Any] = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]
PACKAGE = ROOT / "src" / "coterie"
FOLDERS = sorted(folder for folder in WHEEL["sources"] if not folder.startswith("src/"))
SOFT_LIMIT = 400
EXPLAINED_LIMIT = 600


def test_the_links_are_the_mapped_folders() -> None:
    links = {path.name: path.resolve() for path in PACKAGE.iterdir() if path.is_symlink()}
    assert links == {folder: ROOT / folder for folder in FOLDERS}


def test_the_wheel_maps_every_folder_to_its_import_name() -> None:
    assert WHEEL["sources"] == {"src/coterie": "coterie"} | {folder: f"coterie/{folder}" for folder in FOLDERS}


@pytest.mark.parametrize("target", [WHEEL, SDIST], ids=["wheel", "sdist"])
def test_every_list_of_contents_names_every_folder(target: dict[str, Any]) -> None:
    contents = set(target["only-include"])
    assert {name for name in contents if "/" not in name} - {"tests"} == set(FOLDERS)
    assert {path.name for path in PACKAGE.iterdir() if path.is_file()} == {
        Path(name).name for name in contents if name.startswith("src/coterie/")
    }


def test_pyright_checks_every_folder_through_its_link() -> None:
    assert set(PYPROJECT["tool"]["pyright"]["include"]) == {
        *(f"src/coterie/{folder}" for folder in FOLDERS),
        *(f"src/coterie/{path.name}" for path in PACKAGE.glob("*.py")),
        "tests",
    }


def test_ruff_bans_the_bare_name_of_every_folder() -> None:
    assert set(PYPROJECT["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]) == set(FOLDERS)


def test_every_folder_has_a_layer() -> None:
    layers = PYPROJECT["tool"]["importlinter"]["contracts"][0]["layers"]
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert {name for layer in layers for name in layer.split(" | ")} == {*FOLDERS, *modules}


def test_no_folder_is_imported_by_its_bare_name() -> None:
    assert not set(FOLDERS) & set(sys.modules)


def _modules() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize("module", _modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_stays_small_and_opens_with_its_purpose(module: Path) -> None:
    text = module.read_text(encoding="utf-8")
    lines = text.count("\n")
    assert lines <= EXPLAINED_LIMIT, f"{lines} lines: split it"
    if lines > SOFT_LIMIT:
        docstring = text.split('"""')[1]
        assert "one file because" in docstring, f"{lines} lines: split it, or say in its docstring 'one file because …'"
    if lines:
        assert text.startswith('"""'), "a module opens with a docstring that says what it holds"
