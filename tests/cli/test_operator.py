"""What an operator asks a coordinator for: tokens, events, and how devices fare."""

import json
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from test_flow import Place, next_event, running

from coterie.cli.failures import REMOTE
from coterie.cli.main import run
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


def test_tokens_are_made_listed_and_revoked(
    asked: Callable[..., list[dict[str, Any]]],
    place: Place,
    environment: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (submitted,) = asked("submit", "experiment.py")
    (made,) = asked(
        "tokens", "make", "--population", "machines", "--uses", "1", "--name", "site 7", "--expires", "3600"
    )
    assert (made["kind"], made["uses_left"], made["population"]) == ("enrol", 1, "machines")
    join = ("client", place.url, "--data", "data/site-1.csv", "--json")
    with running(
        *join, "--token", made["token"], "--name", "seven", cwd=place.folder, environment=environment
    ) as client:
        assert next_event(client, "joined")["population"] == "machines"
        (used,) = [row for row in asked("tokens", "list") if row["id"] == made["id"]]
        assert (used["uses_left"], used["name"], "token" in used) == (0, "site 7", False)
        given = submitted["token"].split("_")[2]
        (revoked,) = asked("tokens", "revoke", given)
        assert revoked["revoked"]
        (refused,) = asked(*join[:-1], "--token", submitted["token"], "--name", "late", code=REMOTE)[-1:]
        assert refused["code"] == "unauthenticated" and "revoked" in refused["message"]
        assert [device["state"] for device in asked("list", "devices")] == ["active"]
    (unknown,) = asked("tokens", "revoke", "nothing", code=REMOTE)
    assert unknown["code"] == "token_unknown" and "coterie tokens list" in unknown["hint"]
    (administrator,) = asked("tokens", "make", "--role", "admin", "--name", "second")
    assert (administrator["kind"], administrator["token"][:14]) == ("admin", "coterie_admin_")
    assert asked("list", "populations", "--token", administrator["token"])
    assert run(["tokens", "list"]) == 0
    shown = capsys.readouterr().out
    assert "site 7" in shown and "revoked" in shown and made["token"] not in shown


def test_events_are_printed_from_any_point_and_followed(
    asked: Callable[..., list[dict[str, Any]]],
    place: Place,
    environment: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (submitted,) = asked("submit", "experiment.py")
    every = asked("events")
    assert {"population.created", "experiment.created"} <= {event["type"] for event in every}
    assert [event["id"] for event in every] == sorted(event["id"] for event in every)
    only = asked("events", "machines")
    assert only and {event["experiment"] for event in only} == {submitted["experiment"]}
    assert asked("events", "--after", str(every[0]["id"])) == every[1:]
    run(["events"])
    shown = capsys.readouterr().out
    assert "experiment.created" in shown and len(shown.splitlines()) == len(every)
    following = start(
        ("events", "--follow", "--after", str(every[-1]["id"]), "--json"),
        cwd=place.folder,
        env={**environment, "COTERIE_URL": place.url},
    )
    try:
        asked("stop")
        until = time.monotonic() + patience(30)
        while next_event(following, "happened")["type"] != "experiment.finished":
            assert time.monotonic() < until
    finally:
        following.kill()
        following.communicate()


def test_the_audit_trail_is_listed_and_checked_by_its_command(
    place: Place, asked: Callable[..., list[dict[str, Any]]]
) -> None:
    *actions, first = asked("audit", "trail")
    assert [line["action"] for line in actions] == ["token.created"] and first["fault"] is None
    asked("tokens", "make", "--role", "auditor", "--name", "of the night shift")
    *actions, second = asked("audit", "trail", "--digest", first["digest"])
    assert (len(actions), second["entries"], second["fault"]) == (2, 2, None)
    assert second["digest"] == actions[-1]["digest"]
    *_, cut = asked("audit", "trail", "--digest", "ab" * 32, code=1)
    assert cut["fault"] == f"no entry has the digest {'ab' * 32}: the trail was rewritten or truncated"
