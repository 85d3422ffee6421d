"""A small experiment, coordinators to run it on, and a rule whose client state counts the updates that counted."""

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import httpx
import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
import pytest
from numpy.typing import NDArray

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.history import History
from coterie.aggregation.horizontal import FedAvg
from coterie.aggregation.horizontal.algorithm import Algorithm, Finish, Finished, Shapes
from coterie.client_sdk.control.client import ControlClient
from coterie.client_sdk.control.submission import Submission, send
from coterie.client_sdk.device.agent import Agent
from coterie.client_sdk.device.device import Device
from coterie.client_sdk.device.policy import DevicePolicy
from coterie.client_sdk.device.settings import AgentSettings
from coterie.client_sdk.party.faults import LearnerFaults, PartyFaults
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import sgd
from coterie.protocol.control import ExperimentView
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.signing import SigningKey
from coterie.server.app import create_app
from coterie.server.faults import VARIABLE
from coterie.server.settings import Settings
from coterie.server.worker import workers
from tests.empty_database import prepare
from tests.lock_order import check_told, in_order
from tests.patience import patience
from tests.prepared import Errors, Program, start, worker_program

Arrays = dict[str, NDArray[Any]]
Events = list[dict[str, Any]]

SCHEMA = DataSchema((Feature(name="x", shape=(4,), low=-10, high=10),), Label(name="y", low=0, high=2))
RESEARCHER = SigningKey.from_seed(b"r" * 32)


def rows(count: int = 40, seed: int = 0) -> Arrays:
    """Three classes that a linear model can tell apart."""
    generator = np.random.Generator(np.random.PCG64(seed))
    y = generator.integers(0, 3, count).astype(np.int32)
    centres = np.array([[2, 0, 0, 1], [0, 2, 1, 0], [-2, 0, 2, 0]], np.float32)
    return {"x": (centres[y] + generator.normal(0, 0.4, (count, 4))).astype(np.float32), "y": y}


def hear(events: list[dict[str, Any]]) -> Callable[[Mapping[str, Any]], None]:
    """A listener that keeps what it hears."""
    return lambda event: events.append(dict(event))


def infer(model: bytes | Path, feeds: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """The output of an exported model in plain ONNX Runtime."""
    session = cast(Any, onnxruntime).InferenceSession(model if isinstance(model, bytes) else str(model))
    return np.asarray(session.run(["output"], dict(feeds))[0])


def save_rows(path: Path, arrays: Mapping[str, NDArray[Any]]) -> Path:
    """An NPZ file of the arrays."""
    cast(Any, np).savez(path, **arrays)
    return path


def example(name: str) -> ModuleType:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[2] / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def experiment(name: str = "tiny", **changes: Any) -> Experiment:
    """Two rounds of one client unless told otherwise."""
    base = Experiment(
        name=name,
        model=mlp((4, 8, 3)),
        schema=SCHEMA,
        loss=softmax_cross_entropy,
        optimizer=sgd(0.1),
        metrics={"accuracy": accuracy},
        batch_size=8,
        rounds=RoundPolicy(rounds=2, cohort=1, evaluate_every=0),
    )
    return replace(base, **changes)


def counting() -> Algorithm:
    """FedAvg whose client state is the number of this client's updates that rounds have counted."""
    plain = FedAvg()

    def state(shapes: Shapes) -> Mapping[str, tuple[int, ...]]:
        return {"counted": (1,)}

    def finish(context: Finish) -> Finished:
        done = plain.client.finish(context)
        return Finished(sections=done.sections, client_state={"counted": context.client_state["counted"] + 1.0})

    return replace(plain, client=replace(plain.client, client_state=state, finish=finish))


@dataclass
class Lab:
    """A coordinator in this process: its transport, its administrator, and agents on it."""

    transport: httpx.AsyncBaseTransport
    control: ControlClient
    folder: Path
    agents: list[Agent] = field(default_factory=list[Agent])

    async def submit(self, wanted: Experiment, key: SigningKey = RESEARCHER) -> ExperimentView:
        """Start an experiment in the population of its name."""
        return await send(self.control, Submission(experiment=wanted, key=key))

    async def agent(self, population: str, name: str = "device", **changes: Any) -> Agent:
        """An agent with a folder of its own and an enrolment token."""
        token = await self.control.enrolment_token(population)
        chosen: dict[str, Any] = {"data": rows(), "token": token.token, "transport": self.transport, **changes}
        made = Agent(AgentSettings(url="http://coordinator", folder=self.folder / name, **chosen))
        self.agents.append(made)
        return made


@asynccontextmanager
async def lab(folder: Path, wrap: Callable[[Any], Any] = lambda app: app) -> AsyncGenerator[Lab, None]:
    """A coordinator in this process with short waits.

    wrap: puts something between the transport and the application.
    """
    settings = Settings(
        folder=prepare(folder / "server"),
        retry_floor_s=0.02,
        retry_idle_s=0.02,
        heartbeat_s=0.2,
        log_level="error",
        prestart=False,
    )
    app = create_app(settings)
    async with AsyncExitStack() as stack:
        stack.enter_context(in_order())
        stack.enter_context(pytest.MonkeyPatch.context()).setattr(workers, "PROGRAM", worker_program())
        await stack.enter_async_context(app.router.lifespan_context(app))
        transport = httpx.ASGITransport(wrap(app))
        admin = (settings.folder / "admin.token").read_text().strip()
        made = Lab(transport, ControlClient("http://coordinator", token=admin, transport=transport), folder)
        stack.push_async_callback(made.control.close)
        yield made
        for agent in made.agents:
            await agent.close()


def run(work: Callable[[Lab], Any], folder: Path, wrap: Callable[[Any], Any] = lambda app: app) -> Any:
    """Do some work in a lab, within a minute."""

    async def inside() -> Any:
        async with lab(folder, wrap) as place, asyncio.timeout(patience(60)):
            return await work(place)

    return asyncio.run(inside())


class Recorder:
    """Keeps the bodies of the requests to a path."""

    def __init__(self, app: Any, part: str, bodies: list[bytes]) -> None:
        self.app, self.part, self.bodies = app, part, bodies

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def listen() -> Any:
            message = await receive()
            if self.part in scope["path"] and message.get("body"):
                self.bodies.append(message["body"])
            return message

        await self.app(scope, listen, send)


async def assert_two_noised_rounds(place: Lab, wanted: Experiment, clients: int, policy: DevicePolicy) -> History:
    """Two rounds in which every device counts for one: versions are committed, and nothing of one device is known but
    that it took part.
    """
    view = await place.submit(wanted)
    agents: list[Agent] = []
    events: list[Events] = []
    for number in range(clients):
        heard: Events = []
        events.append(heard)
        agents.append(
            await place.agent("own", f"d{number}", data=rows(60, number), policy=policy, on_event=hear(heard))
        )
    await asyncio.gather(*(agent.run(rounds=2) for agent in agents))
    history = await place.control.history(view.id)
    assert [(record.state, record.accepted) for record in history.rounds] == [("committed", clients)] * 2
    assert [dict(record.training) for record in history.rounds] == [{}, {}]
    assert all("uploaded" in kinds(heard) for heard in events)
    for heard in events:
        assert [event["weight"] for event in heard if event["event"] == "trained"] == [1, 1]
    return history


def kinds(events: Events) -> list[str]:
    """What a device told, without its waits."""
    return [event["event"] for event in events if event["event"] != "waiting"]


@contextmanager
def at_work(devices: Sequence[Device]) -> Generator[None, None, None]:
    """Devices that run, each in a thread, until the block ends; then they are closed."""
    threads = [threading.Thread(target=device.run) for device in devices]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for device in devices:
            device.stop()
        for thread in threads:
            thread.join(patience(60))
        for device in devices:
            device.close()


@dataclass(frozen=True)
class Coordinator:
    """A coordinator in a process of its own."""

    url: str
    token: str
    process: Program


@contextmanager
def coordinator_process(folder: Path, *, fault: str = "", **settings: str) -> Generator[Coordinator, None, None]:
    """Start a coordinator on a port of the system's choice, and end it. fault: where it kills itself."""
    process = start(
        [str(prepare(folder / "server")), json.dumps(settings)],
        program="tests.served",
        cwd=folder,
        env=clean_environment(**({VARIABLE: fault} if fault else {})),
        stderr=Errors.SHARED,
    )
    try:
        line = process.stdout.readline() if process.stdout else ""
        started = json.loads(line)
        yield Coordinator(started["url"], started["token"], process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=patience(60))
    check_told(folder / "disorder")


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without coterie's own variables but those of its tests, and with ``more``."""
    own = {name for name in os.environ if name.startswith("COTERIE_") and not name.startswith("COTERIE_TESTS_")}
    return {name: value for name, value in os.environ.items() if name not in own} | more


def killed_and_run(script: Path, words: Sequence[str], faults: Sequence[str]) -> Any:
    """What a party's program prints, as JSON, after it was killed at each of these points, one after the other."""
    done: subprocess.CompletedProcess[str] | None = None
    for fault in (*faults, ""):
        hooks = (PartyFaults, LearnerFaults)
        asked = {hook.variable: fault for hook in hooks if fault.partition(":")[0] in hook.points}
        done = subprocess.run(
            [sys.executable, str(script), *words],
            env=clean_environment(PYTHONPATH=str(script.parents[2]), **asked),
            capture_output=True,
            text=True,
            timeout=patience(240),
        )
        assert done.returncode == (-signal.SIGKILL if fault else 0), (fault, done.stderr)
    return None if done is None else json.loads(done.stdout)
