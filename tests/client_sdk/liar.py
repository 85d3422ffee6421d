"""A coordinator that lies: the real application on a loopback port, its own key in the hands of somebody who rewrites
what it says; and real devices in processes of their own.
"""

import asyncio
import json
import re
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import uvicorn
from device_process import start
from sdk_kit import RESEARCHER, rows, save_rows

from coterie.aggregation.history import History
from coterie.client_sdk.control.client import ControlClient
from coterie.client_sdk.control.submission import Submission, send
from coterie.protocol.device import Task
from coterie.server.app import create_app
from coterie.server.coordinator import Coordinator
from coterie.server.device.waiting import AFTER
from coterie.server.settings import Settings
from tests.empty_database import prepare
from tests.lock_order import in_order
from tests.patience import patience

PATIENCE_S = 40.0
TaskLie = Callable[[Task], Task]
AnswerLie = Callable[[str, dict[str, Any]], dict[str, Any]]
Withheld = Callable[[str], bool]


def _honest_task(task: Task) -> Task:
    return task


def _honest_answer(path: str, answer: dict[str, Any]) -> dict[str, Any]:
    return answer


def _nothing(path: str) -> bool:
    return False


@dataclass
class Liar:
    """Between the application and its devices. task: what becomes of each task before it is signed again. answer: of
    any JSON that a device is answered, by the path that it asked. withheld: of which paths requests are heard and never
    reach the application. heard: (device, path, body) of each request.
    """

    app: Any
    task: TaskLie = _honest_task
    answer: AnswerLie = _honest_answer
    withheld: Withheld = _nothing
    heard: list[tuple[str, str, bytes]] = field(default_factory=list[tuple[str, str, bytes]])

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not path.startswith("/v1/device/"):
            await self.app(scope, receive, send)
            return
        said, body, start = bytearray(), bytearray(), dict[str, Any]()

        async def listen() -> Any:
            message = await receive()
            said.extend(message.get("body", b""))
            return message

        async def answered(message: Any) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
                return
            body.extend(message.get("body", b""))
            if message.get("more_body"):
                return
            told = self._told(path, bytes(body)) if start["status"] == 200 else bytes(body)
            headers = [(name, value) for name, value in start["headers"] if name != b"content-length"]
            await send({**start, "headers": [*headers, (b"content-length", str(len(told)).encode())]})
            await send({"type": "http.response.body", "body": told})

        if self.withheld(path):
            while (await listen()).get("more_body"):
                pass
            await send({"type": "http.response.start", "status": 503, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self.app(scope, listen, answered)
        signed = re.search(rb'keyid="(\w+)"', dict(scope["headers"]).get(b"signature-input", b""))
        device = signed[1].decode() if signed else ""
        self.heard.append((device, path, bytes(said)))

    def _told(self, path: str, body: bytes) -> bytes:
        try:
            read = json.loads(body)
        except ValueError:
            return body
        if not isinstance(read, dict):
            return body
        answer = cast(dict[str, Any], read)
        if path == "/v1/device/check-in" and answer.get("task"):
            coordinator: Coordinator = self.app.state.coordinator
            wanted = self.task(Task.model_validate(answer["task"]))
            answer["task"] = wanted.signed(coordinator.identity.key).model_dump(mode="json", exclude_unset=True)
        told = self.answer(path, answer)
        if told.get("next") is not None and (awaited := _awaited_behind(path)):
            told["next"] = self.answer(awaited, told["next"])
        return json.dumps(told).encode()


def _awaited_behind(path: str) -> str:
    """Where a device would ask for the message that comes with the answer to what it sent there; empty for none."""
    task, _, sent = path.partition("/secure/")
    if path.endswith("/update"):
        task, sent = path.removesuffix("/update"), "masked"
    return f"{task}/secure/{AFTER[sent]}" if sent in AFTER else ""


@dataclass
class Lying:
    """A lying coordinator that runs. liar: its lies may be changed while it runs."""

    url: str
    admin: str
    folder: Path
    liar: Liar

    def control(self) -> ControlClient:
        """Its administrator's client, for one event loop."""
        return ControlClient(self.url, token=self.admin)

    def submit(self, wanted: Any, **changes: Any) -> tuple[str, str]:
        """Start an experiment: its id, and a token with which devices join its population."""

        async def inside() -> tuple[str, str]:
            control = self.control()
            try:
                view = await send(control, Submission(experiment=wanted, key=RESEARCHER, **changes))
                token = await control.enrolment_token(view.population)
                return view.id, token.token
            finally:
                await control.close()

        return asyncio.run(inside())

    def history(self, experiment: str) -> History:
        """The rounds of an experiment, of which one at least is over."""

        async def inside() -> History:
            control = self.control()
            try:
                async with asyncio.timeout(patience(PATIENCE_S)):
                    while not (found := await control.history(experiment)).rounds:
                        await asyncio.sleep(0.05)
                    return found
            finally:
                await control.close()

        return asyncio.run(inside())

    def bodies(self, part: str) -> list[bytes]:
        """What devices sent to paths with this part."""
        return [body for _, path, body in list(self.liar.heard) if part in path]


@contextmanager
def lying_coordinator(
    folder: Path,
    *,
    task: TaskLie = _honest_task,
    answer: AnswerLie = _honest_answer,
    withheld: Withheld = _nothing,
    **settings: Any,
) -> Generator[Lying, None, None]:
    """Serve from a thread of this process, on a port of the system's choice, and stop at the end."""
    waits: dict[str, Any] = {"retry_floor_s": 0.02, "retry_idle_s": 0.02, "heartbeat_s": 0.2, "log_level": "error"}
    chosen = Settings(folder=prepare(folder / "server"), **{**waits, **settings})
    app = create_app(chosen)
    liar = Liar(app, task, answer, withheld)
    up, servers = threading.Event(), list[uvicorn.Server]()

    async def serve() -> None:
        config = uvicorn.Config(liar, host="127.0.0.1", port=0, log_config=None, access_log=False, lifespan="off")
        config.timeout_graceful_shutdown = 1
        server = uvicorn.Server(config)
        servers.append(server)

        async def tell() -> None:
            while not server.started:
                await asyncio.sleep(0.01)
            up.set()

        async with app.router.lifespan_context(app), asyncio.TaskGroup() as group:
            group.create_task(tell())
            await server.serve()
            app.state.coordinator.signals.hang_up()

    with in_order():
        thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
        thread.start()
        if not up.wait(patience(PATIENCE_S)):
            raise TimeoutError("The lying coordinator did not start.")
        try:
            port = servers[0].servers[0].sockets[0].getsockname()[1]
            admin = (chosen.folder / "admin.token").read_text().strip()
            yield Lying(f"http://127.0.0.1:{port}", admin, chosen.folder, liar)
        finally:
            servers[0].should_exit = True
            thread.join(patience(PATIENCE_S))


@dataclass(frozen=True)
class DeviceProcess:
    """A device in a process of its own, which ends after so many uploads and sums, or at the first task it refuses.
    folder: its store.
    """

    process: BaseProcess
    folder: Path

    def events(self, seconds: float = PATIENCE_S) -> list[dict[str, Any]]:
        """All that it told, when it has ended. seconds: of a quiet machine; then it is ended by its process id."""
        self.process.join(patience(seconds))
        self.end()
        told = self.folder.parent / "told"
        lines = told.read_text().splitlines() if told.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def end(self) -> None:
        """End it, if it has not ended."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join(patience(PATIENCE_S))


@contextmanager
def devices(
    lying: Lying,
    token: str,
    folder: Path,
    *,
    count: int = 1,
    policy: str = "",
    wanted: int = 1,
    data: Sequence[Mapping[str, Any]] | None = None,
    names: Sequence[str] | None = None,
    fault: str = "",
) -> Generator[list[DeviceProcess], None, None]:
    """So many real devices. policy: the text of their policy file. wanted: how many uploads
    and ends of attempts each sees through, unless it refuses a task. data: the
    rows of each. names: of their folders below ``folder``, which may be those of devices before. fault: where each
    kills itself.
    """
    running: list[DeviceProcess] = []
    try:
        for number in range(count):
            own = folder / (names[number] if names else f"device-{number}")
            own.mkdir(parents=True, exist_ok=True)
            save_rows(own / "rows.npz", rows(40, number) if data is None else data[number])
            (own / "policy.toml").write_text(policy)
            (own / "told").unlink(missing_ok=True)
            running.append(DeviceProcess(start(lying.url, token, own, wanted=wanted, fault=fault), own / "state"))
        yield running
    finally:
        for device in running:
            device.end()


def refusals(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """The codes with which a device refused tasks."""
    return [str(event["code"]) for event in events if event["event"] == "refused"]
