"""Every way in which a researcher's file can be wrong has an error that names the line."""

import os
from pathlib import Path

import pytest

from coterie.cli.loading import call, entry_point, load_module, split_target
from coterie.errors import ConfigurationError, ExperimentError


def _file(folder: Path, text: str) -> Path:
    path = folder / "study.py"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("a.py", ("a.py", "experiment")),
        ("a.py:mine", ("a.py", "mine")),
        ("dir/a.py:mine", ("dir/a.py", "mine")),
        ("C:/a.py", ("C:/a.py", "experiment")),
    ],
)
def test_a_target_is_a_file_and_a_name(target: str, expected: tuple[str, str]) -> None:
    path, name = split_target(target)
    assert (str(path), name) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1\ny = = 2\n", "line 2"),
        ("x = 1\n\nraise ValueError('boom')\n", "line 3: ValueError: boom"),
        ("def f():\n    return 1 / 0\n\nf()\n", "line 2: ZeroDivisionError"),
        ("import no_such_module_anywhere\n", "line 1: ModuleNotFoundError"),
    ],
)
def test_what_the_file_raises_is_told_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        load_module(_file(tmp_path, text))
    assert says in str(caught.value)
    assert caught.value.reason == "experiment_file"


def test_a_file_that_changed_within_a_second_is_loaded_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    seen: list[int] = []
    for number in range(3):
        path = _file(tmp_path, f"x = {number}\n")
        os.utime(path, (1e9, 1e9))
        seen.append(load_module(path).x)
    assert seen == [0, 1, 2]


def test_a_missing_file_and_a_missing_name_are_named(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="There is no file"):
        load_module(tmp_path / "absent.py")
    path = _file(tmp_path, "import os\nfrom pathlib import Path\nother = 1\n")
    with pytest.raises(ExperimentError, match=r"has no `clients`; it has other\."):
        call(load_module(path), path, "clients")


def test_a_file_may_import_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_study.py").write_text("value = 7\n", encoding="utf-8")
    path = _file(tmp_path, "from neighbour_of_study import value\n")
    assert call(load_module(path), path, "value") == 7


@pytest.mark.parametrize(
    "entry", ["no-colon", "module:", "module:not a name", "no_such_module_anywhere:x", "json:absent"]
)
def test_a_wrong_entry_point_is_named(entry: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        entry_point(entry)
    assert caught.value.reason == "entry_point"
    assert entry.partition(":")[0] in str(caught.value)


def test_a_neighbour_that_is_not_python_is_named_itself(tmp_path: Path) -> None:
    (tmp_path / "a_broken_neighbour.py").write_text("fine = 1\nsize = = 3\n", encoding="utf-8")
    with pytest.raises(ExperimentError) as caught:
        load_module(_file(tmp_path, "import a_broken_neighbour\n"))
    assert "a_broken_neighbour.py, line 2: invalid syntax: size = = 3" in caught.value.message
    assert caught.value.hint
