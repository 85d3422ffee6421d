"""`coterie demo`: the main job on this machine, from nothing to a model, with nothing left behind but ./.coterie."""

import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.children import age, child, interrupt_on_termination
from coterie.cli.extras import require
from coterie.cli.output import JsonOption, Output, size
from coterie.cli.places import HOME
from coterie.cli.rounds import RoundTable
from coterie.errors import CoterieError

if TYPE_CHECKING:
    from coterie.client_sdk.control.control import Run
    from coterie.protocol.control import Event

DEADLINE_S = 180.0
_SECRECY = {
    True: "Secure aggregation is on: the coordinator sees sums over clients, and no client's update",
    False: "Secure aggregation is off, as for any cohort below ten",
}
START_S = 60.0
# One thread each, and a coordinator that asks idle clients back soon: everybody shares one machine here.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "COTERIE_LOG_LEVEL": "warning",
    "COTERIE_RETRY_FLOOR_S": "0.3",
    "COTERIE_RETRY_IDLE_S": "0.3",
}


def demo(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to run.")] = 10,
    clients: Annotated[int, typer.Option(min=2, max=64, help="Client processes.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split and of the model.")] = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the coordinator running until Ctrl-C.")] = False,
    json: JsonOption = False,
) -> None:
    """Train on handwritten digits: a coordinator and ten clients in processes of their own, over loopback HTTP."""
    require("server", "demo", command="demo")
    interrupt_on_termination()
    output = Output(json)
    folder = HOME / "demo" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    (folder / "server").mkdir(parents=True)
    os.environ.update({name: ENVIRONMENT[name] for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")})
    environment = {**os.environ, **ENVIRONMENT}
    with ExitStack() as stack:
        coordinator = stack.enter_context(
            child(
                "coterie.cli.main",
                ["server", "--port", "0", "--folder", str(folder / "server"), "--stop-with-stdin", "--json"],
                log=folder / "server.log",
                environment=environment,
            )
        )
        with child("coterie.cli.demo_clients", [], log=folder / "clients.log", environment=environment) as devices:
            _run(output, folder, coordinator, devices, rounds=rounds, clients=clients, seed=seed)
        if keep:
            output.say("The coordinator goes on; Ctrl-C stops it.")
            coordinator.wait()


def _run(
    output: Output,
    folder: Path,
    coordinator: "Popen[str]",
    devices: "Popen[str]",
    *,
    rounds: int,
    clients: int,
    seed: int,
) -> None:
    ready: queue.Queue[Mapping[str, Any]] = queue.Queue()
    threading.Thread(target=_await_ready, args=(coordinator, ready), daemon=True).start()

    import numpy as np

    from coterie.aggregation.history import History
    from coterie.aggregation.run_files import write_run
    from coterie.cli import demo_digits
    from coterie.cli.demo_clients import Order
    from coterie.client_sdk.control.control import Control
    from coterie.protocol.conversion import to_text
    from coterie.protocol.signing import SigningKey

    key = SigningKey.generate()
    digits = demo_digits.load(clients=clients, seed=seed)
    experiment = demo_digits.experiment(digits, rounds=rounds, seed=seed)
    homes = tuple(folder / "clients" / f"{number:02d}" for number in range(clients))
    for home, rows in zip(homes, digits.clients, strict=True):
        home.mkdir(parents=True)
        np.savez(home / "rows.npz", allow_pickle=False, **rows)
    started = _started(ready, folder)
    url = str(started["url"])
    token = Path(started["admin_token_file"]).read_text(encoding="utf-8").strip()
    with Control(url, token=token) as control:
        # The signer comes first: a client pins the population's signers when it joins, which it may do at once.
        control.ensure_population(experiment.name, experiment.schema, signers=(key.public,))
        enrolment = control.enrolment_token(experiment.name)
        order = Order(url=url, token=enrolment.token, folders=tuple(str(home) for home in homes))
        if devices.stdin is not None:
            devices.stdin.write(to_text(order) + "\n")
            devices.stdin.flush()
        run = control.submit(experiment, population=experiment.name, key=key)
        mode = experiment.secure.mode if experiment.secure else None
        title = (
            f"Handwritten digits, {clients} uneven clients; scored on {demo_digits.HELD_OUT} rows that none has\n"
            + _SECRECY[mode is not None]
        )
        docs = started["docs"]
        output.event("started", url=url, docs=docs, experiment=run.id, clients=clients, secure_aggregation=mode)
        first: float | None = None
        with RoundTable(output, title) as table:
            for event in _until_finished(run, coordinator, folder):
                if event.type in ("round.committed", "round.abandoned"):
                    table.add(event.data)
                    if first is None and event.type == "round.committed":
                        first = age()
        write_run(folder, experiment.name, History.from_dicts(table.rows))
        committed = [row for row in table.rows if row["state"] == "committed"]
        if not committed:
            raise CoterieError("No round was committed.", hint=f"Its logs lie in {folder}.", code="demo_failed")
        model = run.download(folder / "infer.onnx", version="latest")
    score = demo_digits.accuracy(model, digits.held_out)
    summary = {
        "accuracy": round(score, 4),
        "rounds": len(committed),
        "clients": clients,
        "secure_aggregation": mode,
        "seconds": round(age(), 2),
        "first_metric_seconds": None if first is None else round(first, 2),
        "bytes_up": sum(row.get("bytes_up") or 0 for row in table.rows),
        "bytes_down": sum(row.get("bytes_down") or 0 for row in table.rows),
        "model": str(model),
    }
    _print_summary(output, summary, docs=str(started["docs"]), folder=folder)
    output.event("summary", **summary)


def _print_summary(output: Output, summary: Mapping[str, Any], *, docs: str, folder: Path) -> None:
    output.say(
        f"Accuracy {summary['accuracy']:.3f} in plain onnxruntime, {summary['seconds']} s in all, "
        f"the first model after {summary['first_metric_seconds']} s; "
        f"up {size(summary['bytes_up'])}, down {size(summary['bytes_down'])}"
    )
    output.say(f"  model              {summary['model']}")
    output.say(f"  curves and tables  {folder / 'rounds.svg'}")
    output.say(f"  API documentation  {docs} (while a coordinator runs)")
    output.say("  keep it running    coterie demo --keep, or, for this run's state:")
    output.say(f"                     coterie server --folder {folder / 'server'}")
    output.say("  next               coterie new my-project")


def _await_ready(coordinator: "Popen[str]", ready: "queue.Queue[Mapping[str, Any]]") -> None:
    import json

    if coordinator.stdout is None:
        return
    for line in coordinator.stdout:
        event = json.loads(line)
        if event["event"] in ("ready", "error"):
            ready.put(event)
    ready.put({"event": "error", "message": "The coordinator ended before it was ready."})


def _started(ready: "queue.Queue[Mapping[str, Any]]", folder: Path) -> Mapping[str, Any]:
    try:
        event = ready.get(timeout=START_S)
    except queue.Empty:
        event = {"event": "error", "message": f"The coordinator was not ready within {START_S:.0f} s."}
    if event["event"] != "ready":
        raise CoterieError(str(event["message"]), hint=f"Its log is {folder / 'server.log'}.", code="demo_failed")
    return event


def _until_finished(run: "Run", coordinator: "Popen[str]", folder: Path) -> "Iterator[Event]":
    """The experiment's events until it has finished.

    Raises CoterieError (`demo_failed`) if the coordinator dies or nothing ends in time.
    """
    events: queue.Queue[Event | Exception | None] = queue.Queue()

    def pump() -> None:
        try:
            for event in run.watch():
                events.put(event)
            events.put(None)
        except Exception as error:
            events.put(error)

    threading.Thread(target=pump, daemon=True).start()
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            event = events.get(timeout=0.2)
        except queue.Empty:
            if coordinator.poll() is not None:
                raise CoterieError(
                    "The coordinator ended.", hint=f"Its log is {folder / 'server.log'}.", code="demo_failed"
                ) from None
            continue
        if event is None:
            return
        if isinstance(event, Exception):
            raise event
        yield event
    raise CoterieError(
        f"The experiment did not end within {DEADLINE_S:.0f} s.", hint=f"Its logs lie in {folder}.", code="demo_failed"
    )
