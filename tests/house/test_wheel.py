"""The wheel holds exactly the code of the folders, whether or not the links in src/coterie are links."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"][
    "build"
]["targets"]["wheel"]["sources"]
FOLDERS = sorted(folder for folder in SOURCES if not folder.startswith("src/"))
IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*_cache")


def _checkout(destination: Path, *, links: bool) -> Path:
    """A copy of what the wheel is built from; without links, as Git clones them where they are not allowed."""
    destination.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, destination / name)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, destination / folder, ignore=IGNORED)
    package = destination / "src" / "coterie"
    package.mkdir(parents=True)
    for path in (ROOT / "src" / "coterie").iterdir():
        if path.is_file():
            shutil.copy(path, package / path.name)
        elif path.is_symlink() and links:
            (package / path.name).symlink_to(f"../../{path.name}")
        elif path.is_symlink():
            (package / path.name).write_text(f"../../{path.name}", encoding="utf-8")
    return destination


def _build(checkout: Path) -> list[str]:
    out = checkout / "out"
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        cwd=checkout,
        check=True,
        capture_output=True,
    )
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return sorted(archive.namelist())


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return _build(_checkout(tmp_path_factory.mktemp("wheel") / "linked", links=True))


def test_the_wheel_holds_every_file_of_every_folder(names: list[str]) -> None:
    expected = {f"coterie/{path.name}" for path in (ROOT / "src" / "coterie").iterdir() if path.is_file()}
    for folder in FOLDERS:
        expected |= {
            f"coterie/{path.relative_to(ROOT)}"
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
        }
    assert {name for name in names if ".dist-info/" not in name} == expected


def test_the_wheel_carries_the_licence(names: list[str]) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_a_clone_without_links_builds_the_same_wheel(names: list[str], tmp_path: Path) -> None:
    assert _build(_checkout(tmp_path / "unlinked", links=False)) == names
