"""The table of rounds, in the three forms in which it is read."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from rich.console import Console

from coterie.aggregation.progress import STALLED_AFTER
from coterie.cli.joining import again
from coterie.cli.output import Output, figure, short_id, size
from coterie.cli.rounds import COLUMNS, RoundTable, advise, columns_for, draw, in_sight
from coterie.cli.submit import patience
from coterie.cli.watch import Silence, WatchedRound, follow_run, once_it_answers, patiently
from coterie.client_sdk.control.control import Run
from coterie.errors import Unreachable
from coterie.protocol.control import Event
from coterie.protocol.rounds import RoundPolicy

ROWS: list[dict[str, Any]] = [
    {
        "event": "round",
        "round": 1,
        "state": "committed",
        "cause": None,
        "accepted": 10,
        "failed": 0,
        "loss": 0.12345678,
        "accuracy": 0.9,
        "bytes_up": 198_272,
        "bytes_down": 1_000,
        "seconds": 1.234,
    },
    {"event": "round", "round": 2, "state": "abandoned", "cause": "aggregate_failed", "accepted": 0, "failed": 10},
]


def test_into_a_pipe_each_round_is_one_line_of_at_most_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    with RoundTable(Output(json=False), "a title") as table:
        for row in ROWS:
            table.add(row)
    title, head, first, second = capsys.readouterr().out.splitlines()
    assert title == "a title"
    assert first.split() == ["1", "committed", "10/0", "0.1235", "0.9000", "198.3", "kB", "1.0", "kB", "1.23"]
    assert second.split() == ["2", "aggregate_failed", "0/10", "-", "-", "-", "-", "-"]
    assert {len(line) for line in (head, first, second)} == {len(head)}
    assert len(head) <= 80


def test_rounds_of_secret_and_noised_sums_say_what_was_clipped_and_spent(capsys: pytest.CaptureFixture[str]) -> None:
    """The first round was abandoned before its sum, so that the columns come with the second, under a head anew."""
    with RoundTable(Output(json=False), "a title") as table:
        for row in (ROWS[1], {**ROWS[0], "clipped": 0.25}, {**ROWS[0], "clipped": 0.0, "epsilon": 1.2345}):
            table.add(row)
    _, plain, _, head, second, third, fourth = capsys.readouterr().out.splitlines()
    assert tuple(plain.split()) == COLUMNS
    assert head.split()[-1] == "clipped" and second.split()[-1] == "25%"
    assert third.split()[-2:] == ["clipped", "epsilon"] and fourth.split()[-2:] == ["0%", "1.234"]
    assert max(map(len, (plain, head, third, fourth))) <= 80
    assert columns_for([ROWS[0]], 200) == COLUMNS
    assert columns_for([{**ROWS[0], "epsilon": 1.0}], 200) == (*COLUMNS, "epsilon")


def test_a_norm_that_clips_many_is_told_when_the_run_ends(capsys: pytest.CaptureFixture[str]) -> None:
    advise(Output(json=False), [{**ROWS[0], "clipped": 0.01}])
    assert capsys.readouterr().out == ""
    advise(Output(json=False), [ROWS[1], {**ROWS[0], "clipped": 0.3}])
    assert "shortened 30%" in (told := capsys.readouterr().out) and "raise SecureAggregation(norm=...)" in told


def test_with_json_each_round_is_its_event(capsys: pytest.CaptureFixture[str]) -> None:
    with RoundTable(Output(json=True), "a title") as table:
        for row in ROWS:
            table.add(row)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == ROWS


def test_on_a_terminal_the_newest_rounds_stay_in_sight() -> None:
    rows = [{**ROWS[0], "round": number} for number in range(1, 31)]
    shown = in_sight(rows, 16)
    assert shown[-1]["round"] == 30
    console = Console(width=80, height=16)
    with console.capture() as captured:
        console.print(draw("a title", shown))
    lines = captured.get().splitlines()
    assert len(lines) <= 16
    assert lines[-1].split()[0] == "30"
    assert all(len(line.rstrip()) <= 80 and "…" not in line for line in lines)
    assert len(in_sight(rows, 3)) == 1


@pytest.mark.parametrize("width", [52, 60, 72, 80, 200])
def test_a_narrow_terminal_goes_without_columns_rather_than_without_their_words(width: int) -> None:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(draw("a title", ROWS, width))
    lines = captured.get().splitlines()
    assert all(len(line.rstrip()) <= width for line in lines)
    assert not any("…" in line for line in lines)
    assert any("committed" in line for line in lines)
    assert columns_for(ROWS, 80) == COLUMNS
    assert {"round", "state", "loss", "accuracy"} <= {*columns_for(ROWS, width)}


def test_no_head_stands_over_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with RoundTable(Output(json=False), "a title"):
        pass
    assert capsys.readouterr().out == "a title\n"


class Restarted:
    """A run whose coordinator goes away after every event, and is started again."""

    name = id = "run"
    has: tuple[str, ...] = ("infer", "weights")

    def __init__(self, events: int) -> None:
        self.events = events
        self.asked: list[str | None] = []

    def forms(self) -> tuple[str, ...]:
        return self.has

    def watch(self, *, after: str | None = None) -> Iterator[Event]:
        self.asked.append(after)
        yield Event(id=int(after or 0) + 1, type="round.committed", data=ROWS[0])
        if int(after or 0) + 1 < self.events:
            raise Unreachable("No answer.")


def test_who_watches_outlasts_restarts_and_misses_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.cli.watch.ASK_AGAIN_S", 0.0)
    run = Restarted(3)
    assert [event.id for event in patiently(cast(Run, run))] == [1, 2, 3]
    assert run.asked == [None, "1", "2"]


def test_the_next_command_can_be_copied_whatever_the_name(capsys: pytest.CaptureFixture[str]) -> None:
    run = Restarted(1)
    run.name = "bright or dark"
    follow_run(Output(json=False), cast(Run, run))
    assert "coterie models download 'bright or dark' infer.onnx" in capsys.readouterr().out
    run.has = ("weights",)
    follow_run(Output(json=False), cast(Run, run), again("https://h", Path("my ca.pem")))
    wanted = "download 'bright or dark' weights.safetensors --form weights --url https://h --ca 'my ca.pem'"
    assert wanted in capsys.readouterr().out


@pytest.mark.parametrize(
    ("cause", "when"),
    [
        ("deadline", "Once enough clients are there"),
        ("trusted_missing", "Once the trusted client is there"),
        ("aggregate_failed", "Once that is mended"),
    ],
)
def test_who_watches_is_told_why_nothing_was_trained(capsys: pytest.CaptureFixture[str], cause: str, when: str) -> None:
    class Failing(Restarted):
        def watch(self, *, after: str | None = None) -> Iterator[Event]:
            row = {
                **ROWS[0],
                "state": "abandoned",
                "cause": cause,
                "detail": "all refused",
                "round": 3,
                "failed": 9,
            }
            yield Event(id=1, type="round.abandoned", data=row)
            silent = {**row, "detail": "the network was silent", "round": 4, "failed": 0}
            yield Event(id=2, type="round.abandoned", data=silent)
            yield Event(id=3, type="experiment.finished", data={"reason": "stalled"})

    with pytest.raises(typer.Exit):
        follow_run(Output(json=False), cast(Run, Failing(1)))
    said = capsys.readouterr().out
    assert "Round 3 was abandoned: all refused." in said
    assert when in said and "submit it again" in said


@pytest.mark.parametrize(
    ("rounds", "says"),
    [
        (RoundPolicy(rounds=1, cohort=2, deadline_s=60.0), "of 60 s each, do not find 2 clients"),
        (RoundPolicy(rounds=1, cohort=2, min_updates=1, deadline_s=0.5), "of 0.5 s each, do not find a client"),
    ],
)
def test_who_submits_is_told_how_long_clients_may_keep_away(rounds: RoundPolicy, says: str) -> None:
    assert patience(rounds) == f"It ends when {STALLED_AFTER} rounds in a row, {says}."


def test_the_open_round_is_shown_while_devices_train_and_while_they_sum_in_secret() -> None:
    shown: list[tuple[object, ...]] = []

    class Table(RoundTable):
        def work(self, round: int, kind: str, done: int, total: int) -> None:
            shown.append((round, kind, done, total))

    table = WatchedRound(Table(Output(json=False), "a title"))
    table.see("round.started", {"round": 2, "cohort": 10})
    table.see("task.trained", {"round": 2, "kind": "train"})
    table.see("task.trained", {"round": 2, "kind": "evaluate"})
    table.see("attempt.phase", {"round": 2, "kind": "train", "phase": "masked", "awaited": 9, "answered": 9})
    assert shown == [(2, "train", 1, 10), (2, "summing in secret, on to masked", 9, 10)]


def test_a_coordinator_that_has_not_answered_yet_is_waited_for_a_while(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("coterie.cli.watch.ASK_AGAIN_S", 0.0)
    run, asked = cast(Run, Restarted(1)), [0]

    def ask() -> Run:
        asked[0] += 1
        if asked[0] < 4:
            raise Unreachable("No answer.")
        return run

    assert once_it_answers(ask) is run and asked == [4]
    assert capsys.readouterr().err.count("waiting for it, 30 s at most") == 1
    monkeypatch.setattr("coterie.cli.watch.FIRST_PATIENCE_S", -1.0)
    asked[0] = 0
    with pytest.raises(Unreachable):
        once_it_answers(ask)
    assert asked == [1]


def test_a_silence_is_over_with_the_first_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The patience with a coordinator is for each of its silences, not for all of them."""
    now, error = [0.0], Unreachable("No answer.")
    monkeypatch.setattr("coterie.cli.watch.time", SimpleNamespace(monotonic=lambda: now[0], sleep=float))
    silence = Silence(10.0)
    for at in (0.0, 9.0):
        now[0] = at
        silence.borne(error)
    silence.broken()
    for at in (20.0, 29.0):
        now[0] = at
        silence.borne(error)
    now[0] = 31.0
    with pytest.raises(Unreachable):
        silence.borne(error)


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "-"), (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_999_999, "2.0 MB"), (5e12, "5000.0 GB")],
)
def test_sizes(count: float | None, text: str) -> None:
    assert size(count) == text


def test_figures_and_ids() -> None:
    assert figure(None) == "-"
    assert figure(0.5, 2) == "0.50"
    assert short_id("exp_01a1fe39567b7d57a57f48f94bf8b084") == "exp_01a1fe39567b"


def test_training_that_diverges_is_said_once_a_round_while_the_round_is_open(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with RoundTable(Output(json=False), "a title") as table:
        going_on = WatchedRound(table)
        for number in (3, 3, 4):
            going_on.see("task.aborted", {"round": number, "code": "training_diverged"})
        going_on.see("task.aborted", {"round": 5, "code": "signer_refused"})
        table.add({**ROWS[1], "diverged": 2})
    said = capsys.readouterr().out
    assert [said.count(f"Training diverged in round {number}; lower the learning rate.") for number in (3, 4, 5)] == [
        1,
        1,
        0,
    ]
    assert said.splitlines()[-1].split()[:2] == ["2", "diverged"]
