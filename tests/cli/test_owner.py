"""What an owner of data asks of a client on this machine: what it did, what would leave, and to leave."""

import json
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from test_flow import Place, next_event, running

from coterie.cli.failures import BAD_INPUT
from coterie.cli.main import run
from coterie.protocol.signing import SigningKey
from tests.patience import patience
from tests.prepared import start


@pytest.fixture
def place(tmp_path: Path, environment: dict[str, str]) -> Generator[Place]:
    """A starter project and its coordinator."""
    start(("new", "project"), cwd=tmp_path, env=environment).communicate(timeout=patience(60))
    folder = tmp_path / "project"
    with running("server", "--port", "0", "--json", cwd=folder, environment=environment) as server:
        yield Place(folder, next_event(server, "ready")["url"], {})


@pytest.fixture
def asked(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[dict[str, Any]]]:
    """Runs a command in this process, and gives its JSON lines."""
    monkeypatch.chdir(place.folder)
    monkeypatch.setenv("COTERIE_URL", place.url)

    def ask(*words: str, code: int = 0) -> list[dict[str, Any]]:
        capsys.readouterr()
        found = run([*words, "--json"])
        shown = capsys.readouterr()
        assert found == code, shown.err
        return [json.loads(line) for line in shown.out.splitlines()]

    return ask


def test_an_owner_sees_what_the_client_was_asked_and_what_it_sent_while_it_goes_on(
    asked: Callable[..., list[dict[str, Any]]],
    place: Place,
    environment: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (unknown,) = asked("client", "history", "--name", "one", code=BAD_INPUT)
    assert unknown["code"] == "store_unknown" and not (place.folder / ".coterie/one").exists()
    (submitted,) = asked("submit", "experiment.py", "--rounds", "1")
    signer = SigningKey.load_or_create(place.folder / ".coterie/keys/researcher.key").public
    join = ("client", place.url, "--token", submitted["token"])
    sites = {
        name: (*join, "--name", name, "--data", f"data/site-{site}.csv") for name, site in (("one", 1), ("two", 2))
    }
    with (
        running(*sites["one"], "--json", cwd=place.folder, environment=environment) as one,
        running(*sites["two"], cwd=place.folder, environment=environment) as two,
    ):
        plan = next_event(one, "plan")
        assert (plan["name"], plan["asks"], plan["signer"]) == ("machines", "", signer)
        assert asked("watch")[-1]["reason"] == "completed"
        query = ("query", "histogram", "state", "--population", "machines", "--devices", "2", "--min-updates", "2")
        answers = asked(*query, "--plain-aggregation")
        assert answers[-1]["event"] == "answer"
        while not (plan := next_event(one, "plan"))["asks"]:
            assert plan["name"] == "machines"  # it evaluated too
        assert (plan["asks"], plan["signer"]) == ("histogram", signer)
        for line in two.stdout or ():
            if "asks a question" in line:
                assert f"asks a question, {plan['name']!r} (histogram), signed by {signer}" in line
                break
        until = time.monotonic() + patience(30)
        while (found := asked("client", "history", "--name", "one"))[-1]["counted"] < 2:
            assert time.monotonic() < until
        trained, answered = (row for row in found if row["event"] == "took_part" and row["kind"] == "train")
        assert [(row["name"], row["asks"], row["signer"]) for row in (trained, answered)] == [
            ("machines", "", signer),
            (plan["name"], "histogram", signer),
        ]
        assert found[-1]["population"] == "machines" and found[-1]["bytes_up"] >= trained["bytes_up"] > 0
        assert found[-1]["epsilon"] == 0
        assert run(["client", "history", "--name", "one"]) == 0
        shown = capsys.readouterr().out
        (exported,) = asked("client", "export", "machines", "own/model.onnx", "--name", "one")
        assert exported["bytes"] == (place.folder / "own/model.onnx").stat().st_size and not exported["personal"]
        (unfound,) = asked("client", "export", "others", "model.onnx", "--name", "one", code=BAD_INPUT)
        assert unfound["code"] == "no_finished_task"
        (running_still,) = asked("client", "withdraw", "--name", "one", code=BAD_INPUT)
        assert running_still["code"] == "store_in_use"
        assert "Member of machines" in shown and "counted;" in shown
        assert f"question: {plan['name']} (histogram), round 1, signed by {signer[:12]}: sent" in shown
    (withdrawn,) = asked("client", "withdraw", "--name", "one")
    assert (withdrawn["population"], withdrawn["kept"]) == (
        "machines",
        [".coterie/one/device.db", ".coterie/one/device.key"],
    )
    assert {row["name"]: row["state"] for row in asked("list", "devices")} == {"one": "withdrawn", "two": "active"}
    (refused,) = asked(*sites["one"], code=BAD_INPUT)
    assert refused["code"] == "withdrawn" and "another --name" in refused["hint"]
    assert asked("client", "history", "--name", "one")[-1]["counted"] == found[-1]["counted"]
    assert run(["client", "withdraw", "--name", "one"]) == 0
    shown = capsys.readouterr().out
    assert ".coterie/one/device.db: what this client took part in" in shown and "was notified" in shown
