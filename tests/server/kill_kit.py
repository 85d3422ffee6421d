"""Coordinator processes that are killed at a point and started again, and what waits for that."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from server_kit import Operator

from tests.empty_database import prepare
from tests.held_clock import HeldClock, held_in
from tests.lock_order import check_told
from tests.patience import patience
from tests.ports import steady_port
from tests.prepared import Errors, Program, start

DISORDER: Final = "disorder"
"""The file in a coordinator's folder of what it did against the order of locks, if anything."""
HELD: Final = "held"
"""The file in a coordinator's folder that holds its clock, while a test does."""


def start_coordinator(folder: Path, settings: Mapping[str, Any], fault: str, ready: Path) -> Program:
    """A coordinator's process, which dies at a fault. ready: the file that appears when it answers."""
    return start(
        [json.dumps(settings), str(ready), str(folder / DISORDER), str(folder / HELD)],
        cwd=folder,
        env={**os.environ, "COTERIE_FAULT": fault},
        stderr=Errors.SHARED,
        program=Path(__file__).parent / "coordinator_process.py",
    )


@dataclass
class Supervisor:
    """Keeps a coordinator running: each process with the next fault, and when all have struck, one without."""

    folder: Path
    port: int
    faults: tuple[str, ...]
    statuses: list[int] = field(default_factory=list[int])
    starts: int = 0
    process: Program = field(init=False)

    def __post_init__(self) -> None:
        self.start()

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
        self.process = start_coordinator(self.folder, settings, fault, self.folder / f"ready-{self.starts}")

    def held(self) -> AbstractContextManager[HeldClock]:
        """Hold its clock, also that of the processes to come."""
        return held_in(self.folder / HELD)

    def ready(self) -> bool:
        """Whether the newest process answers."""
        return (self.folder / f"ready-{self.starts}").exists()

    def reap(self) -> None:
        """Take note of how the newest process ended."""
        self.process.communicate()
        self.statuses.append(self.process.wait())

    async def watch(self) -> None:
        """Start another process whenever one dies."""
        while True:
            if self.process.poll() is not None:
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
async def supervised(folder: Path, *faults: str) -> AsyncGenerator[tuple[Supervisor, Operator], None]:
    """A coordinator that dies at a fault, comes back and dies at the next, and its operator. Fails where it has gone
    against the order of locks.
    """
    prepare(folder / "state")
    supervisor = Supervisor(folder, steady_port(), faults)
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
        supervisor.process.send_signal(signal.SIGTERM)
        supervisor.reap()
    check_told(folder / DISORDER)


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
