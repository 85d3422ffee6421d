"""`coterie report` as a user meets it."""

import re
from pathlib import Path
from typing import Any

import pytest

from coterie.aggregation.history import History
from coterie.aggregation.record import RoundRecord
from coterie.aggregation.run_files import read_run, write_run
from coterie.cli import report as command
from coterie.cli.places import folder_name
from coterie.errors import InputError

BAD_INPUT = 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A simulation's folder where the command looks for it."""
    rounds = [
        RoundRecord(round=number, state="committed", accepted=5, metrics={"loss": 1 / number, "accuracy": 0.5})
        for number in (1, 2, 3)
    ]
    return write_run(tmp_path / ".coterie" / "simulations" / "digits", "digits", History(tuple(rounds), "completed"))


def test_a_simulation_is_drawn_by_its_name_its_folder_and_its_lines(inside: Any, folder: Path) -> None:
    for run in ("digits", str(folder), str(folder / "rounds.jsonl")):
        (told,) = inside("report", run, "--json").events
        assert told["event"] == "report" and told["committed"] == 3 and told["accuracy"] == 0.5
        assert "</svg>" in (folder / "report.svg").read_text()
        (folder / "report.svg").unlink()


def test_a_name_that_an_experiment_may_have_too_is_said_to_be_the_simulations(inside: Any, folder: Path) -> None:
    said = "The run is the simulation in .coterie/simulations/digits"
    assert inside("report", "digits").out.startswith(said)
    for run in (".coterie/simulations/digits", str(folder), str(folder / "rounds.jsonl")):
        assert said not in inside("report", run).out


def test_the_ending_says_what_to_write(inside: Any, folder: Path, tmp_path: Path) -> None:
    assert inside("report", "digits", "--out", "table.csv").code == 0
    assert (tmp_path / "table.csv").read_text() == (folder / "rounds.csv").read_text()
    refused = inside("report", "digits", "--out", "table.docx", "--json")
    assert refused.code == BAD_INPUT and refused.events[-1]["code"] == "report_format"


def test_a_picture_with_matplotlib(inside: Any, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` draws other formats than SVG")
    assert inside("report", "digits", "--out", "deep/picture.png").code == 0
    assert (tmp_path / "deep" / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("run", ["some/where", "absent", "data"])
def test_a_run_that_is_not_there_is_named(run: str, inside: Any, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    done = inside("report", run, "--json")
    assert done.code == BAD_INPUT and done.events[-1]["code"] == "run_unreadable"
    assert run != "absent" or "digits" in done.events[-1]["message"]


def test_a_simulation_is_found_by_its_experiments_name_and_beside_a_folder_of_that_name(
    inside: Any, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "digits").mkdir()
    for name in ("digits", "Digits"):
        assert inside("report", name, "--json").events[-1]["path"] == ".coterie/simulations/digits/report.svg"


@pytest.mark.parametrize("name", ["../../evil", "/tmp/evil", "..", "été/été", "実験", "Bright or dark"])
def test_an_experiments_name_is_one_plain_word_as_a_folder(name: str) -> None:
    """A coordinator tells it, so it must lead nowhere."""
    found = folder_name(name)
    assert re.fullmatch(r"[a-z0-9][a-z0-9._-]*", found) and found != name


def test_a_run_that_diverged_is_written_and_drawn(tmp_path: Path) -> None:
    """NaN and infinity have no place on an axis; the finite values have."""
    losses = (1.0, float("inf"), float("nan"))
    rounds = [RoundRecord(round=at, state="committed", metrics={"loss": loss}) for at, loss in enumerate(losses, 1)]
    write_run(tmp_path, "wild", History(tuple(rounds)))
    assert "nan" not in (tmp_path / "rounds.svg").read_text() and len(read_run(tmp_path)[1]) == len(losses)


def test_an_experiment_without_a_round_is_not_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    def fetched(*given: object) -> tuple[str, History]:
        return "bright or dark", History()

    monkeypatch.setattr(command, "_fetched", fetched)
    for out in (None, Path("picture.png")):
        with pytest.raises(InputError, match="none of its rounds") as caught:
            command.report(["bright or dark"], out, "http://127.0.0.1:1")
        assert "coterie watch 'bright or dark'" in str(caught.value.hint) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("out", ["run.svg", "run.png"])
def test_a_run_that_measured_nothing_is_no_picture_but_a_table(inside: Any, out: str, tmp_path: Path) -> None:
    write_run(tmp_path / "run", "run", History((RoundRecord(round=1, state="abandoned", cause="deadline"),)))
    refused = inside("report", "run", "--out", out, "--json")
    assert refused.code == BAD_INPUT and refused.events[-1]["code"] == "run_unreadable"
    assert not (tmp_path / out).exists()
    assert inside("report", "run", "--out", "run.csv").code == 0
    assert "deadline" in (tmp_path / "run.csv").read_text()


def test_characters_that_no_font_has_are_said_in_a_sentence(inside: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` draws other formats than SVG")
    record = RoundRecord(round=1, state="committed", metrics={"loss": 1.0})
    for name, lacks in (("\U0001f40c", True), ("é", False)):
        write_run(tmp_path / "run", name, History((record,)))
        drawn = inside("report", "run", "--out", "run.png")
        assert drawn.code == 0 and ("not in matplotlib's font" in drawn.out) == lacks


def test_several_runs_are_compared_in_common_panels_and_one_table(inside: Any, folder: Path, tmp_path: Path) -> None:
    rounds = [RoundRecord(round=1, state="committed", accepted=5, metrics={"loss": 0.1}, bytes_up=2000)]
    write_run(tmp_path / "other", "other", History(tuple(rounds), "completed"))
    done = inside("report", "digits", "other", "--json")
    first, second = done.events
    assert (first["name"], first["committed"], first["accuracy"]) == ("digits", 3, 0.5)
    assert (second["name"], second["committed"], second["bytes_up"]) == ("other", 1, 2000)
    picture = (tmp_path / first["path"]).read_text()
    assert picture.count(">loss<") == picture.count(">bytes per round: up (MB)<") == 1
    # Each has its colour, also in a panel that only one of them has.
    colour = {
        name: set(re.findall(rf'stroke="(#\w+)"[^\n]*\n<text [^>]*>{name}<', picture)) for name in ("digits", "other")
    }
    assert len(colour["digits"]) == len(colour["other"]) == 1 and colour["digits"] != colour["other"]
    shown = inside("report", "digits", "other", "--out", "both.csv").out
    assert "3/3" in shown and "1/1" in shown
    head, *lines = (tmp_path / "both.csv").read_text().splitlines()
    assert head.startswith("run,round,") and [line.partition(",")[0] for line in lines] == ["digits"] * 3 + ["other"]


def test_an_absent_run_among_several_is_named(inside: Any, folder: Path) -> None:
    done = inside("report", "digits", "some/where", "--json")
    assert done.code == BAD_INPUT and "some/where" in done.err
