"""The mistakes that people make first. Each ends with one message that names the thing and says what to do; the test
prints it, so that `pytest -s` shows them all.
"""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from test_flow import PROGRAM, next_event, running

from coterie.cli import doctor
from coterie.cli.main import run
from coterie.protocol.files import storage_error
from tests import prepared
from tests.patience import patience
from tests.ports import steady_port
from tests.prepared import Done, start

ROOT = Path(__file__).resolve().parents[2]
LIMITED = Path(__file__).with_name("limited.py")
TOKEN = re.compile(r"--token (\S+)")
FOREIGN = """
from dataclasses import replace
from experiment import clients, experiment as starter

Base = type("Module", (), {"__module__": "torch.nn.modules.module"})


class Net(Base):
    pass


experiment = replace(starter, model=Net())
"""
EXTERNAL = """
from coterie import Experiment, ExternalModel, RoundPolicy
from experiment import clients, schema

model = ExternalModel({"weights": (4, 3)}, metrics=("accuracy",))
experiment = Experiment(name="own", model=model, schema=schema, rounds=RoundPolicy(rounds=1, cohort=2))
"""

RANGED = """
from dataclasses import replace
from pathlib import Path
from coterie import DataSchema, Feature, Label
from coterie.compute import nn
from experiment import experiment as starter

Path("ranged.csv").write_text("size,grade\\n1.0,0\\n2.0,7\\n")
grade = Label(name="grade", column="grade", dtype="int32", low=0, high=4)
size = Feature(name="size", dtype="float32", shape=(1,), columns=("size",), low=0.0, high=9.0)
schema = DataSchema(features=(size,), label=grade)
experiment = replace(starter, schema=schema, model=nn.Sequential(nn.Linear(1, 5)))
clients = [Path("ranged.csv")] * 2
"""


@dataclass(frozen=True)
class Place:
    """A starter project, its coordinator, and a token with which clients join."""

    folder: Path
    url: str
    token: str
    environment: dict[str, str]

    def run(self, *words: str) -> Done:
        return prepared.run(words, cwd=self.folder, env=self.environment, timeout=patience(60))

    def client(self, data: str, *more: str) -> tuple[str, ...]:
        return ("client", self.url, "--token", self.token, "--data", data, "--once", *more)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Generator[Place]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("COTERIE_")}
    environment = {**kept, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "200"}
    root = tmp_path_factory.mktemp("mistakes")
    start(("new", "project"), cwd=root, env=environment).communicate(timeout=patience(60))
    folder = root / "project"
    with running("server", "--port", "0", "--json", cwd=folder, environment=environment) as server:
        url = next_event(server, "ready")["url"]
        environment["COTERIE_URL"] = url
        here = Place(folder, url, "", environment)
        found = TOKEN.search(here.run("submit", "experiment.py").out)
        assert found is not None
        yield Place(folder, url, found[1], environment)


def changed(place: Place, name: str, *changes: tuple[str, str], of: str = "experiment.py") -> str:
    """A copy of one of the project's files in which each text is replaced."""
    text = (place.folder / of).read_text(encoding="utf-8")
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after, 1)
    (place.folder / name).write_text(text, encoding="utf-8")
    return name


def site(place: Place, name: str, before: str, after: str) -> tuple[str, ...]:
    """Joining with a copy of the first site's rows in which the first match of a pattern is replaced."""
    text = (place.folder / "data" / "site-1.csv").read_text(encoding="utf-8")
    (place.folder / name).write_text(re.sub(before, after, text, count=1, flags=re.MULTILINE), encoding="utf-8")
    return place.client(name, "--name", name.partition(".")[0])


def written(place: Place, name: str, text: str) -> str:
    (place.folder / name).write_text(text, encoding="utf-8")
    return name


def simulated(*changes: tuple[str, str]) -> Callable[[Place], tuple[str, ...]]:
    return lambda place: ("simulate", changed(place, "mistake.py", *changes))


def admin(place: Place) -> str:
    return (place.folder / ".coterie" / "server" / "admin.token").read_text(encoding="utf-8").strip()


PRIVATE = "holdout=0.2,\n    privacy=UserLevel(epsilon={}, delta=1e-5, clip=1.0),"
IMPORTED = ("from coterie import ", "from coterie import UserLevel\nfrom coterie import ")
FIRST_ROW = r"\A(.*\n)[^,]*,"


@dataclass(frozen=True)
class Mistake:
    """What somebody types, and what the answer says. code: of the error, None for a run that ends well and warns."""

    words: Callable[[Place], tuple[str, ...]]
    code: str | None
    says: tuple[str, ...]
    settings: dict[str, str] = field(default_factory=dict[str, str])


MISTAKES: dict[str, Mistake] = {
    "a typo in a command": Mistake(lambda _: ("clinet",), "usage", ("'clinet'", "Did you mean 'client'")),
    "a typo in a field of the policy": Mistake(
        lambda place: place.client("data/site-1.csv", "--policy", written(place, "p.toml", "min_chort = 5\n")),
        "policy_file", ("p.toml, line 1", "min_chort", "Did you mean min_cohort?"),
    ),
    "a typo in a field of the round policy": Mistake(
        simulated(("RoundPolicy(rounds=8", "RoundPolicy(roundz=8")),
        "message_invalid", ("mistake.py, line 39", "/roundz", "Did you mean rounds?"),
    ),
    "a typo in a field of the experiment": Mistake(
        simulated(("batch_size=16", "batchsize=16")),
        "experiment_file", ("mistake.py, line", "batchsize", "Did you mean batch_size?"),
    ),
    "a layer by another framework's name": Mistake(
        simulated(("nn.ReLU()", "nn.Relu()")), "experiment_file", ("mistake.py, line 33", "fix:  Did you mean ReLU?")
    ),
    "an optimizer by another framework's name": Mistake(
        simulated(("optim.sgd(0.1, momentum=0.9)", "optim.Adam(0.1)")),
        "experiment_file", ("fix:  Here that is optim.adam.",),
    ),
    "a loss by another framework's name": Mistake(
        simulated(("losses.softmax_cross_entropy", "losses.cross_entropy")),
        "experiment_file", ("fix:  Here that is softmax_cross_entropy.",),
    ),
    "a wrong token to join": Mistake(
        lambda place: ("client", place.url, "--token", "secret", "--data", "data/site-1.csv"),
        "unauthenticated", ("coterie_<kind>_<id>_<secret>", "Copy the whole token"),
    ),
    "a token of another coordinator": Mistake(
        lambda _: ("list", "--token", ADMIN), "unauthenticated", ("not valid here", "Ask the operator for a new one")
    ),
    "an administrator's token to join": Mistake(
        lambda place: ("client", place.url, "--token", admin(place), "--data", "data/site-1.csv", "--name", "chief"),
        "token_role", ("of the kind admin", "coterie tokens make --population NAME"),
    ),
    "a client's token to administrate": Mistake(
        lambda place: ("list", "--token", place.token),
        "token_role", ("of the kind enrol", "admin.token of its folder (--token, COTERIE_TOKEN)"),
    ),
    "a wrong administrator's token": Mistake(
        lambda _: ("list", "--token", "secret"), "unauthenticated", ("Copy the whole token",)
    ),
    "a port that is taken": Mistake(
        lambda place: ("server", "--port", place.url.rpartition(":")[2], "--folder", "other"),
        "port_in_use", ("is in use", "--port"),
    ),
    "a wrong column": Mistake(
        lambda place: site(place, "column.csv", "current", "curent"),
        "data_missing", ("column.csv: column 'current' is missing", "If 'curent' is meant, rename it"),
    ),
    "text among numbers": Mistake(
        lambda place: site(place, "text.csv", FIRST_ROW, r"\1warm,"),
        "data_cell", ("text.csv: column 'temperature', row 1", "'warm' is not a number", "Fix or drop"),
    ),
    "NaN among numbers": Mistake(
        lambda place: site(place, "nan.csv", FIRST_ROW, r"\1nan,"),
        "data_cell", ("nan.csv: column 'temperature', row 1", "not a finite number", "Fix or drop"),
    ),
    "a number out of range": Mistake(
        lambda place: site(place, "range.csv", FIRST_ROW, r"\g<1>99999,"),
        "data_cell", ("range.csv: column 'temperature', row 1", "99999.0 is too high", "-1000 to 1000"),
    ),
    "a label out of range": Mistake(
        lambda place: ("simulate", written(place, "ranged.py", RANGED)),
        "data_cell", ("ranged.csv: column 'grade', row 2", "7", "0 to 4"),
    ),
    "a class of another name": Mistake(
        lambda place: site(place, "class.csv", "running$", "broken"),
        "data_cell", ("class.csv: column 'state', row ", "'broken' is not a class", "'idle', 'running', 'worn'"),
    ),
    "a model with too few outputs": Mistake(
        simulated(("nn.Linear(16, 3)", "nn.Linear(16, 2)")),
        "loss_mismatch", ("label goes up to class 2", "2 logits", "3 outputs"),
    ),
    "a model that does not fit the schema": Mistake(
        simulated(("nn.Linear(4, 16)", "nn.Linear(5, 16)")),
        "model_mismatch", ("readings: float32[16, 4]", "your code: Layer 0 of the model: Linear(inputs=5"),
    ),
    "no client": Mistake(
        simulated(('sorted(DATA.glob("site-*.csv"))', "[]")),
        "no_clients", ("at least one client", "Give the rows of each"),
    ),
    "one client": Mistake(
        simulated(('sorted(DATA.glob("site-*.csv"))', 'sorted(DATA.glob("site-1.csv"))')),
        "too_few_clients", ("needs 2 updates; the number of clients is 1", "Lower cohort and min_updates"),
    ),
    "a cohort beyond the population": Mistake(
        simulated(("cohort=2, min_updates=2", "cohort=9")),
        "too_few_clients", ("needs 9 updates; the number of clients is 3", "Lower cohort and min_updates"),
    ),
    "an impossible epsilon": Mistake(
        simulated(("holdout=0.2,", PRIVATE.format("-1")), IMPORTED),
        "message_invalid", ("UserLevel: /epsilon: Input should be greater than 0", "Let epsilon be greater than 0."),
    ),
    "a hopeless epsilon": Mistake(
        simulated(
            ("holdout=0.2,", PRIVATE.format("0.0001")), IMPORTED, ("deadline_s=60.0", "weight_cap=1, evaluate_every=0")
        ),
        None, ("would follow the noise",),
    ),
    "a learning rate of 50": Mistake(
        simulated(("sgd(0.1, momentum=0.9)", "sgd(50.0, momentum=0.9)")),
        "", ("Training diverged in round 1; lower the learning rate",),
    ),
    "a module of another framework as the model": Mistake(
        lambda place: ("simulate", written(place, "foreign.py", FOREIGN)),
        "model_mismatch", ("is a Net", "Export it from PyTorch with torch.onnx.export", "onnx.load("),
    ),
    "no trainer for a plan that needs one": Mistake(
        lambda place: ("simulate", written(place, "external.py", EXTERNAL)),
        "trainer_missing", ("clients need a trainer", "--trainer MODULE:NAME"),
    ),
    "a folder of data that is not there": Mistake(
        lambda place: place.client("dta"), "data_missing", ("dta: there is no such file or folder", "Give a folder")
    ),
    "a folder without data": Mistake(
        lambda place: place.client(str((place.folder / "empty").mkdir(exist_ok=True) or "empty")),
        "data_missing", ("empty: the folder has no .csv", "Name the folder"),
    ),
    "a client's folder that was deleted": Mistake(
        lambda place: ("client", place.url, "--data", "data/site-1.csv", "--name", "gone"),
        "token_missing", ("holds no membership yet", "Ask the coordinator's operator"),
    ),
    "a server that is not there": Mistake(
        lambda _: ("list", "--url", f"http://127.0.0.1:{steady_port()}", "--token", ADMIN),
        "unreachable", ("did not answer", "Check that it runs"),
    ),
    "a proxy that is dead": Mistake(
        lambda _: ("list", "--url", "https://coterie.example.org", "--token", ADMIN),
        "unreachable", ("through the proxy 127.0.0.1:9", "HTTPS_PROXY", "NO_PROXY"),
        {"https_proxy": "http://me:secret@127.0.0.1:9", "no_proxy": ""},
    ),
    "an address without http": Mistake(
        lambda place: ("client", "127.0.0.1:8765", "--data", "data/site-1.csv"),
        "configuration_invalid", ("'127.0.0.1:8765' is not the URL", "http://127.0.0.1:8765"),
    ),
    "a place that cannot be written to": Mistake(
        lambda place: place.client("data/site-1.csv", "--store", "/proc/client"),
        "storage_failed", ("/proc/client", "Create the folder first"),
    ),
    "an experiment that is not there": Mistake(
        lambda _: ("simulate", "experimnt.py"), "experiment_file", ("no file experimnt.py", "coterie new")
    ),
    "a name that the file does not have": Mistake(
        lambda _: ("simulate", "experiment.py:trial"),
        "experiment_file", ("no `trial`; it has DATA, clients, experiment",),
    ),
}  # fmt: skip
ADMIN = "coterie_admin_01a20a46ecf27be4b6feddbe26fe3c01_320B6eHrmq2BTTvQw3mNndOgBE17Y1EXYmN-LOW2uiX"


def heard(what: str, code: int, said: str) -> str:
    """What a command said; shown as well."""
    print(f"--- {what} (exit {code})\n{said}")
    assert "Traceback" not in said and "secret@" not in said
    return said


def outcome(what: str, done: Done | subprocess.CompletedProcess[str]) -> str:
    if isinstance(done, Done):
        return heard(what, done.code, done.out + done.err)
    return heard(what, done.returncode, done.stdout + done.stderr)


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_named_with_its_mend(
    what: str, place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: a program for each would take most of the time to start."""
    mistake = MISTAKES[what]
    monkeypatch.chdir(place.folder)
    for name, value in {"COTERIE_URL": place.url, "COLUMNS": "200", **mistake.settings}.items():
        monkeypatch.setenv(name, value)
    code = run(mistake.words(place))
    shown = capsys.readouterr()
    said = heard(what, code, shown.out + shown.err)
    assert (code == 0) == (mistake.code is None)
    if mistake.code:
        assert f"error[{mistake.code}]" in said
        assert "  fix:  " in said
    for words in mistake.says:
        assert words in said


def test_another_separator_is_read(place: Place) -> None:
    """Semicolons are no mistake any more: the file's first line says what separates its cells."""
    text = (place.folder / "data" / "site-2.csv").read_text(encoding="utf-8")
    written(place, "semicolons.csv", text.replace(",", ";"))
    done = place.run("client", place.url, "--token", place.token, "--data", "semicolons.csv", "--dry-run")
    assert done.code == 0, outcome("another separator", done)


def test_one_name_twice_is_refused_while_the_first_runs(place: Place) -> None:
    words = ("client", place.url, "--token", place.token, "--data", "data/site-2.csv", "--name", "twin")
    with running(*words, "--json", cwd=place.folder, environment=place.environment) as first:
        next_event(first, "joined")
        said = outcome("one name twice", place.run(*words))
    assert "error[store_in_use]" in said and "a folder of its own" in said


def test_a_full_disk_is_told_by_server_client_and_simulation(place: Place) -> None:
    for words in (
        ("server", "--port", "0", "--folder", "full"),
        ("client", place.url, "--token", place.token, "--data", "data/site-1.csv", "--name", "full"),
        ("simulate", changed(place, "full.py", ('name="machines"', 'name="full"'))),
    ):
        limited = start(words, program=LIMITED, cwd=place.folder, env=place.environment)
        out, err = limited.communicate(timeout=patience(60))
        said = heard(f"a full disk, {words[0]}", limited.wait(), out + err)
        assert limited.returncode != 0 and "error[storage_" in said and "  fix:  Free space on that disk" in said


def test_an_extra_that_is_missing_is_named_with_the_line_that_installs_it(place: Place) -> None:
    """A package that Python is told not to find stands in for one that is not installed."""
    hidden = place.folder / "hidden"
    hidden.mkdir(exist_ok=True)
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, package=None: None if name == 'fastapi' else find(name, package)\n"
    )
    done = subprocess.run(
        [*PROGRAM, "server", "--port", "0", "--folder", "other"],
        cwd=place.folder,
        env={**place.environment, "PYTHONPATH": str(hidden)},
        capture_output=True,
        text=True,
        timeout=patience(60),
    )
    said = outcome("a missing extra", done)
    assert "error[extra_missing]" in said and 'pip install "coterie[server]"' in said


def test_an_old_python_is_told_before_anything_is_installed(tmp_path: Path) -> None:
    """A script that says that it is Python 3.10 stands in for one."""
    shutil.copy(ROOT / "Makefile", tmp_path / "Makefile")
    old = tmp_path / "python3.10"
    old.write_text(
        f"#!/bin/sh\n[ \"$1\" = --version ] && echo 'Python 3.10.13' && exit\n"
        f'exec {sys.executable} -c "import sys; sys.version_info = (3, 10, 13); $2"\n'
    )
    old.chmod(0o755)
    (tmp_path / "pyproject.toml").touch()
    done = subprocess.run(
        ["make", "demo", f"PYTHON={old}"], cwd=tmp_path, capture_output=True, text=True, timeout=patience(30)
    )
    said = outcome("an old Python", done)
    assert done.returncode != 0 and not (tmp_path / ".venv").exists()
    assert "needs Python 3.11 or newer" in said and "Python 3.10.13" in said and "make PYTHON=python3.12 demo" in said


@dataclass(frozen=True)
class Interrupt:
    """A command that somebody ends by Ctrl-C after its first event of a kind. after: that event. says: what it then
    says; code: with which it ends.
    """

    words: Callable[[Place], tuple[str, ...]]
    after: str
    says: tuple[str, ...]
    code: int = 130


INTERRUPTS: dict[str, Interrupt] = {
    "a simulation": Interrupt(
        lambda place: ("simulate", changed(place, "long.py", ("rounds=8", "rounds=8000"), ('"machines"', '"long"'))),
        "round", ("are kept in .coterie/simulations/long", "the same command with --resume goes on", "interrupted"),
    ),
    "a command that watches": Interrupt(
        lambda place: ("submit", "experiment.py", "--watch"),
        "submitted", ("The experiment goes on", "coterie watch exp_", "coterie stop exp_"),
    ),
    "a client": Interrupt(
        lambda place: ("client", place.url, "--token", place.token, "--data", "data/site-1.csv", "--name", "leaving"),
        "joined", ("Stopping after this step; press Ctrl-C again to stop at once.", "Trained "), 0,
    ),
    "a coordinator": Interrupt(
        lambda place: ("server", "--port", "0", "--folder", "leaving-server"),
        "ready", ("has stopped; start it again in this folder to go on where it was",), 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", INTERRUPTS)
def test_who_interrupts_a_command_is_told_what_is_left_and_how_it_goes_on(what: str, place: Place) -> None:
    interrupt = INTERRUPTS[what]
    process = start(
        (*interrupt.words(place), "--json"), cwd=place.folder, env={**place.environment, "COTERIE_URL": place.url}
    )
    try:
        next_event(process, interrupt.after)
        # A command that follows an experiment begins to do so a moment after it said that it is submitted.
        time.sleep(patience(1.0) if interrupt.after == "submitted" else 0.0)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=patience(60))
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    heard(f"Ctrl-C ends {what}", process.wait(), said)
    assert process.returncode == interrupt.code
    for words in interrupt.says:
        assert words in said


def test_a_clock_that_is_not_set_is_found_by_doctor(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a client says of a certificate that its clock makes invalid is held in tests/client_sdk/test_tls.py."""
    monkeypatch.chdir(place.folder)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(doctor, "RELEASED", time.time() + 86400)
    code = run(("doctor",))
    said = heard("a clock that is not set", code, capsys.readouterr().out)
    assert code == 1 and "Set the clock: TLS certificates depend on it." in said


def test_a_disk_that_is_read_only_is_told(tmp_path: Path) -> None:
    error = storage_error(tmp_path / "client", OSError(errno.EROFS, "no"))
    said = heard("a read-only disk", 1, f"{error.message} {error.hint}")
    assert "Read-only file system" in said and "choose another folder (--store of a client" in said
