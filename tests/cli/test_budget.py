"""`coterie policy` and `coterie budget` against a real coordinator whose ledger holds what two experiments spent."""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from test_flow import next_event, running

from coterie.cli import main
from coterie.cli.failures import BAD_INPUT, REMOTE, USAGE
from coterie.privacy.dp.accounting import total_cost
from coterie.privacy.dp.events import Gaussian
from coterie.privacy.ledger.accountant import epsilon
from coterie.privacy.ledger.events import Bound, RefundCause
from coterie.protocol.canonical import canonical_json
from coterie.protocol.conversion import to_json
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.server.bell import Bell
from coterie.server.faults import CoordinatorFaults
from coterie.server.store import housekeeping, populations
from coterie.server.store.dialect import sqlite_url
from coterie.server.store.engine import Database
from coterie.server.store.ledger import Ledger
from coterie.server.store.migrate import migrate

Program = Callable[..., tuple[int, str]]
SCHEMA = DataSchema(features=(Feature(name="x", shape=(2,)),), label=Label(name="y", low=0, high=1))
DELTA = 1e-6
ONE = (canonical_json(to_json(Gaussian(4.0))).decode(),)
WRONG_LINES = {
    "--min-cohort many": "--min-cohort must be a whole number or none, not 'many'",
    "--min-cohort 2.5": "--min-cohort must be a whole number or none, not '2.5'",
    "--min-cohort 0": "--min-cohort must be above 0 and at most 1e+06",
    "--max-epsilon-per-experiment nan": "--max-epsilon-per-experiment must be above 0",
    "--delta 2": "--delta must be above 0 and at most 0.1",
    "--unit person": "--unit must be one of user, example, none, not 'person'",
    "--signer 12ab": "64 lower-case hexadecimal digits",
}
FIRST, SECOND = f"exp_{'0' * 31}1", f"exp_{'0' * 31}2"


async def _write(folder: Path) -> None:
    """A population whose ledger has three payments, a refund and a reservation."""
    database = Database(sqlite_url(folder / "coterie.db"), CoordinatorFaults(), Bell())
    try:
        key = (await housekeeping.first_start(database, folder)).key
        ledger = Ledger(key, epsilon)
        async with database.write("population") as session:
            schema = canonical_json(to_json(SCHEMA)).decode()
            await populations.add(session, "people", schema, SCHEMA.digest)
            await ledger.limit(session, "people", FIRST, Bound(9.0, DELTA))
            for experiment, number in ((FIRST, 1), (FIRST, 2), (SECOND, 1), (FIRST, 3), (SECOND, 2)):
                assert await ledger.reserve(session, "people", experiment, number, ONE) is None
                if number < 3 and (experiment, number) != (SECOND, 2):
                    await ledger.spend(session, "people", experiment, number)
            await ledger.refund(session, "people", FIRST, 3, RefundCause.ABANDONED)
    finally:
        await database.close()


@pytest.fixture
def program(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Generator[Program]:
    """Runs a command in this process, beside a coordinator that is a program of its own; its exit code and output."""
    folder = tmp_path / ".coterie" / "server"
    folder.mkdir(parents=True, mode=0o700)
    migrate(sqlite_url(folder / "coterie.db"))
    asyncio.run(_write(folder))
    with running("server", "--port", "0", "--json", cwd=tmp_path, environment=environment) as server:
        monkeypatch.setenv("COTERIE_URL", next_event(server, "ready")["url"])
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.chdir(tmp_path)

        def run(*words: str) -> tuple[int, str]:
            capsys.readouterr()
            return main.run(words), capsys.readouterr().out

        yield run


def test_policy_and_budget_from_the_command_line(program: Program, tmp_path: Path) -> None:
    def run(*words: str, code: int = 0) -> list[dict[str, Any]]:
        ended, out = program(*words, "--json")
        assert ended == code, out
        return [json.loads(line) for line in out.splitlines()]

    (shown,) = run("policy", "people")
    assert (shown["min_cohort"], shown["max_epsilon_per_year"]) == (None, None)
    (problem,) = run("policy", "--max-epsilon-per-year", "6", code=USAGE)
    assert "--max-epsilon-per-year needs a δ" in problem["message"] and "--delta" in problem["hint"]
    options = ("--require-secure-aggregation", "--min-cohort", "20", "--max-epsilon-per-year", "6", "--delta", "1e-6")
    (changed,) = run("policy", *options, "--algorithm", "fedavg", "--algorithm", "fedprox")
    assert changed["require_secure_aggregation"] and changed["min_cohort"] == 20
    assert (changed["max_epsilon_per_year"], changed["algorithms"]) == (6.0, ["fedavg", "fedprox"])
    (changed,) = run("policy", "--allow-plain-aggregation", "--min-cohort", "none", "--algorithm", "none")
    assert (changed["require_secure_aggregation"], changed["min_cohort"], changed["algorithms"]) == (False, None, None)
    assert changed["max_epsilon_per_year"] == 6.0, "what is not named stays"
    for words, told in WRONG_LINES.items():
        (problem,) = run("policy", *words.split(), code=USAGE)
        assert problem["code"] == "usage" and told in f"{problem['message']} {problem['hint']}", (words, problem)
    (changed,) = run("policy", "--signer", "ab" * 32)
    assert (changed["signers"], changed["signers_only"]) == (["ab" * 32], True)
    (changed,) = run("policy", "--signer", "none")
    assert (changed["signers"], changed["signers_only"]) == (["ab" * 32], False)
    (problem,) = run("policy", "--delta", "none", code=REMOTE)
    assert "max_epsilon needs a delta" in problem["message"]

    *experiments, whole = run("budget", "show", "people")
    assert [row["experiment"] for row in experiments] == [FIRST, SECOND]
    assert [(row["rounds_spent"], row["rounds_reserved"], row["rounds_refunded"]) for row in experiments] == [
        (2, 0, 1),
        (1, 1, 0),
    ]
    assert experiments[0]["epsilon_spent"] == pytest.approx(total_cost([Gaussian(4.0, 2)], DELTA).epsilon)
    assert whole["epsilon_year_spent"] == pytest.approx(total_cost([Gaussian(4.0, 3)], DELTA).epsilon)
    assert whole["epsilon_year"] == pytest.approx(total_cost([Gaussian(4.0, 4)], DELTA).epsilon)
    assert whole["limits"][-1] == {"scope": "365 days", "epsilon": 6.0, "delta": DELTA}

    (verified,) = run("budget", "verify", "people", "--head", whole["digest"][:16])
    assert (verified["entries"], verified["fault"], verified["digest"]) == (11, None, whole["digest"])
    (unknown,) = run("budget", "verify", "--head", "f" * 16, code=1)
    assert "no entry has the digest" in unknown["fault"]
    (problem,) = run("budget", "verify", "--head", whole["digest"][:8], code=USAGE)
    assert "first 16 hexadecimal digits or more" in problem["message"], "too short is no broken ledger"

    (kept,) = run("budget", "receipt", "people")
    assert (kept["entries"], kept["digest"]) == (11, whole["digest"])
    assert kept["epsilon_year_spent"] > 0 and kept["delta"] > 0
    receipt = tmp_path / kept["path"]
    (continued,) = run("budget", "verify", "--receipt", str(receipt))
    assert (continued["population"], continued["fault"]) == ("people", None)
    entry = json.loads(receipt.read_text())
    for changes, told in (
        ({"sequence": 12}, "its digest does not match its content"),
        ({"signature": "A" * 86 + "=="}, "its signature is not the coordinator's"),
    ):
        receipt.write_text(json.dumps({**entry, **changes}))
        (fault,) = run("budget", "verify", "people", "--receipt", str(receipt), code=1)
        assert told in fault["fault"]
    receipt.write_text("[]")
    (problem,) = run("budget", "verify", "people", "--receipt", str(receipt), code=BAD_INPUT)
    assert problem["code"] == "file_unusable"

    (plotted,) = run("budget", "plot", "people")
    picture = ElementTree.parse(tmp_path / plotted["path"])
    words = [node.text or "" for node in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert "people: privacy budget" in words and "allowed" in words
    assert sum("by rounds" in word for word in words) == 2
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}polyline"))) == 5
    (problem,) = run("budget", "plot", "--out", "budget.png", code=BAD_INPUT)
    assert problem["code"] == "report_format"

    _people_read_the_same(program)
    (problem,) = run("budget", "show", "nobody", code=REMOTE)
    assert problem["code"] == "population_unknown"
    receipt.write_text(json.dumps(entry))
    with sqlite3.connect(tmp_path / ".coterie" / "server" / "coterie.db") as database:
        database.execute("DELETE FROM ledger WHERE sequence = 11")
        database.execute("UPDATE chains SET sequence = 10, digest = ? WHERE name LIKE 'ledger/%'", (entry["previous"],))
    database.close()
    (whole,) = run("budget", "verify", "people")
    assert (whole["entries"], whole["fault"]) == (10, None), "by itself a chain does not show that its end is missing"
    (cut,) = run("budget", "verify", "people", "--receipt", str(receipt), code=1)
    assert "the receipt is of entry 11 and the ledger ends at 10" in cut["fault"]
    with sqlite3.connect(tmp_path / ".coterie" / "server" / "coterie.db") as database:
        database.execute(
            "UPDATE ledger SET event = replace(event, '\"multiplier\":4', '\"multiplier\":9') WHERE sequence = 4"
        )
    database.close()
    (broken,) = run("budget", "verify", "people", code=1)
    assert broken["broken"] == 4 and "entry 4: its digest does not match its content" in broken["fault"]
    for words in (("budget", "plot", "people"), ("budget", "receipt", "people")):
        (problem,) = run(*words, code=BAD_INPUT)
        assert problem["code"] == "ledger_broken"


def _people_read_the_same(program: Program) -> None:
    """The same as sentences and tables."""
    for words, said in (
        (("budget", "show"), "over the last 365 days ε"),
        (("budget", "show"), "Rounds: paid, reserved"),
        (("budget", "verify"), "all 11 entries are valid"),
        (("policy",), "max_epsilon_per_year"),
    ):
        code, out = program(*words)
        assert code == 0 and said in out, out
