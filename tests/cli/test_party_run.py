"""`coterie party run`: two parties as programs do the job of a session; killed, with changed tables, with bad input."""

import csv
import json
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Coterie
from test_flow import next_event, running

from coterie.aggregation.vertical.experiment import VerticalExperiment
from coterie.cli.failures import BAD_INPUT, REMOTE, USAGE
from coterie.client_sdk.party.job_table import TableChoice
from coterie.protocol.session_job import TreesMethod
from coterie.simulation.vertical import simulate_vertical
from tests.patience import patience
from tests.prepared import Done

EXPERIMENT = VerticalExperiment(
    name="credit",
    label_owner="bank",
    parties={"bank": "Bank", "bureau": "Bureau"},
    method=TreesMethod(trees=2, depth=2, key_bits=2048),
)
MAKE = ("--role", "bank=Bank", "--role", "bureau=Bureau", "--label-owner", "bank", "--method", "trees")
SETTINGS = ("--set", "trees=2", "--set", "depth=2", "--set", "key_bits=2048")
BANK = ("bank.csv", "--id", "name", "--label", "late")
BUREAU = ("bureau.csv", "--id", "who")
# Parts of ids and of values that no error and no line may say.
SECRETS = ("ilsebill", "7777.", "7777x", "3.25125")
KILLED = -9


@dataclass(frozen=True)
class Two:
    """Two parties that have joined one session."""

    coterie: Coterie
    folder: Path
    url: str

    def run(self, role: str, *words: str, fault: dict[str, str] | None = None, wait: float = 90) -> Done:
        """One party's command; what it says holds nothing of a table."""
        common = ("--store", role, "--trust-first-use", "--wait", str(patience(wait)), "--json")
        done = self.coterie("party", "run", *words, *common, timeout=patience(200), **(fault or {}))
        said = (done.out + done.err).lower()
        assert not [secret for secret in SECRETS if secret in said]
        return done

    def both(self, bank: tuple[str, ...], bureau: tuple[str, ...], *faults: tuple[str, dict[str, str]]) -> list[Done]:
        """Both at once, the bank first. faults: the lives of a party that end before the last one, in order."""

        def lives(role: str, words: tuple[str, ...]) -> Done:
            for _, fault in (each for each in faults if each[0] == role):
                assert self.run(role, *words, "--yes", fault=fault).code == KILLED, fault
            return self.run(role, *words, "--yes")

        with ThreadPoolExecutor(2) as pool:
            return [*pool.map(lives, ("bank", "bureau"), (bank, bureau))]

    def refused(self, role: str, *words: str, code: int = BAD_INPUT) -> dict[str, Any]:
        """The error of a command that ends before anything leaves."""
        done = self.run(role, *words, "--yes")
        assert done.code == code, done.err
        return events(done)[-1]


def events(done: Done) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.out.splitlines()]


def event(done: Done, name: str) -> dict[str, Any]:
    assert done.code == 0, done.err
    return next(each for each in events(done) if each["event"] == name)


def write(folder: Path, name: str, header: str, rows: list[list[Any]]) -> None:
    """A table of texts and numbers as they are."""
    lines = [header, *(",".join(map(str, row)) for row in rows)]
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_tables(folder: Path) -> None:
    rng = np.random.default_rng(3)
    own, other = rng.normal(size=(60, 2)).round(5), rng.normal(size=(60, 2)).round(5)
    late = (own[:, 0] + other[:, 0] > 0).astype(int)
    bank: list[list[Any]] = [[f"Ilsebill {n}", 7777 + own[n, 0], own[n, 1], late[n]] for n in range(50)]
    bureau: list[list[Any]] = [[f" ILSEBILL {n}", other[n, 0], other[n, 1]] for n in reversed(range(10, 60))]
    bank[20][2], bureau[20][2], bureau[21][1] = "3.25125", "", "NaN"
    write(folder, "bank.csv", "name,income,age,late", bank)
    write(folder, "bureau.csv", "who,debt,years", bureau)


@pytest.fixture
def two(coterie: Coterie, tmp_path: Path, environment: dict[str, str]) -> Generator[Two]:
    write_tables(tmp_path)
    with running("server", "--port", "0", "--json", cwd=tmp_path, environment=environment) as server:
        url = next_event(server, "ready")["url"]
        made = coterie("sessions", "make", "credit", *MAKE, *SETTINGS, "--url", url, "--json")
        assert made.code == 0, made.err
        tokens = json.loads(made.out)["tokens"]
        for role in ("bank", "bureau"):
            joined = coterie("party", "join", url, "--token", tokens[role], "--store", role)
            assert "align, train, evaluate, predict" in joined.out and "trees=2" in joined.out
        yield Two(coterie, tmp_path, url)


def scores(path: Path) -> dict[str, float]:
    with path.open(encoding="utf-8", newline="") as file:
        return {row["name"]: float(row["score"]) for row in csv.DictReader(file)}


def simulated(folder: Path) -> dict[str, float]:
    """The scores of the same experiment on the joined table."""
    choices = {"bank": TableChoice(ids=("name",), label="late"), "bureau": TableChoice(ids=("who",))}
    tables = {role: folder / f"{role}.csv" for role in choices}
    found = simulate_vertical(EXPERIMENT, tables, choices=choices, encrypted=False)
    assert found.scores is not None
    with (folder / "bank.csv").open(encoding="utf-8", newline="") as file:
        names = [row["name"] for row in csv.DictReader(file)]
    return {names[row]: score for row, score in zip(found.rows["bank"].tolist(), found.scores.tolist(), strict=True)}


def test_two_parties_align_train_evaluate_and_predict(two: Two) -> None:
    bank, bureau = two.both(
        (*BANK, "--out", "scores.csv", "--report", "bank.report", "--columns", "income,age"),
        (*BUREAU, "--report", "bureau.report", "--processes", "2"),
    )
    assert event(bank, "aligned") == {"event": "aligned", "rows": 50, "common": 40} == event(bureau, "aligned")
    found = event(bank, "evaluation")
    assert found["train"]["rows"] == 40 and found["held_out"] is None
    assert found["train"]["auc"] > 0.8 and 0 < found["train"]["log_loss"] < 0.7
    assert event(bureau, "done") == {"event": "done", "rows": 40, "out": None}
    assert not [each for each in events(bureau) if each["event"] in ("evaluation", "predicted")]
    expected = simulated(two.folder)
    assert scores(two.folder / "scores.csv") == expected and len(expected) == 40
    # The reports agree on what each was told.
    pins = [
        f"{each}={json.loads(two.coterie('party', 'show', '--store', role, '--json').out)['fingerprint']}"
        for role, each in EXPERIMENT.parties.items()
    ]
    words = ("bank.report", "bureau.report", "--pin", pins[0], "--pin", pins[1])
    audit = two.coterie("audit", "session", *words)
    assert audit.code == 0, audit.out + audit.err
    # The same again gives the same, also over the files of before, and asks nothing of a partner.
    again = two.run("bank", *BANK, "--out", "scores.csv", "--report", "bank.report", "--yes")
    assert event(again, "evaluation") == found and scores(two.folder / "scores.csv") == expected


def test_a_linear_job_wants_whole_rows_and_comes_to_the_joined_tables_areas(two: Two) -> None:
    asked = ("--method", "linear", "--set", "epochs=2", "--set", "key_bits=2048")
    made = two.coterie("sessions", "make", "scores", *MAKE[:-2], *asked, "--url", two.url, "--json")
    assert made.code == 0, made.err
    told = json.loads(made.out)
    for role in ("bank", "bureau"):
        joined = two.coterie("party", "join", two.url, "--token", told["tokens"][role], "--store", role)
        assert joined.code == 0, joined.err
    here = ("--session", told["id"])
    error = two.refused("bureau", *BUREAU, *here)
    assert error["code"] == "data_cell" and "Bureau (role bureau), step train" in error["message"]
    for role, name, header in (("bank", "income", "name,income,age,late"), ("bureau", "debt", "who,debt,years")):
        with (two.folder / f"{role}.csv").open(encoding="utf-8", newline="") as file:
            rows = [[row[key] for key in header.split(",")] for row in csv.DictReader(file)]
        write(two.folder, f"{role}.csv", header, [[cell or "0" if cell != "NaN" else "0" for cell in r] for r in rows])
        assert name in header
    bank, bureau = two.both((*BANK, *here, "--out", "linear.csv"), (*BUREAU, *here))
    assert bureau.code == 0, bureau.err
    assert event(bank, "evaluation")["train"]["auc"] > 0.9
    found, late = scores(two.folder / "linear.csv"), {}
    with (two.folder / "bank.csv").open(encoding="utf-8", newline="") as file:
        late = {row["name"]: row["late"] == "1" for row in csv.DictReader(file)}
    assert len(found) == 40 and np.mean([(score > 0.5) == late[name] for name, score in found.items()]) > 0.7


def test_parties_that_are_killed_go_on_and_get_the_same(two: Two) -> None:
    bank, bureau = two.both(
        (*BANK, "--out", "scores.csv"),
        BUREAU,
        ("bank", {"COTERIE_ALIGNMENT_FAULT": "blinded:1"}),
        ("bureau", {"COTERIE_ALIGNMENT_FAULT": "result_kept:1"}),
        ("bureau", {"COTERIE_LEARNER_FAULT": "checkpoint_kept:2"}),
        ("bank", {"COTERIE_LEARNER_FAULT": "checkpoint_kept:3"}),
        ("bank", {"COTERIE_LEARNER_FAULT": "call_done:2"}),
    )
    assert (bank.code, bureau.code) == (0, 0), bank.err + bureau.err
    assert scores(two.folder / "scores.csv") == simulated(two.folder)


def test_rows_held_out_are_the_same_after_a_kill(two: Two) -> None:
    words = (*BANK, "--held-out", "0.3", "--out", "scores.csv")
    bank, _ = two.both(words, BUREAU, ("bank", {"COTERIE_LEARNER_FAULT": "checkpoint_kept:3"}))
    found = event(bank, "evaluation")
    held, trained = found["held_out"], found["train"]
    assert 0 < held["rows"] < 40 and held["rows"] + trained["rows"] == 40 and held["log_loss"] > 0
    # Another share holds out other rows, which is no longer the call that was made.
    other = two.refused("bank", *BANK, "--held-out", "0.5", code=REMOTE)
    assert other["code"] == "session_step" and other["message"].startswith("Bank (role bank), step train: Call 0")


def test_a_table_that_changed_since_it_was_aligned_is_refused_by_column(two: Two) -> None:
    whole = (two.folder / "bureau.csv").read_text(encoding="utf-8")
    with ThreadPoolExecutor(2) as pool:
        bank = pool.submit(two.run, "bank", *BANK, "--yes")
        fault = {"COTERIE_LEARNER_FAULT": "begun:1"}
        assert two.run("bureau", *BUREAU, "--yes", fault=fault).code == KILLED
        for changed, column in (
            (whole.replace("who,debt,years", "who,debt,age"), "years"),
            (whole.replace("NaN", "0.5"), "debt"),
            ("\n".join(whole.splitlines()[:-1]), "debt"),
        ):
            (two.folder / "bureau.csv").write_text(changed, encoding="utf-8")
            refused = two.refused("bureau", *BUREAU)
            assert refused["code"] == "table_changed"
            assert refused["message"].startswith("Bureau (role bureau), step train: the table was changed")
            assert f"column {column!r}" in refused["message"]
        (two.folder / "bureau.csv").write_text(whole, encoding="utf-8")
        refused = two.refused("bureau", *BUREAU, "--columns", "debt")
        assert refused["code"] == "table_changed" and "'years' was chosen, and is not now" in refused["message"]
        assert two.run("bureau", *BUREAU, "--yes").code == 0
        assert bank.result().code == 0


def test_what_will_leave_is_said_and_asked(two: Two, coterie: Coterie) -> None:
    for role, words, says in (
        ("bank", BANK, "To Bureau (role bureau), step train: gradient and hessian, 2 a row, 2 times"),
        ("bureau", BUREAU, "To Bank (role bank), step predict: sides, 3 a row, 2 times"),
    ):
        done = coterie("party", "run", *words, "--store", role, "--trust-first-use")
        assert done.code == BAD_INPUT and "error[unconfirmed]" in done.err
        assert says in done.out and "each id blinded by a secret key" in done.out
        assert "The labels are those of Bank (role bank)." in done.out
    status = json.loads(coterie("sessions", "list", "--url", two.url, "--json").out)
    assert status["messages"] == 0


def test_tiny_intersections_are_refused_at_both(two: Two) -> None:
    for name, header, first in (("few.csv", "name,income,late", 0), ("rest.csv", "who,debt", 15)):
        rows: list[list[Any]] = [[f"ilsebill {n}", n, n % 2][: header.count(",") + 1] for n in range(first, first + 20)]
        write(two.folder, name, header, rows)
    found = two.both(("few.csv", *BANK[1:]), ("rest.csv", *BUREAU[1:]))
    for done, named in zip(found, ("Bank (role bank), step align", "Bureau (role bureau), step align"), strict=True):
        error = events(done)[-1]
        assert error["code"] == "intersection_small" and error["message"].startswith(named)


def test_bad_tables_and_choices_are_named(two: Two) -> None:
    bank, bureau = "Bank (role bank), step ", "Bureau (role bureau), step "
    head = "name,income,late\n"
    cases: list[tuple[str, tuple[str, ...], str, str, str]] = [
        # the text of the table; the options; where; what; the code
        ("", (*BUREAU, "--label", "debt"), f"{bureau}train", "'debt' is named as a label", "job_columns"),
        ("", ("bank.csv", "--id", "name"), f"{bank}train", "no column is named as the label", "job_columns"),
        ("", ("bank.csv", "--label", "late"), f"{bank}align", "no column is named that identifies", "job_columns"),
        ("", (*BANK, "--columns", "age,late"), f"{bank}train", "'late' is named twice", "job_columns"),
        ("", (*BANK, "--columns", "incme"), f"{bank}train", "no column 'incme'. Did you mean income?", "data_missing"),
        ("", ("bank.csv", "--id", "nmae", "--label", "late"), f"{bank}train", "Did you mean name?", "data_missing"),
        ("", (*BUREAU, "--held-out", "0.3"), f"{bureau}train", "for the role bank to say", "job_columns"),
        ("", (*BANK, "--held-out", "1.5"), f"{bank}train", "a share between 0 and 1", "job_columns"),
        ("who,debt\nilsebill 1,1\nilsebill 2,7777x\n", (), f"{bureau}train", "holds no number in row 2", "data_cell"),
        ("who,debt\nilsebill 1,1\nilsebill 2,inf\n", (), f"{bureau}train", "'debt' is infinite in row 2", "data_cell"),
        ("who,debt\nilsebill 1,1\nilsebill 1,2\n", (), f"{bureau}align", "2 of 2 rows share their id", "ids_repeated"),
        ("who,debt\nilsebill 1,1\n,2\n", (), f"{bureau}align", "no id in column 'who'", "ids_missing"),
        ("who,debt\nilsebill 1,1,3\n", (), bureau, "row 1 has 3 cells", "data_shape"),
        ("who\nilsebill 1\n", (), f"{bureau}train", "no column to learn from", "job_columns"),
        ("who,debt\n", (), bureau, "there are no rows", "data_empty"),
    ]  # fmt: skip
    for text, words, where, what, code in cases:
        (two.folder / "bad.csv").write_text(text, encoding="utf-8")
        role = "bank" if where.startswith("Bank") else "bureau"
        refused = two.refused(role, *(words or ("bad.csv", *BUREAU[1:])))
        assert refused["code"] == code, refused
        assert refused["message"].startswith(where) and what in f"{refused['message']} {refused['hint']}", refused
    for text, what, code in (
        (head + "\n".join(f"ilsebill {n},7777,2" for n in range(20)), "label 'late' is not 0 or 1", "data_cell"),
        (head + "\n".join(f"ilsebill {n},7777,1" for n in range(20)), "label 'late' is the same", "data_classes"),
        (head + "\n".join(f"ilsebill {n},7777," for n in range(20)), "label 'late' is not 0 or 1", "data_cell"),
    ):
        (two.folder / "bad.csv").write_text(text + "\n", encoding="utf-8")
        refused = two.refused("bank", "bad.csv", *BANK[1:])
        assert refused["code"] == code and refused["message"].startswith(f"{bank}train") and what in refused["message"]
    usage = two.refused("bureau", *BUREAU, "--out", "x.csv", code=USAGE)
    assert "which the role bank gets" in usage["message"]
    (two.folder / "mine.csv").write_text("x", encoding="utf-8")
    refused = two.refused("bank", *BANK, "--out", "mine.csv")
    assert refused["code"] == "file_unusable" and (two.folder / "mine.csv").read_text(encoding="utf-8") == "x"


def test_a_session_without_a_job_cannot_be_run(two: Two) -> None:
    roles = ("--role", "bank=Bank", "--role", "bureau=Bureau")
    made = two.coterie("sessions", "make", "plain", *roles, "--url", two.url, "--json")
    assert made.code == 0 and json.loads(made.out)["terms"]["stages"] == ["messages"]
    assert "job" not in json.loads(made.out)["terms"]
    two.coterie("party", "join", two.url, "--token", json.loads(made.out)["tokens"]["bank"], "--store", "alone")
    refused = two.refused("alone", *BANK)
    assert refused["code"] == "session_job" and "does not say what it is for" in refused["message"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--label-owner", "bnak", "--method", "trees"), "the label owner 'bnak' is none of the roles bank, bureau"),
        (("--label-owner", "bank"), "Give --method trees or --method linear."),
        (("--method", "trees"), "Give --label-owner ROLE."),
        (("--label-owner", "bank", "--method", "tree"), "there is no method 'tree'; did you mean trees"),
        (("--label-owner", "bank", "--method", "trees", "--set", "dept=3"), "no field 'dept'; did you mean depth"),
        (("--label-owner", "bank", "--method", "trees", "--set", "depth=30"), "depth must be 1 to 12"),
        (("--label-owner", "bank", "--method", "trees", "--set", "depth=three"), "a valid integer"),
        (("--label-owner", "bank", "--method", "linear", "--set", "epochs=0"), "epochs must be 1 to 1000"),
        (("--label-owner", "bank", "--method", "linear", "--set", "depth=3"), "no field 'depth'"),
        (("--label-owner", "bank", "--method", "trees", "--set", "depth"), "Write it like --set depth=3."),
        (("--label-owner", "bank", "--method", "trees", "--steps", "align,evaluate"), "needs the step train before it"),
        (("--label-owner", "bank", "--method", "trees", "--steps", "train,align"), "in this order, each once"),
        (("--label-owner", "bank", "--method", "trees", "--role", "shop=Shop"), "between two parties, and there are 3"),
    ],
)
def test_jobs_that_cannot_be_are_refused_before_a_coordinator_is_asked(
    coterie: Coterie, words: tuple[str, ...], says: str
) -> None:
    done = coterie("sessions", "make", "credit", "--role", "bank=Bank", "--role", "bureau=Bureau", *words)
    assert done.code == BAD_INPUT and "error[session_invalid]" in done.err and says in done.err
