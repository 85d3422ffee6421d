"""Trees of real coordinators: each a process of its own, talking over loopback."""

import asyncio
import json
import signal
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from kill_kit import DISORDER, HELD, start_coordinator
from server_kit import Device, Operator, fleet, once

from tests.empty_database import prepare
from tests.held_clock import HeldClock, held_in
from tests.lock_order import check_told
from tests.patience import patience
from tests.prepared import Program

WAITS = {"retry_floor_s": 0.1, "retry_idle_s": 0.1, "log_level": "critical", "shutdown_s": 1}


@dataclass
class Node:
    """A coordinator's process. settings stay the same when it is started again."""

    folder: Path
    settings: dict[str, Any]
    process: Program | None = None
    starts: int = 0
    url: str = ""

    def start(self, fault: str = "") -> "Node":
        """Start the process; `ready` says when it answers."""
        self.starts += 1
        settings = {**WAITS, "prestart": False, "folder": str(self.folder / "state"), "port": 0, **self.settings}
        self.process = start_coordinator(self.folder, settings, fault, self._ready)
        return self

    @property
    def _ready(self) -> Path:
        return self.folder / f"ready-{self.starts}"

    async def ready(self) -> "Node":
        """Wait until it answers; from then on it keeps its port."""
        async with asyncio.timeout(patience(30)):
            while not self._ready.exists():
                await asyncio.sleep(0.01)
        self.url = self._ready.read_text()
        self.settings["port"] = int(self.url.rpartition(":")[2])
        return self

    def held(self) -> AbstractContextManager[HeldClock]:
        """Hold its clock."""
        return held_in(self.folder / HELD)

    def dead(self) -> bool:
        """Whether the process has ended."""
        return self.process is not None and self.process.poll() is not None

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End the process and take note of its status."""
        if self.process is None:
            return 0
        process, self.process = self.process, None
        process.send_signal(how)
        process.communicate()
        return process.wait()

    def operator(self) -> Operator:
        """Its administrator."""
        token = (self.folder / "state" / "admin.token").read_text().strip()
        return Operator(httpx.AsyncClient(base_url=self.url, timeout=patience(30)), token)


@dataclass
class Forest:
    """Processes that end with the test."""

    folder: Path
    nodes: list[Node] = field(default_factory=list[Node])
    operators: list[Operator] = field(default_factory=list[Operator])

    @property
    def root(self) -> Node:
        """The node that was made first."""
        return self.nodes[0]

    def node(self, name: str, **settings: Any) -> Node:
        """A coordinator that is not started yet."""
        folder = self.folder / name
        folder.mkdir()
        prepare(folder / "state")
        self.nodes.append(Node(folder, settings))
        return self.nodes[-1]

    async def operator(self, node: Node) -> Operator:
        """The administrator of a node that answers."""
        self.operators.append((await node.ready()).operator())
        return self.operators[-1]

    async def edge(self, above: Operator, population: str, name: str, **settings: Any) -> tuple[Node, Operator]:
        """An edge aggregator that has joined. max_clients, min_clients: of its token."""
        bounds = {key: settings.pop(key) for key in ("min_clients", "max_clients") if key in settings}
        token = await edge_token(above, population, **bounds)
        url = str(above.http.base_url)
        node = self.node(name, upstream=url, upstream_token=token, **settings).start()
        operator = await self.operator(node)
        await joined(operator, population)
        return node, operator

    async def close(self) -> None:
        """End everything, the leaves first. Fails where a node has gone against the order of locks."""
        for operator in self.operators:
            await operator.http.aclose()
        for node in reversed(self.nodes):
            node.end()
        for node in self.nodes:
            check_told(node.folder / DISORDER)


async def edge_token(above: Operator, population: str, max_clients: int = 10, **changes: Any) -> str:
    """A token of the kind edge."""
    body = {"kind": "edge", "population": population, "max_clients": max_clients, **changes}
    return (await above.ok("POST", "/v1/tokens", json=body, headers=once()))["token"]


async def joined(operator: Operator, population: str) -> None:
    """Wait until an edge aggregator has joined."""
    async with asyncio.timeout(patience(30)):
        while not (await operator.call("GET", f"/v1/populations/{population}")).is_success:
            await asyncio.sleep(0.02)


async def devices(operator: Operator, population: str, count: int) -> list[Device]:
    """Devices that have joined a node."""
    body = {"kind": "enrol", "population": population}
    token = (await operator.ok("POST", "/v1/tokens", json=body, headers=once()))["token"]
    return await fleet(operator, token, count)


async def settled(device: Device, task: str, seconds: float = 30) -> str:
    """What became of a device's update, as soon as that is known."""
    async with asyncio.timeout(patience(seconds)):
        while not (found := (await device.check_in([task]))["settled"]):
            await asyncio.sleep(0.1)
    return found[task]


async def events(operator: Operator, experiment: str, until: str) -> list[dict[str, Any]]:
    """The events of an experiment up to the first of a type."""
    found: list[dict[str, Any]] = []
    headers = {"Authorization": f"Bearer {operator.token}"}
    async with asyncio.timeout(patience(30)):
        request = operator.http.stream("GET", "/v1/events", params={"experiment": experiment}, headers=headers)
        async with request as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    found.append(json.loads(line.removeprefix("data: ")))
                    if found[-1]["type"] == until:
                        return found
    raise AssertionError("the stream ended")


@asynccontextmanager
async def a_forest(folder: Path) -> AsyncGenerator[Forest, None]:
    """Processes for one test."""
    forest = Forest(folder)
    try:
        async with asyncio.timeout(patience(100)):
            yield forest
    finally:
        await forest.close()
