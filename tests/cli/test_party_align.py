"""`coterie party align`: two parties as programs, what each is told and writes, and what is asked before that."""

import csv
import json
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import Coterie
from test_flow import next_event, running

from coterie.cli.failures import BAD_INPUT, USAGE
from tests.patience import patience

CLINIC = "clinic.csv"
REGISTRY = "registry.csv"


@dataclass(frozen=True)
class Two:
    """Two parties that have joined one session."""

    coterie: Coterie
    folder: Path
    url: str

    def align(self, role: str, *words: str, code: int = 0) -> list[dict[str, Any]]:
        """The events of one party's command."""
        common = ("--store", role, "--trust-first-use", "--wait", str(patience(60)), "--json")
        done = self.coterie("party", "align", *words, *common, timeout=patience(100))
        assert done.code == code, done.err
        self.told(done.out + done.err)
        return [json.loads(line) for line in done.out.splitlines()]

    def both(self, one: tuple[str, ...], other: tuple[str, ...]) -> tuple[Any, Any]:
        """Both at once: the last event of each."""
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.submit(self.align, "clinic", *one), pool.submit(self.align, "registry", *other)
            return first.result()[-1], second.result()[-1]

    @staticmethod
    def told(text: str) -> None:
        """No id is ever said."""
        assert "ilsebill" not in text.lower()


@pytest.fixture
def two(coterie: Coterie, tmp_path: Path, environment: dict[str, str]) -> Generator[Two]:
    clinic = "\n".join(f'"Ilsebill {n}",00{n},"a, ""b"" {n}"' for n in range(30))
    registry = "\n".join(f"ILSEBILL {n};{n}" for n in reversed(range(12, 40)))
    (tmp_path / CLINIC).write_text(f"name,born,note\n{clinic}\n", encoding="utf-8")
    (tmp_path / REGISTRY).write_text(f"who;scan\n{registry}\n", encoding="utf-8")
    with running("server", "--port", "0", "--json", cwd=tmp_path, environment=environment) as server:
        url = next_event(server, "ready")["url"]
        roles = ("--role", "clinic=Clinic", "--role", "registry=Registry")
        made = coterie(
            "sessions", "make", "joint", *roles, "--stage", "align", "--stage", "more", "--url", url, "--json"
        )
        tokens = json.loads(made.out)["tokens"]
        for role in ("clinic", "registry"):
            assert coterie("party", "join", url, "--token", tokens[role], "--store", role).code == 0
        yield Two(coterie, tmp_path, url)


def rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return [*csv.reader(file)]


def test_both_write_their_common_rows_in_one_order(two: Two) -> None:
    mine, theirs = two.both(
        (CLINIC, "--id", "name", "--out", "c.csv", "--yes"),
        (REGISTRY, "--id", "who", "--out", "r.csv", "--yes", "--workers", "2"),
    )
    assert (mine["event"], mine["ids"], mine["common"], mine["path"]) == ("aligned", 30, 18, "c.csv")
    assert (theirs["ids"], theirs["common"]) == (28, 18)
    (head, *ours), (_, *others) = rows(two.folder / "c.csv"), rows(two.folder / "r.csv")
    assert head == ["name", "born", "note"]
    assert [row[0].casefold() for row in ours] == [row[0].casefold() for row in others]
    # Cells are as they were written, zeros and quotes too.
    whole = rows(two.folder / CLINIC)
    assert all(row in whole for row in ours) and {*map(tuple, ours)} == {*map(tuple, whole[13:])}
    # The same again overwrites nothing unless it may, and asks nobody.
    again = (CLINIC, "--id", "name", "--out", "c.csv", "--yes")
    (refused,) = two.align("clinic", *again, code=BAD_INPUT)[-1:]
    assert refused["code"] == "file_unusable"
    assert two.align("clinic", *again, "--force")[-1] == mine


def test_a_count_is_told_to_one_party(two: Two) -> None:
    asked = ("--count", "--told", "clinic", "--yes", "--stage", "more")
    mine, theirs = two.both((CLINIC, "--id", "name", *asked), (REGISTRY, "--id", "who", *asked))
    assert (mine["common"], mine["path"], theirs["common"]) == (18, None, None)


def test_what_will_leave_is_said_and_asked(two: Two, coterie: Coterie) -> None:
    words = ("party", "align", CLINIC, "--id", "name", "--out", "c.csv", "--store", "clinic", "--trust-first-use")
    done = coterie(*words)
    assert done.code == BAD_INPUT and "unconfirmed" in done.err
    assert "To Registry (role registry): the number of ids in clinic.csv, 30" in done.out
    assert "Registry (role registry) learns which of its ids this party has too" in done.out
    assert "This party learns which of its ids Registry (role registry) has too." in done.out
    two.told(done.out + done.err)
    done = coterie(*words[:5], "--count", *words[7:], "--told", "clinic")
    assert "Registry (role registry) learns" not in done.out and "This party learns how many" in done.out
    status = json.loads(coterie("sessions", "list", "--url", two.url, "--json").out)
    assert status["messages"] == 0


MISTAKES: tuple[tuple[tuple[str, ...], int, str], ...] = (
    (("--id", "name"), USAGE, "--out FILE"),
    (("--id", "name", "--count", "--out", "x.csv"), USAGE, "nothing for --out"),
    (("--id", "nome", "--out", "x.csv"), BAD_INPUT, "no column 'nome'"),
    (("--id", "note", "--id", "note", "--out", "x.csv"), BAD_INPUT, "each once"),
    (("--id", "name", "--out", "x.csv", "--rule", "digit"), BAD_INPUT, "Did you mean digits"),
    (
        ("--id", "name", "--out", "x.csv", "--rule", "alphanumeric", "--told", "judge", "--yes"),
        BAD_INPUT,
        "no role",
    ),
    (("--id", "name", "--out", "x.csv", "--stage", "rows", "--yes"), BAD_INPUT, "no stage 'rows'"),
)


def test_mistakes_are_named(two: Two) -> None:
    """Before anything is sent, so that one session does for all."""
    for words, code, says in MISTAKES:
        (refused,) = two.align("clinic", CLINIC, *words, code=code)[-1:]
        assert says in f"{refused['message']} {refused['hint']}"
    status = json.loads(two.coterie("sessions", "list", "--url", two.url, "--json").out)
    assert status["messages"] == 0


def test_ids_that_cannot_be_used_are_refused_without_being_said(two: Two) -> None:
    for text, reason, says in (
        ("id,x\nilsebill 1,1\nilsebill 1,2\n", "ids_repeated", "bad.csv: 2 of 2 rows share their id"),
        ("id,x\nilsebill 1,1\n,2\n", "ids_missing", "bad.csv: 1 of 2 rows have no id in column 'id'"),
        ("id,x\nilsebill 1,1,3\n", "data_shape", "bad.csv: row 1"),
    ):
        (two.folder / "bad.csv").write_text(text, encoding="utf-8")
        (refused,) = two.align("clinic", "bad.csv", "--id", "id", "--out", "x.csv", "--yes", code=BAD_INPUT)[-1:]
        assert refused["code"] == reason and says in refused["message"]
