"""Laws over every command, and how the program fails."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from coterie.cli.client import Teller
from coterie.cli.failures import BAD_INPUT, BUG, CANNOT_TELL, FAILED, OK, REMOTE, USAGE, judge, report
from coterie.cli.output import Output
from coterie.errors import (
    ConfigurationError,
    CoterieError,
    DataError,
    InputError,
    InternalError,
    NotFound,
    PolicyRefused,
    RemoteError,
    Unreachable,
)
from coterie.protocol.device import Idle
from tests.patience import patience

Coterie = Callable[..., Any]
COMMANDS = (
    "demo",
    "new",
    "prepare",
    "query",
    "simulate",
    "server",
    "submit",
    "client",
    "client history",
    "client withdraw",
    "list",
    "watch",
    "report",
    "policy",
    "stop",
    "devices revoke",
    "populations make",
    "populations allow",
    "populations schema",
    "tokens list",
    "tokens make",
    "tokens revoke",
    "sessions make",
    "sessions list",
    "sessions show",
    "sessions end",
    "party join",
    "party show",
    "party pin",
    "party send",
    "party receive",
    "party align",
    "party run",
    "party report",
    "audit session",
    "events",
    "budget show",
    "budget verify",
    "budget plot",
    "models list",
    "models download",
    "export",
    "doctor",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_and_offers_json(inside: Coterie, command: str) -> None:
    done = inside(*command.split(), "--help")
    assert done.code == 0
    assert "--json" in done.out
    assert done.err == ""


def test_help_lists_every_command(inside: Coterie) -> None:
    done = inside("--help")
    assert done.code == 0
    for command in COMMANDS:
        assert f"\n  {command.split()[0]} " in done.out
    assert inside().out == done.out


def test_an_unknown_command_names_the_nearest(inside: Coterie) -> None:
    done = inside("simlate")
    assert done.code == USAGE
    assert "error[usage]" in done.err
    assert "simulate" in done.err
    assert done.out == ""


@pytest.mark.parametrize(
    "words",
    [
        ("new",),
        ("new", "a", "b"),
        ("simulate", "x.py", "--rounds", "0"),
        ("list", "apples"),
        ("doctor", "--nope"),
        ("doctor", "--port", "99999"),
        ("server", "--port", "99999"),
        ("server", "--port", "-1"),
        ("server", "--log-level", "loud"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(inside: Coterie, words: tuple[str, ...]) -> None:
    done = inside(*words)
    assert done.code == USAGE
    assert done.err.startswith("error[usage]: ")
    assert "Value error" not in done.err


def test_an_error_is_one_json_line_and_one_text(inside: Coterie, tmp_path: Path) -> None:
    done = inside("simulate", "absent.py", "--json")
    assert done.code == BAD_INPUT
    (line,) = done.events
    assert line["event"] == "error"
    assert line["code"] == "experiment_file"
    assert line["exit"] == BAD_INPUT
    assert line["hint"] in done.err
    assert line["doc"] == "docs/errors.md#experiment-file"


def test_a_place_that_cannot_hold_the_model_is_refused_before_training(inside: Coterie, tmp_path: Path) -> None:
    assert inside("new", "project").code == 0
    (tmp_path / "project/file").touch()
    for out in ("data", "file/infer.onnx", "/proc/nowhere/infer.onnx"):
        done = inside("simulate", "experiment.py", "--out", out, cwd=tmp_path / "project")
        assert done.code == BAD_INPUT, out
        if not out.startswith("/proc"):
            assert "error[file_unusable]" in done.err
            assert "  fix:  Name " in done.err
            assert done.out == ""


@pytest.mark.parametrize("holds", ["schema", "3", "'data/site-1.csv'"])
def test_clients_that_are_no_sequence_are_the_files_fault(holds: str, inside: Coterie, tmp_path: Path) -> None:
    assert inside("new", "project").code == 0
    with (tmp_path / "project/experiment.py").open("a") as file:
        file.write(f"\nmine = {holds}\n")
    done = inside("simulate", "experiment.py", "--clients", "mine", "--json", cwd=tmp_path / "project")
    assert (done.code, done.events[-1]["code"]) == (BAD_INPUT, "experiment_file")


def test_settings_of_an_edge_aggregator_need_a_coordinator_above(inside: Coterie) -> None:
    """Without it they would be passed over, and a coordinator of its own started."""
    done = inside("server", "--port", "0", "--upstream-token", "x", "--json")
    assert done.code == USAGE and "--upstream" in done.events[-1]["message"]


def test_a_reader_that_leaves_early_is_no_failure(
    coterie: Coterie, tmp_path: Path, environment: dict[str, str]
) -> None:
    assert coterie("new", "project").code == 0
    command = f"'{sys.executable}' -m coterie.cli.main simulate experiment.py --json | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path / "project",
        env=environment,
        capture_output=True,
        text=True,
        timeout=patience(60),
    )
    assert json.loads(done.stdout)["event"] == "round"
    assert done.stderr == ""
    assert done.returncode == 0


def test_a_client_tells_a_failure_once_until_something_else_happens(capsys: pytest.CaptureFixture[str]) -> None:
    tell = Teller(Output(json=False))
    failure = {"event": "error", "code": "unreachable", "message": "No answer.", "hint": None}
    waiting = {"event": "waiting", "seconds": 6.0}
    for event in (failure, failure, waiting, failure, {"event": "settled", "outcome": "counted"}, failure):
        tell(event)
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == ["error[unreachable]:", "asking", "settled:", "error[unreachable]:"]


def test_a_client_without_work_says_why_and_not_each_time_that_it_asks(capsys: pytest.CaptureFixture[str]) -> None:
    tell = Teller(Output(json=False))
    for reason in get_args(Idle):
        tell({"event": "idle", "reason": reason})
        for _ in range(3):
            tell({"event": "waiting", "seconds": 60.0, "reason": reason})
    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(get_args(Idle))
    assert "--trainer MODULE:OBJECT" in next(line for line in said if "has none" in line)


def test_without_a_token_the_researchers_commands_say_where_it_lies(inside: Coterie) -> None:
    for words in (("list",), ("watch", "x"), ("stop", "x"), ("models", "list", "x"), ("models", "download", "x")):
        done = inside(*words)
        assert done.code == BAD_INPUT, words
        assert "error[token_missing]" in done.err, words


def test_an_absent_coordinator_is_a_remote_failure(inside: Coterie) -> None:
    # Port 9 (discard) is privileged and unused here, so nothing of ours can listen on it.
    done = inside("list", "--url", "http://127.0.0.1:9", "--token", "coterie_admin_x_y")
    assert done.code == REMOTE
    assert "error[unreachable]" in done.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFound(), REMOTE),
        (Unreachable(), REMOTE),
        (RemoteError(), REMOTE),
        (DataError(), BAD_INPUT),
        (ConfigurationError(), BAD_INPUT),
        (FileNotFoundError(2, "No such file or directory", "x"), BAD_INPUT),
        (PolicyRefused(), FAILED),
        (CoterieError(), FAILED),
        (InternalError(), BUG),
        (ZeroDivisionError(), BUG),
        (OSError("no file to name"), BUG),
    ],
)
def test_exit_codes(error: Exception, code: int) -> None:
    known, exit_code = judge(error)
    assert exit_code == code
    assert known.message


def test_the_documented_exit_codes_are_the_codes() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    table = page.split("## Exit codes")[1].split("##")[0]
    documented = {int(line.split("|")[1]) for line in table.splitlines() if line.startswith("| ") and line[2].isdigit()}
    assert documented == {OK, FAILED, USAGE, REMOTE, BAD_INPUT, BUG, CANNOT_TELL, 130}


def test_the_documented_commands_are_the_commands() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert f"`coterie {command}" in page


def test_doctor_checks_this_machine(coterie: Coterie) -> None:
    done = coterie("doctor", "--json")
    assert done.code == 0, done.err
    *_, summary = done.events
    checks = [event for event in done.events if event["event"] == "check"]
    assert summary == {"event": "summary", "ok": True, "failed": []}
    names = {check["name"] for check in checks}
    assert {"python", "numpy", "onnxruntime", "provider CPUExecutionProvider", "write access", "clock"} <= names
    provider = next(check for check in checks if check["name"] == "provider CPUExecutionProvider")
    assert provider["ok"] is True
    shown = coterie("doctor").out
    assert shown.count("\n") > len(checks) and "every node" in shown and "trusted" in shown


def test_doctor_fails_where_nothing_can_be_written(inside: Coterie, tmp_path: Path) -> None:
    (tmp_path / ".coterie").write_text("a file where the folder should be", encoding="utf-8")
    done = inside("doctor", "--json")
    assert done.code == FAILED
    assert done.events[-1]["failed"] == ["write access"]


def test_json_is_json_whatever_it_holds() -> None:
    from coterie.cli.output import jsonable

    value = {"loss": float("nan"), "path": Path("x"), "rows": ({"up": float("inf")}, None, True)}
    assert json.loads(json.dumps(jsonable(value), allow_nan=False)) == {
        "loss": None,
        "path": "x",
        "rows": [{"up": None}, None, True],
    }


@pytest.mark.parametrize("name", ["../site", "a/b", "", ".", "server", "keys", "C:\\site"])
def test_a_clients_name_reaches_no_folder_but_its_own(inside: Coterie, tmp_path: Path, name: str) -> None:
    done = inside("client", "http://127.0.0.1:9", "--token", "t", "--data", "rows.csv", "--name", name)
    assert done.code == USAGE
    assert "error[usage]: --name" in done.err and "--store" in done.err
    assert not list(tmp_path.rglob("device.db"))


def test_python_runs_it_as_a_module(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "coterie", "--version"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.split()[0]) == (0, "coterie")


def test_shells_complete_commands(environment: dict[str, str]) -> None:
    asked = {"_COTERIE_COMPLETE": "complete_bash", "COMP_WORDS": "coterie mod", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "coterie"], env={**environment, **asked}, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["models"]


@pytest.mark.parametrize(("terminal", "settings", "coloured"), [
    (True, {}, True), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False), (False, {}, False),
])  # fmt: skip
def test_errors_have_colours_where_a_terminal_shows_them(
    terminal: bool, settings: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    report(InputError("Wrong.", hint="Mend it."), as_json=False)
    assert ("\033[1;31merror[input_invalid]:\033[0m Wrong." in stream.getvalue()) == coloured
    assert ("\033[" in stream.getvalue()) == coloured
