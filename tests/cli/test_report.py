"""`coterie report` as a user meets it."""

from pathlib import Path
from typing import Any

import pytest

from coterie.aggregation.history import History, RoundRecord
from coterie.aggregation.report.files import write_run

BAD_INPUT = 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A simulation's folder where the command looks for it."""
    rounds = [
        RoundRecord(round=number, state="committed", accepted=5, metrics={"loss": 1 / number, "accuracy": 0.5})
        for number in (1, 2, 3)
    ]
    return write_run(tmp_path / ".coterie" / "simulations" / "digits", "digits", History(tuple(rounds), "completed"))


def test_a_simulation_is_drawn_by_its_name_its_folder_and_its_lines(coterie: Any, folder: Path) -> None:
    for run in ("digits", str(folder), str(folder / "rounds.jsonl")):
        (told,) = coterie("report", run, "--json").events
        assert told["event"] == "report" and told["committed"] == 3 and told["accuracy"] == 0.5
        assert "</svg>" in (folder / "report.svg").read_text()
        (folder / "report.svg").unlink()


def test_the_ending_says_what_to_write(coterie: Any, folder: Path, tmp_path: Path) -> None:
    assert coterie("report", "digits", "--out", "table.csv").code == 0
    assert (tmp_path / "table.csv").read_text() == (folder / "rounds.csv").read_text()
    refused = coterie("report", "digits", "--out", "table.docx", "--json")
    assert refused.code == BAD_INPUT and refused.events[-1]["code"] == "report_format"


def test_a_picture_with_matplotlib(coterie: Any, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` draws other formats than SVG")
    assert coterie("report", "digits", "--out", "deep/picture.png").code == 0
    assert (tmp_path / "deep" / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_is_not_there_is_named(coterie: Any) -> None:
    done = coterie("report", "some/where", "--json")
    assert done.code == BAD_INPUT and done.events[-1]["code"] == "run_unreadable"
