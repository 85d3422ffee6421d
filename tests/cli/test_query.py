"""`coterie query` against a coordinator that is a program of its own, and devices in this process that answer it."""

import ast
import asyncio
import json
import signal
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from test_flow import next_event, running

from coterie.aggregation import analytics
from coterie.cli import main
from coterie.cli.failures import BAD_INPUT, INTERRUPTED, REMOTE, USAGE
from coterie.cli.output import short_id
from coterie.cli.places import RESEARCHER_KEY
from coterie.cli.query_kinds import in_python
from coterie.client_sdk.control.asking import answered
from coterie.client_sdk.control.control import Control
from coterie.client_sdk.control.submit import signing_key
from coterie.client_sdk.device.agent import Agent
from coterie.client_sdk.device.policy import DevicePolicy
from coterie.client_sdk.device.settings import AgentSettings
from coterie.protocol.control import PolicyChange
from coterie.protocol.schema import DataSchema, Feature, Label
from tests.patience import patience
from tests.prepared import start

Arrays = dict[str, NDArray[Any]]
Program = Callable[..., tuple[int, str, str]]
DEVICES = 6
CLASSES = ("no", "mild", "grave")
SCHEMA = DataSchema(
    (
        Feature(name="pulse", shape=(2,), low=0, high=200, columns=("calm", "busy")),
        Feature(name="word", dtype="int32"),
    ),
    Label(name="ill", classes=CLASSES),
)


def rows(seed: int) -> Arrays:
    """Rows as a device holds them."""
    generator = np.random.Generator(np.random.PCG64(seed))
    count = 40 + 5 * seed
    return {
        "pulse": generator.normal((60, 90), 12, (count, 2)).astype(np.float32),
        "word": (generator.zipf(1.7, count) % 256).astype(np.int32),
        "ill": generator.choice(CLASSES, count, p=(0.7, 0.2, 0.1)),
    }


PARTS = [rows(number) for number in range(DEVICES)]
WHOLE = {name: np.concatenate([part[name] for part in PARTS]) for name in PARTS[0]}
ROWS = len(WHOLE["ill"])


@dataclass(frozen=True)
class Asking:
    """How a test asks. run: a command in this process. control: the administrator's, of the coordinator at url."""

    url: str
    run: Program
    control: Control

    def answer(self, *words: str) -> dict[str, Any]:
        """The answer to a question, and beside it what the command said to people."""
        code, out, err = self.run("query", *words, "--json")
        assert code == 0, err
        events = [json.loads(line) for line in out.splitlines()]
        assert [event["event"] for event in events] == [
            "submitted", *["round"] * events[-1]["rounds"], "answer",
        ]  # fmt: skip
        return events[-1]

    def shown(self, *words: str) -> str:
        """What people see of it."""
        code, out, err = self.run("query", *words)
        assert code == 0, err
        return out


@contextmanager
def joined(url: str, token: str, folder: Path, parts: Sequence[Arrays] = PARTS, **settings: Any) -> Generator[None]:
    """Devices that join with this token and work, in a loop of their own, until the end. settings: more of theirs."""
    agents = [
        Agent(AgentSettings(url=url, folder=folder / f"device{number}", data=part, token=token, **settings))
        for number, part in enumerate(parts)
    ]
    loop = asyncio.new_event_loop()

    async def work() -> None:
        try:
            await asyncio.gather(*(agent.run() for agent in agents))
        finally:
            for agent in agents:
                await agent.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(work()))
    thread.start()
    try:
        yield
    finally:
        for agent in agents:
            loop.call_soon_threadsafe(agent.stop)
        thread.join(patience(30))
        loop.close()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    """Runs a command in this process and folder; its exit code, output and words."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main.run(words)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def coordinator(
    program: Program, tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Generator[Asking]:
    """A coordinator without any population."""
    quick = {"COTERIE_RETRY_FLOOR_S": "0.02", "COTERIE_RETRY_IDLE_S": "0.02"}
    with running("server", "--port", "0", "--json", cwd=tmp_path, environment={**environment, **quick}) as server:
        url = next_event(server, "ready")["url"]
        monkeypatch.setenv("COTERIE_URL", url)
        token = (tmp_path / ".coterie/server/admin.token").read_text(encoding="utf-8").strip()
        with Control(url, token=token) as control:
            yield Asking(url, program, control)


@pytest.fixture
def people(coordinator: Asking, tmp_path: Path) -> Generator[Asking]:
    """A population whose devices have joined and wait."""
    control = coordinator.control
    control.ensure_population("people", SCHEMA, signers=[signing_key(RESEARCHER_KEY).public])
    token = control.enrolment_token("people").token
    with joined(coordinator.url, token, tmp_path):
        while control.population("people").devices < DEVICES:
            threading.Event().wait(0.05)
        yield coordinator


def test_every_question_is_answered(people: Asking) -> None:
    """Exactly, without noise; with ranges and classes as the population's schema has them."""
    assert people.answer("count", "pulse")["answer"]["rows"] == ROWS
    found = people.answer("mean", "pulse")
    assert found["asked"] == DEVICES and found["privacy"] is None and found["aggregation"] == "open"
    assert found["answer"]["mean"] == pytest.approx(WHOLE["pulse"].mean(axis=0), rel=1e-5)
    assert found["answer"]["variance"] == pytest.approx(WHOLE["pulse"].var(axis=0), rel=1e-4)
    counts = [int((WHOLE["ill"] == name).sum()) for name in CLASSES]
    assert people.answer("histogram", "ill")["answer"]["counts"] == counts
    shown = people.shown("histogram", "ill", "--secure-aggregation")
    for name, count in zip(CLASSES, counts, strict=True):
        assert any(line.split()[:2] == [name, str(count)] for line in shown.splitlines()), shown
    assert "secure, semi_honest" in shown and "Without noise: exact sums" in shown
    (median,) = people.answer("quantiles", "pulse", "--levels", "0.5", "--rounds", "2")["answer"]["quantiles"]
    exact = float(np.quantile(WHOLE["pulse"], 0.5, method="inverted_cdf"))
    assert median["lower"] <= exact < median["upper"] < median["lower"] + 0.1
    words, times = np.unique(WHOLE["word"], return_counts=True)
    frequent = {(int(word), int(count)) for word, count in zip(words, times, strict=True) if count >= 0.1 * ROWS}
    hitters = people.answer("heavy-hitters", "word", "--bits", "8", "--fraction", "0.1")["answer"]
    assert {tuple(pair) for pair in hitters["counts"]} == frequent and len(frequent) > 1


def test_noise_is_stated_and_paid_from_the_ledger_until_nothing_is_left(people: Asking) -> None:
    private = ("--epsilon", "60", "--delta", "1e-6", "--clip", "100")
    found = people.answer("count", "pulse", *private)
    assert 0 < found["answer"]["error"] < 100
    assert abs(found["answer"]["rows"] - ROWS) < 6 * found["answer"]["error"]
    assert abs(found["answer"]["shortened"]["clients"]) < 6 * found["answer"]["shortened"]["error"]
    (spent,) = people.control.budget("people").experiments
    assert found["privacy"]["epsilon_spent"] == spent.epsilon_spent == pytest.approx(60)
    assert (spent.experiment, found["privacy"]["rounds_spent"]) == (found["experiment"], 1)

    together = ("--mechanism", "discrete_gaussian", "--secure-aggregation")
    shown = people.shown("mean", "pulse", *private, *together)
    assert "calm" in shown and "busy" in shown and "a standard error, of noise alone" in shown
    (paid,) = (one for one in people.control.budget("people").experiments if one.experiment != spent.experiment)
    assert f"Paid from the ledger of people: ε {paid.epsilon_spent:.4f} at δ 1e-06, for one round" in shown
    assert "devices have more than the clip of 100 rows" in shown
    shown = people.shown("quantiles", "pulse", *private, "--levels", "0.5")
    assert "Round 6 of 6: 6 devices answered." in shown and "a probability of 95 % at least" in shown

    people.control.change_policy("people", PolicyChange(max_epsilon_per_year=150.0, delta=1e-6))
    code, out, _ = people.run("query", "count", "pulse", *private, "--json")
    assert code == REMOTE and json.loads(out)["code"] == "budget_year"
    code, out, _ = people.run("query", "count", "pulse", "--json")
    assert code == REMOTE and "differential privacy" in json.loads(out)["message"]


WRONG = {
    "count pulse --delta 1e-6": (USAGE, "usage", "--delta has no effect without --epsilon"),
    "count pulse --mechanism local": (USAGE, "usage", "--mechanism has no effect without --epsilon"),
    "count pulse --bins 3": (USAGE, "usage", "It takes a column alone"),
    "mean pulse --levels 0.5": (USAGE, "usage", "It takes --low --high"),
    "quantiles pulse --levels half": (USAGE, "usage", "--levels must be numbers from 0 to 1 separated by commas"),
    "median pulse": (USAGE, "usage", "count"),
    "count pulse --devices 0": (USAGE, "usage", "--devices"),
}
ASKED_WRONG = {
    "count nothing --devices 3": (BAD_INPUT, "query_invalid", "the schema has pulse, word, ill"),
    "histogram word --devices 3": (USAGE, "usage", "needs --low and --high"),
    "heavy-hitters word --devices 3": (USAGE, "usage", "--bits 10 --fraction 0.05"),
    "histogram pulse --devices 3 --low 5 --high 1": (BAD_INPUT, "query_invalid", "high"),
    "quantiles pulse --devices 3 --levels 1.5": (BAD_INPUT, "query_invalid", "level"),
    "count pulse --devices 3 --min-updates 4": (BAD_INPUT, "message_invalid", "lower min_updates or raise cohort"),
    "count pulse --devices 3 --epsilon 1 --mechanism skellam": (BAD_INPUT, "experiment_combination", "secure"),
    "count pulse --devices 3 --epsilon 0": (BAD_INPUT, "message_invalid", "/epsilon: Input should be greater than 0"),
    "count pulse": (BAD_INPUT, "asked_missing", "--devices N"),
    "count pulse --population others": (REMOTE, "population_unknown", "this coordinator has people"),
}


@pytest.mark.parametrize("words", WRONG)
def test_what_no_coordinator_need_be_asked_about_is_refused(program: Program, words: str) -> None:
    _assert_refused(program, words, *WRONG[words])


def test_what_does_not_fit_the_population_is_refused(coordinator: Asking) -> None:
    _assert_refused(coordinator.run, "count pulse", REMOTE, "population_unknown", "coterie prepare --url")
    coordinator.control.ensure_population("people", SCHEMA)
    for words, told in ASKED_WRONG.items():
        _assert_refused(coordinator.run, words, *told)
    assert coordinator.control.experiments() == []


def test_a_question_that_nobody_answers_says_so(coordinator: Asking) -> None:
    coordinator.control.ensure_population("people", SCHEMA)
    words = "count pulse --devices 1 --deadline 0.2"
    told = _assert_refused(coordinator.run, words, BAD_INPUT, "query_unanswered", "Only 0 of the 1 rounds")
    assert "--deadline" in told["hint"] and "--min-updates" in told["hint"]


def test_a_mean_says_how_much_the_sums_of_its_range_round(people: Asking) -> None:
    """A range far wider than the values costs digits, of the deviation most."""
    wide = people.answer("mean", "pulse", "--low", "-20000", "--high", "20000")
    close = people.answer("mean", "pulse")
    for found, narrow in ((wide, False), (close, True)):
        of_mean, of_variance = (np.array(found["answer"][name]) for name in ("error", "variance_error"))
        mean, variance = (np.array(found["answer"][name]) for name in ("mean", "variance"))
        assert np.all(np.abs(mean - WHOLE["pulse"].mean(axis=0)) < 2 * of_mean)
        assert np.all(np.abs(variance - WHOLE["pulse"].var(axis=0)) < 2 * of_variance)
        assert np.all(of_variance < 0.2) == narrow
    secret = people.answer("mean", "pulse", "--secure-aggregation")
    assert secret["answer"]["error"][0] > 100 * close["answer"]["error"][0]
    exact = (("mean", WHOLE["pulse"].mean(axis=0)), ("variance", WHOLE["pulse"].var(axis=0)))
    for (name, value), error in zip(exact, ("error", "variance_error"), strict=True):
        assert np.all(np.abs(np.array(secret["answer"][name]) - value) < 4 * secret["answer"][error][0])
    shown = people.shown("mean", "pulse", "--low", "-20000", "--high", "20000")
    assert f"{wide['answer']['error'][0]:.3g}" in shown and "close to the values" in shown


def test_why_devices_give_tasks_back_is_said_before_the_deadline(
    coordinator: Asking, tmp_path: Path, environment: dict[str, str]
) -> None:
    """Of a round that would wait for an hour, and that the test ends when it has read the reason."""
    coordinator.control.ensure_population("people", SCHEMA, signers=[signing_key(RESEARCHER_KEY).public])
    refused: list[str] = []

    def hear(event: Mapping[str, Any]) -> None:
        if event["event"] == "refused":
            refused.append(event["code"])

    token = coordinator.control.enrolment_token("people").token
    policy = DevicePolicy(require_secure_aggregation=True)
    words = ("query", "count", "pulse", "--devices", "1", "--deadline", "3600", "--url", coordinator.url)
    with joined(coordinator.url, token, tmp_path, PARTS[:1], policy=policy, on_event=hear):
        asking = start(words, cwd=tmp_path, env=environment)
        said = ""
        try:
            while "gave its task back" not in said:
                said += next(iter(asking.stdout or ()))
            (experiment,) = coordinator.control.experiments()
            coordinator.control.run(experiment.id).stop()
            out, err = asking.communicate(timeout=patience(30))
        finally:
            if asking.poll() is None:
                asking.kill()
                asking.communicate()
    (code,) = set(refused)
    assert (said + out).count(f"A device gave its task back: {code}; see docs/errors.md#") == 1
    assert "Round 1 of 1: abandoned" in out and "query_unanswered" in err


def test_after_ctrl_c_a_question_goes_on_and_the_printed_line_reads_its_answer(
    coordinator: Asking, tmp_path: Path, environment: dict[str, str]
) -> None:
    coordinator.control.ensure_population("people", SCHEMA, signers=[signing_key(RESEARCHER_KEY).public])
    words = ("query", "mean", "pulse", "--devices", str(DEVICES), "--url", coordinator.url, "--json")
    asking = start(words, cwd=tmp_path, env=environment)
    try:
        submitted = next_event(asking, "submitted")
        said = ""
        while "Ctrl-C leaves it running" not in said:
            said = next(iter(asking.stderr or ()))
        next(iter(asking.stderr or ()))  # how devices join: it waits for them
        asking.send_signal(signal.SIGINT)
        _, told = asking.communicate(timeout=patience(30))
    finally:
        if asking.poll() is None:
            asking.kill()
            asking.communicate()
    run = coordinator.control.run(submitted["experiment"])
    word = short_id(run.id)
    assert asking.returncode == INTERRUPTED and run.view().state == "running"
    assert f"coterie watch {word} " in told and f"coterie stop {word}" in told, told
    *_, line, nothing, last = told.splitlines()
    assert (nothing, last) == ("", "interrupted")
    reading = _call(line.strip())
    question, name = reading.args
    assert ast.unparse(name) == f"control.run({word!r})" and ast.unparse(reading.func) == "answered"
    with joined(coordinator.url, submitted["token"], tmp_path):
        found = answered(_question(ast.unparse(question)), coordinator.control.run(word))
    assert found.rows == ROWS and found.mean == pytest.approx(WHOLE["pulse"].mean(axis=0), rel=1e-5)


@pytest.mark.parametrize(
    "question",
    [
        analytics.count("it's"),
        analytics.mean("pulse", low=-0.1, high=1e30, elements=2),
        analytics.histogram("ill", low=0, high=3, bins=3),
        analytics.quantiles("pulse", (0.5, 1.0, 0.1), low=0, high=200, bins=4, rounds=2),
        analytics.heavy_hitters("word", bits=8, fraction=0.1, step=3),
    ],
    ids=lambda question: question.rule.name,
)
def test_a_question_in_python_is_the_same_question(question: analytics.Query[Any]) -> None:
    again = _question(in_python(question))
    assert (again.column, again.rule.name) == (question.column, question.rule.name)
    assert again.rule.parameters == question.rule.parameters and again.rule.rounds == question.rule.rounds


def _call(line: str) -> ast.Call:
    read = ast.parse(line, mode="eval").body
    assert isinstance(read, ast.Call), line
    return read


def _question(line: str) -> analytics.Query[Any]:
    """What a line of Python like ``mean('pulse', low=0, high=200)`` asks."""
    call = _call(line)
    ask = getattr(analytics, ast.unparse(call.func))
    named = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    return ask(*map(ast.literal_eval, call.args), **named)


def _assert_refused(run: Program, words: str, code: int, reason: str, said: str) -> dict[str, Any]:
    ended, out, _ = run("query", *words.split(), "--json")
    told = json.loads(out.splitlines()[-1])
    assert (ended, told["code"]) == (code, reason), (words, told)
    assert said in f"{told['message']} {told['hint']}", (words, told)
    return told
