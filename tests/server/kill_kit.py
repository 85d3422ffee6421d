"""Coordinator processes that are killed at a point and started again, and what waits for that."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from server_kit import Operator

from tests.empty_database import prepare
from tests.lock_order import check_told
from tests.patience import patience
from tests.ports import steady_port


class Zygote:
    """The process that forks coordinators."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._disorder = Path(self._folder.name) / "disorder"
        script = Path(__file__).parent / "zygote.py"
        self._process = subprocess.Popen(
            [sys.executable, str(script), str(self._disorder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """One order, one answer."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it; its children have ended. Fails where one of them has gone against the order of locks."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait(patience(60))
        self._process.stdout.close()
        with self._folder:
            check_told(self._disorder)


@dataclass
class Supervisor:
    """Keeps a coordinator running: each process with the next fault, and when all have struck, one without."""

    zygote: Zygote
    folder: Path
    port: int
    faults: tuple[str, ...]
    pid: int = 0
    statuses: list[int] = field(default_factory=list[int])
    starts: int = 0

    @property
    def url(self) -> str:
        """Where it answers; the same after a restart."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start a process."""
        fault = self.faults[self.starts] if self.starts < len(self.faults) else ""
        self.starts += 1
        settings = {
            "folder": str(self.folder / "state"),
            "port": self.port,
            "retry_floor_s": 0.02,
            "retry_idle_s": 0.02,
            "log_level": "error",
            "shutdown_s": 1,
            "prestart": False,
        }
        ready = self.folder / f"ready-{self.starts}"
        self.pid = self.zygote.ask({"settings": settings, "fault": fault, "ready": str(ready)})["pid"]

    def ready(self) -> bool:
        """Whether the newest process answers."""
        return (self.folder / f"ready-{self.starts}").exists()

    def dead(self) -> bool:
        """Whether the newest process has ended (it stays a zombie until it is waited for)."""
        state = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return state == "Z"

    def reap(self) -> None:
        """Take note of how the newest process ended."""
        self.statuses.append(self.zygote.ask({"wait": self.pid})["status"])

    async def watch(self) -> None:
        """Start another process whenever one dies."""
        while True:
            if self.dead():
                self.reap()
                self.start()
            await asyncio.sleep(0.02)


class Patient(httpx.AsyncBaseTransport):
    """Sends a request again while the coordinator is away: what was not answered is repeated, signed anew by whoever
    signs.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._inner = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        for _ in range(3000):
            if self._supervisor.ready():
                try:
                    response = await self._inner.handle_async_request(request)
                    await response.aread()
                except httpx.TransportError:
                    pass
                else:
                    return response
            await asyncio.sleep(0.02)
        raise AssertionError("the coordinator never came back")

    async def aclose(self) -> None:
        await self._inner.aclose()


@asynccontextmanager
async def supervised(zygote: Zygote, folder: Path, *faults: str) -> AsyncGenerator[tuple[Supervisor, Operator], None]:
    """A coordinator that dies at a fault, comes back and dies at the next, and its operator."""
    prepare(folder / "state")
    supervisor = Supervisor(zygote, folder, steady_port(), faults)
    supervisor.start()
    watching = asyncio.create_task(supervisor.watch())
    try:
        transport = Patient(supervisor)
        async with httpx.AsyncClient(transport=transport, base_url=supervisor.url, timeout=patience(20)) as http:
            await http.get("/healthz")
            token = (folder / "state" / "admin.token").read_text().strip()
            yield supervisor, Operator(http, token)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        os.kill(supervisor.pid, signal.SIGTERM)
        supervisor.reap()


async def until_all_have_struck(supervisor: Supervisor) -> None:
    """Points after the last round (cleaning up) are reached a moment later."""
    async with asyncio.timeout(patience(60)):
        while len(supervisor.statuses) < len(supervisor.faults) or not supervisor.ready():
            await asyncio.sleep(0.02)


async def until_no_update_is_left(folder: Path) -> None:
    """The files of updates go when their round has ended."""
    async with asyncio.timeout(patience(60)):
        while any(path.is_file() for path in (folder / "state" / "blobs" / "updates").rglob("*")):
            await asyncio.sleep(0.02)
