"""What a round costs apart from training: seconds, bytes and peak memory, in process and over HTTP.

    python benchmarks/round.py [--json] [--clients 10 50 100] [--parameters 100000 1000000] [--over process http]
    [--rounds 3] [--secure]

Clients are trivial (they add a constant to every weight), so what is measured is everything around the training:
making, moving, checking and aggregating float32 updates, and committing the version. Every case runs in a process of
its own. Over HTTP all clients live in that process, each with a store of its own, and the coordinator in another one on
the loopback interface. Its polling waits, 50 ms and longer for more clients (it steers towards 200 check-ins a second),
are part of the time. Each case prints one line (see lines.py): seconds, the median over rounds; the first round, in
which clients fetch the plan, is left out when there are more. cpu_seconds is the processor time of
both processes for one such round, start and joining left out. With --secure updates are summed under masks, 5 000
parameters unless others are named, which are about those of the demo.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lines import Line, at_most, read, show

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.aggregation.history import History
from coterie.client_sdk.device.trainers.external import ExternalTrainer, FitResult, FitTask, Params
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label

SCHEMA = DataSchema((Feature(name="x", shape=(1,)),), Label(name="y", low=0, high=1))
ROWS = {"x": np.zeros((4, 1), np.float32), "y": np.zeros(4, np.int32)}
OVER = ("process", "http")
PARAMETERS = (100_000, 1_000_000)
PARAMETERS_SECURE = (5_000,)
# Of a round in secret: over what, clients, parameters.
BUDGETS = {("http", 10, 5_000): at_most(0.6)}

_SERVE = """
import json, sys
from pathlib import Path
from coterie.server.serve import serve
from coterie.server.settings import Settings

def ready(started):
    print(json.dumps({"url": started.url, "token": started.admin_token_file.read_text().strip()}), flush=True)

waits = {"retry_floor_s": 0.05, "retry_idle_s": 0.05}
serve(Settings(folder=Path(sys.argv[1]), port=0, log_level="error", **waits), ready)
"""


def fit(params: Params, task: FitTask) -> FitResult:
    """A client that costs nothing."""
    return {name: value + np.float32(0.01) for name, value in params.items()}, 1, 1, {}


def experiment(clients: int, parameters: int, rounds: int, *, secure: bool) -> Experiment:
    """All clients, every round, no evaluation.

    The weights are random, since a model of equal ones would compress away.
    """
    weights = np.random.Generator(np.random.PCG64(0)).normal(0, 0.05, parameters).astype(np.float32)
    return Experiment(
        name="round",
        model=ExternalModel({"weights": (parameters,)}),
        schema=SCHEMA,
        holdout=0.0,
        initial={"weights": weights},
        rounds=RoundPolicy(rounds=rounds, cohort=clients, evaluate_every=0),
        secure_aggregation=secure,
    )


def in_process(experiment: Experiment, clients: int) -> tuple[History, dict[str, Any]]:
    """The simulation, one thread."""
    from coterie.simulation import simulate

    return simulate(experiment, [ROWS] * clients, trainer=ExternalTrainer(fit)), {}


def over_http(experiment: Experiment, clients: int) -> tuple[History, dict[str, Any]]:
    """A coordinator in a process of its own, all clients in this one."""
    with tempfile.TemporaryDirectory(prefix="coterie-benchmark-") as folder:
        command = [sys.executable, "-c", _SERVE, f"{folder}/server"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as coordinator:
            try:
                started = json.loads(coordinator.stdout.readline() if coordinator.stdout else "{}")
                place = Place(Path(folder), started["url"], started["token"], coordinator.pid)
                history, cpu = asyncio.run(work(experiment, clients, place))
                return history, {"cpu_seconds": cpu, "coordinator_peak_mib": peak_of(coordinator.pid)}
            finally:
                coordinator.terminate()
                coordinator.wait(30)


@dataclass(frozen=True)
class Place:
    """A coordinator that runs: where it is, its first token and its process; and a folder for the clients' stores."""

    folder: Path
    url: str
    admin: str
    pid: int


async def work(experiment: Experiment, clients: int, place: Place) -> tuple[History, float]:
    """Submit, run all agents until the experiment is finished. Returns its history, and the processor time of a round
    after the first.
    """
    from coterie.client_sdk.control.client import ControlClient
    from coterie.client_sdk.control.submission import Submission, send
    from coterie.client_sdk.device.agent import Agent
    from coterie.client_sdk.device.settings import AgentSettings
    from coterie.protocol.signing import SigningKey

    control = ControlClient(place.url, token=place.admin)
    view = await send(control, Submission(experiment=experiment, key=SigningKey.generate()))
    token = (await control.enrolment_token(view.population)).token
    agents = [
        Agent(
            AgentSettings(
                url=place.url, data=ROWS, folder=place.folder / f"{n}", token=token, trainer=ExternalTrainer(fit)
            )
        )
        for n in range(clients)
    ]
    running = [asyncio.create_task(agent.run()) for agent in agents]
    used: list[float] = []
    async for event in control.events(view.id):
        if event.type == "round.committed":
            used.append(time.process_time() + cpu_of(place.pid))
    for agent in agents:
        agent.stop()
    await asyncio.gather(*running)
    for agent in agents:
        await agent.close()
    history = await control.history(view.id)
    await control.close()
    return history, (used[-1] - used[0]) / max(len(used) - 1, 1)


def cpu_of(pid: int) -> float:
    """Processor time of another process and its children in seconds (Linux); NaN elsewhere."""
    path = Path(f"/proc/{pid}/stat")
    if not path.exists():
        return float("nan")
    return sum(map(int, path.read_text().rsplit(")", 1)[1].split()[11:15])) / os.sysconf("SC_CLK_TCK")


def peak_of(pid: int) -> float:
    """Peak resident memory of another process in MiB (Linux); NaN elsewhere."""
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), float("nan"))


def measure(over: str, clients: int, parameters: int, rounds: int, *, secure: bool) -> Line:
    """One case, in this process."""
    task = experiment(clients, parameters, rounds, secure=secure)
    history, more = (in_process if over == "process" else over_http)(task, clients)
    if len(history.committed) != rounds:
        sys.exit(f"only {len(history.committed)} of {rounds} rounds were committed: {history.to_dicts()}")
    counted = history.rounds[1:] or history.rounds
    details = {
        "over": over,
        "clients": clients,
        "parameters": parameters,
        "rounds": rounds,
        "bytes_up": counted[-1].bytes_up,
        "bytes_down": counted[-1].bytes_down,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **more,
    }
    case = f"{'secure ' if secure else ''}{over}/{clients}x{parameters:.0e}"
    seconds = statistics.median(record.seconds or 0.0 for record in counted)
    budget = BUDGETS.get((over, clients, parameters)) if secure else None
    return Line(case, seconds, "s a round", budget=budget, details=details)


def main() -> None:
    """Run the chosen cases and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON line for each case")
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 50, 100])
    parser.add_argument("--parameters", type=int, nargs="+", default=None)
    parser.add_argument("--over", choices=OVER, nargs="+", default=list(OVER))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--secure", action="store_true", help="with secure aggregation, mode semi_honest")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        over, clients, parameters = options.case.split(":")
        show(measure(over, int(clients), int(parameters), options.rounds, secure=options.secure), as_json=True)
        return
    secure = ["--secure"] if options.secure else []
    for over in options.over:
        for parameters in options.parameters or (PARAMETERS_SECURE if options.secure else PARAMETERS):
            for clients in options.clients:
                case = f"{over}:{clients}:{parameters}"
                command = [
                    sys.executable,
                    os.fspath(Path(__file__)),
                    "--case",
                    case,
                    "--rounds",
                    str(options.rounds),
                    *secure,
                ]
                line = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
                show(read(line), as_json=options.json)


if __name__ == "__main__":
    main()
