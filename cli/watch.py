"""`coterie watch`: the rounds of an experiment as they end."""

import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING, Any

import typer

from coterie.cli.failures import FAILED
from coterie.cli.joining import again
from coterie.cli.output import JsonOption, Output, short_id
from coterie.cli.places import DEFAULT_URL, AuthorityOption, RunArgument, TokenOption, UrlOption, access_token
from coterie.cli.rounds import RoundTable, advise
from coterie.errors import CoterieError, NotFound, Unreachable

if TYPE_CHECKING:
    from coterie.client_sdk.control.control import Control, Run
    from coterie.protocol.control import Event, ExperimentView

ROUND_EVENTS = ("round.committed", "round.abandoned")
FINISHED = "experiment.finished"
ANSWERED = ("update.accepted", "task.trained")
ATTEMPT_EVENTS = ("attempt.began", "attempt.phase")
# How long a coordinator that has answered before may be away: time for its operator to start it again. One that never
# has may be starting, or its address may be wrong.
PATIENCE_S, FIRST_PATIENCE_S = 600.0, 30.0
ASK_AGAIN_S = 1.0
# When an experiment that has stalled is worth another try, by why its rounds were abandoned.
_WHEN: Mapping[str | None, str] = {
    "too_few_updates": "Once enough clients are there",
    "deadline": "Once enough clients are there",
    "trusted_missing": "Once the trusted client is there, or with another one",
}


def watch(
    run: RunArgument = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: AuthorityOption = None,
    json: JsonOption = False,
) -> None:
    """Show an experiment's rounds until it ends. Ctrl-C leaves the experiment running."""
    from coterie.client_sdk.control.control import Control

    with Control(url, token=access_token(token), ca=ca) as control:
        follow_run(Output(json), once_it_answers(lambda: find_run(control, run)), again(url, ca))


@dataclass
class Silence:
    """The time for which a coordinator has not answered.

    most_s: how long that may be.
    """

    most_s: float
    since: float | None = None

    def broken(self) -> None:
        """It has answered."""
        self.since = None

    def borne(self, error: Unreachable) -> None:
        """Say once that it is waited for, and wait a little. Raises the error when it has been silent for too long."""
        now = time.monotonic()
        if self.since is None:
            self.since = now
            told = f"The coordinator does not answer; waiting for it, {self.most_s:g} s at most. Ctrl-C leaves."
            print(told, file=sys.stderr, flush=True)
        if now - self.since > self.most_s:
            raise error
        time.sleep(ASK_AGAIN_S)


def once_it_answers(ask: "Callable[[], Run]") -> "Run":
    """What is asked of a coordinator that may just be starting. Raises Unreachable when it does not come."""
    silence = Silence(FIRST_PATIENCE_S)
    while True:
        try:
            return ask()
        except Unreachable as error:
            silence.borne(error)


def running(control: "Control", name: str) -> "list[ExperimentView]":
    """The running experiments of a name, the newest first."""
    return [view for view in control.experiments() if view.name == name and view.state == "running"]


def find_run(control: "Control", name: str | None) -> "Run":
    """The newest experiment of that name, or the one with that id or start of an id; without a name, the newest."""
    views = control.experiments()
    if not views:
        raise NotFound("This coordinator has no experiment.", hint="Start one: coterie submit experiment.py")
    named = [view for view in views if name is None or view.name == name]
    if named:
        return control.run(named[0].id)
    try:
        return control.run(str(name))
    except CoterieError as error:
        if error.reason != "experiment_unknown":
            raise
        raise NotFound(error.message, hint="`coterie list` shows those there are.", code=error.reason) from error


def patiently(run: "Run") -> "Iterator[Event]":
    """The experiment's events, also over a restart of the coordinator, which is waited for."""
    last: str | None = None
    silence = Silence(PATIENCE_S)
    while True:
        try:
            for event in run.watch(after=last):
                last = str(event.id)
                silence.broken()
                yield event
            return
        except Unreachable as error:
            silence.borne(error)


@dataclass
class WatchedRound:
    """What is known of the round under way, shown below the table: who has answered, or how far its sum is; above it is
    said once a round that training diverges, which may be long before the round ends.
    """

    table: RoundTable
    number: int = 0
    cohort: int = 0
    answers: int = 0
    diverged: int = 0

    def see(self, kind: str, data: Mapping[str, Any]) -> None:
        """Take an event in."""
        if kind == "round.started":
            self.number, self.cohort, self.answers = int(data["round"]), int(data["cohort"]), 0
        elif kind in ANSWERED and data.get("kind") == "train":
            self.answers += 1
            self.table.work(self.number, "train", self.answers, self.cohort)
        elif kind == "task.aborted" and data.get("code") == "training_diverged" and self.diverged != data["round"]:
            self.diverged = data["round"]
            self.table.output.say(f"Training diverged in round {self.diverged}; lower the learning rate.")
        elif kind in ATTEMPT_EVENTS:
            answered = int(data.get("answered", data.get("clients", 0)))
            self.table.work(self.number, f"summing in secret, on to {data['phase']}", answered, self.cohort)


@contextmanager
def _explain_interrupt(output: Output, run: "Run", way: str) -> Generator[None]:
    """Say at Ctrl-C what becomes of the experiment."""
    try:
        yield
    except KeyboardInterrupt:
        word = short_id(run.id)
        output.say(
            f"\nThe experiment goes on. Follow it: coterie watch {word}{way}    end it: coterie stop {word}{way}"
        )
        raise


def follow_run(output: Output, run: "Run", way: str = "") -> None:
    """Show every round, those that have ended too; ends with the experiment, and exits 1 when it trained nothing.

    way: the options that a next command needs to find the coordinator.
    """
    ending: dict[str, Any] = {}
    with _explain_interrupt(output, run, way), RoundTable(output, f"{run.name} ({run.id})") as table:
        going_on = WatchedRound(table)
        for event in patiently(run):
            if event.type in ROUND_EVENTS:
                table.add(event.data)
            elif event.type == FINISHED:
                ending = dict(event.data)
            else:
                going_on.see(event.type, event.data)
    committed = sum(row["state"] == "committed" for row in table.rows)
    output.event("finished", **{**ending, "experiment": run.id, "name": run.name, "rounds": committed})
    output.say(f"Ended: {ending.get('reason', 'finished')}, {committed} rounds committed.")
    # Devices that refused once may be gone since, and nobody came to the rounds after it.
    abandoned = (row for row in table.rows if row["state"] == "abandoned" and row.get("detail"))
    why = max(abandoned, key=lambda row: (bool(row.get("failed")), row["round"]), default=None)
    if why is not None:
        output.say(f"Round {why['round']} was abandoned: {why['detail']}.")
    if ending.get("reason") == "stalled":
        when = _WHEN.get(why["cause"] if why else None, "Once that is mended")
        output.say(f"{when}, submit it again; clients that have joined need no token for it.")
    advise(output, table.rows)
    if not committed:
        raise typer.Exit(FAILED)
    file = "infer.onnx" if "infer" in run.forms() else "weights.safetensors --form weights"
    output.say(f"Get the model: coterie models download {quote(run.name)} {file}{way}")
