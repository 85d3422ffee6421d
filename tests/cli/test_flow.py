"""A coordinator, clients and the researcher's commands, each a program of its own, over loopback HTTP."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coterie.cli.failures import BAD_INPUT, REMOTE
from coterie.cli.output import short_id
from coterie.protocol.signing import SigningKey
from tests.patience import patience
from tests.prepared import Errors, Program, start

Coterie = Callable[..., Any]
PROGRAM = (sys.executable, "-m", "coterie.cli.main")


def hear_interrupts() -> None:
    """In the child, before it runs: a shell that started these tests in the background left SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def running(*words: str, cwd: Path, environment: dict[str, str]) -> Generator[Program]:
    """A command that stays. It is interrupted at the end, and must end well."""
    process = start(words, cwd=cwd, env=environment, stderr=Errors.DROPPED)
    try:
        yield process
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=patience(30))
        assert process.returncode == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def next_event(process: Program, name: str) -> dict[str, Any]:
    """Read a process's JSON lines up to the event of this name."""
    for line in process.stdout or ():
        event = json.loads(line)
        if event["event"] == name:
            return event
    raise AssertionError(f"the process ended before {name!r}")


@dataclass(frozen=True)
class Place:
    """A project with a coordinator: the folder, and the settings with which every command finds it."""

    folder: Path
    url: str
    settings: dict[str, str]


@pytest.fixture
def place(coterie: Coterie, tmp_path: Path, environment: dict[str, str]) -> Generator[Place]:
    assert coterie("new", "project").code == 0
    folder = tmp_path / "project"
    with running("server", "--port", "0", "--json", cwd=folder, environment=environment) as server:
        ready = next_event(server, "ready")
        yield Place(folder, ready["url"], {"COTERIE_URL": ready["url"]})


@pytest.mark.timeout(900)  # twenty-five commands, each a program that starts
def test_from_submit_to_model(coterie: Coterie, place: Place, environment: dict[str, str]) -> None:
    def run(*words: str, code: int = 0) -> list[dict[str, Any]]:
        done = coterie(*words, "--json", cwd=place.folder, **place.settings)
        assert done.code == code, done.err
        return done.events

    (submitted,) = run("submit", "experiment.py", "--rounds", "2")
    assert submitted["population"] == "machines"
    assert submitted["join"].startswith(f"coterie client {place.url} --token ")
    assert stat_mode(place.folder / ".coterie/keys/researcher.key") == 0o600
    assert stat_mode(place.folder / ".coterie/server/admin.token") == 0o600
    join = ("client", place.url, "--token", submitted["token"], "--json")

    (dry,) = run(*join[:-1], "--name", "dry", "--data", "data/site-3.csv", "--dry-run")[-1:]
    assert dry["event"] == "dry_run"
    assert {section["name"] for section in dry["sections"]} >= {"delta"}
    assert dry["total_bytes"] > 0
    (wrong,) = run(*join[:-1], "--name", "wrong", "--data", "README.md", code=BAD_INPUT)[-1:]
    assert wrong["code"].startswith("data_")
    bad = place.folder / "bad.csv"
    bad.write_text((place.folder / "data/site-1.csv").read_text(encoding="utf-8") + "1,2,x,4,idle\n", encoding="utf-8")
    (wrong,) = run(*join[:-1], "--name", "wrong", "--data", "bad.csv", code=BAD_INPUT)[-1:]
    assert wrong["code"] == "data_cell"
    assert "vibration" in wrong["message"]
    assert "241" in wrong["message"]

    with (
        running(*join, "--name", "one", "--data", "data/site-1.csv", cwd=place.folder, environment=environment),
        running(*join, "--name", "two", "--data", "data/site-2.csv", cwd=place.folder, environment=environment),
    ):
        *rounds, finished = run("watch")
        assert [(row["event"], row["state"]) for row in rounds] == [("round", "committed")] * 2
        assert finished["rounds"] == 2
        assert finished["reason"] == "completed"
        listed = run("list", "devices")
        assert {device["state"] for device in listed} == {"active"}
        assert {device["name"]: device["accepted"] for device in listed} == {"dry": 0, "one": 2, "two": 2}
    (revoked,) = run("devices", "revoke", "two")
    assert (revoked["state"], revoked["name"]) == ("revoked", "two")
    (unknown,) = run("devices", "revoke", "three", code=REMOTE)
    assert unknown["code"] == "device_unknown"
    (drawn,) = run("report", "machines")
    assert drawn["committed"] == 2 and drawn["worst_decile_accuracy"] is not None
    assert (place.folder / drawn["path"]).is_file() and (
        place.folder / ".coterie/reports/machines/rounds.csv"
    ).is_file()
    assert [row["name"] for row in run("list")] == ["machines"]
    assert [row["name"] for row in run("list", "populations")] == ["machines"]
    assert [row["round"] for row in run("models", "list", "machines")] == [0, 1, 2]
    (written,) = run("models", "download", "machines", "weights.safetensors", "--form", "weights", "--version", "2")
    assert (place.folder / written["path"]).stat().st_size == written["bytes"]
    (missing,) = run("models", "download", "machines", "x.onnx", "--version", "77", code=REMOTE)
    assert missing["code"] == "model_unknown"
    (delivered,) = run("export", "machines", "--version", "1", "--out", "delivered.onnx", "--repeats", "2")
    assert (place.folder / delivered["path"]).stat().st_size == delivered["report"]["after"]["bytes"]

    (again,) = run("submit", "experiment.py", "--initial", "weights.safetensors")
    models = run("models", "list", again["experiment"])
    assert models[0]["sha256"] == run("models", "list", submitted["experiment"])[2]["sha256"]
    (taken,) = run("models", "download", "machines", "weights.safetensors", code=BAD_INPUT)
    assert taken["code"] == "file_exists"
    named = coterie("models", "download", "machines", "named.onnx", cwd=place.folder, **place.settings)
    assert f"has no round committed; this is {submitted['experiment']}" in named.out
    first = coterie("models", "download", again["experiment"], "first.onnx", cwd=place.folder, **place.settings)
    assert "No round is committed yet" in first.out
    assert (
        "No round" not in coterie("models", "download", submitted["experiment"], cwd=place.folder, **place.settings).out
    )
    (stopped,) = run("stop")
    assert stopped["experiment"] == again["experiment"]
    key = place.folder / ".coterie/keys/researcher.key"
    key.rename(key.with_name("elsewhere"))
    lost = coterie("submit", "experiment.py", cwd=place.folder, **place.settings)
    assert f"Warning: A new signing key was made in {key}" in lost.out and "2 clients" in lost.out
    assert f'signers = ["{SigningKey.load_or_create(key).public}"]' in lost.out
    run("stop")
    assert run("watch", again["experiment"], code=1)[-1]["reason"] == "stopped"
    (unknown,) = run("watch", "nonsense", code=REMOTE)
    assert unknown["code"] == "experiment_unknown"
    assert "coterie list" in unknown["hint"]
    (folder,) = run("models", "download", "machines", "data", code=BAD_INPUT)
    assert folder["code"] == "file_unusable"
    (no_weights,) = run("submit", "experiment.py", "--initial", "experiment.py", code=BAD_INPUT)
    assert no_weights["message"].startswith("experiment.py holds no weights: ")


def test_a_name_of_several_running_experiments_stops_none_of_them(inside: Coterie, place: Place) -> None:
    def run(*words: str) -> Any:
        return inside(*words, cwd=place.folder, **place.settings)

    (first,) = run("submit", "experiment.py", "--json").events
    identifier = first["experiment"]
    second = run("submit", "experiment.py").out
    assert f"{short_id(identifier)} of the same name is still running" in second
    assert f"coterie stop {short_id(identifier)}" not in second and "coterie stop exp_" in second
    several = run("stop", "machines", "--json")
    (error,) = several.events
    assert (several.code, error["code"]) == (BAD_INPUT, "experiment_ambiguous")
    assert short_id(identifier) in error["hint"]
    (stopped,) = run("stop", "--json").events
    assert stopped["experiment"] != identifier, "without a name it is the newest"
    (stopped,) = run("stop", "machines", "--json").events
    assert stopped["experiment"] == identifier, "the one that is left running, though it is not the newest"


def stat_mode(path: Path) -> int:
    """The permission bits of a file."""
    return os.stat(path).st_mode & 0o777


def test_a_second_coordinator_is_refused(coterie: Coterie, place: Place) -> None:
    port = place.url.rpartition(":")[2]
    taken = coterie("server", "--port", port, "--folder", "other", cwd=place.folder)
    assert taken.code == BAD_INPUT
    assert "error[port_in_use]" in taken.err
    locked = coterie("server", "--port", "0", cwd=place.folder)
    assert locked.code == BAD_INPUT
    assert "error[folder_in_use]" in locked.err


def test_a_public_address_needs_tls(inside: Coterie) -> None:
    done = inside("server", "--host", "0.0.0.0", "--port", "0")
    assert done.code == BAD_INPUT
    assert "error[tls_required]" in done.err


def test_a_wrong_token_is_refused(inside: Coterie, place: Place) -> None:
    done = inside("list", "--token", "coterie_admin_x_y", cwd=place.folder, **place.settings)
    assert done.code == REMOTE
    assert "error[unauthenticated]" in done.err


def test_a_coordinator_stops_when_its_standard_input_closes(tmp_path: Path, environment: dict[str, str]) -> None:
    server = subprocess.Popen(
        [*PROGRAM, "server", "--port", "0", "--json", "--stop-with-stdin"],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with server:
        next_event(server, "ready")
        out, _ = server.communicate(timeout=patience(30))
    assert server.returncode == 0
    assert json.loads(out.splitlines()[-1]) == {"event": "stopped"}
