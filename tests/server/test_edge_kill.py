"""kill -9 of an edge aggregator at every point that only it reaches: nothing acknowledged is lost or counted twice.

One life goes through all the points: at each start the process is told where to die next, and the next process takes
over the folder. The root lives on, the devices repeat what was not answered.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import httpx
import numpy as np
from edge_kit import Forest, Node, a_forest, devices, edge_token, joined
from server_kit import Device, Operator, update

from coterie.protocol.device import Task
from coterie.protocol.tensors import decode_tensors
from coterie.server.faults import EDGE_POINTS
from tests.patience import patience

JOINING = ("edge_key", "joined")
WORKING = ("mirror_blob", "fetched", "mirrored", "accumulator_blob", "answered", "settled")
ENDING = ("withdrawn", "told")


def points(names: Sequence[str]) -> list[str]:
    """Their points, before and after, in the order in which a life meets them."""
    found = [point for name in names for point in EDGE_POINTS if point.rpartition(".")[0] in (name, f"{name}_commit")]
    return sorted(found, key=lambda point: (names.index(point.split(".")[0]), "after" in point))


def test_these_are_all_the_points() -> None:
    assert sorted(EDGE_POINTS) == sorted(points([*JOINING, *WORKING, *ENDING]))


class Lives:
    """An edge aggregator that is started again wherever it dies, with the next point to die at."""

    def __init__(self, node: Node, at: Sequence[str]) -> None:
        self.node, self.at, self.died = node, list(at), list[str]()
        self._next()

    def _next(self) -> None:
        self.node.start(f"{self.at[0]}:1" if self.at else "")

    async def watch(self) -> None:
        """Start another process whenever one dies."""
        while True:
            if self.node.dead():
                assert self.node.end(signal.SIGKILL) == -signal.SIGKILL
                self.died.append(self.at.pop(0))
                self._next()
            await asyncio.sleep(0.02)

    async def until_dead_everywhere(self) -> None:
        """Wait until it has died at every point and answers again."""
        while self.at:
            await asyncio.sleep(0.02)
        await self.node.ready()


async def patiently(work: Callable[[], Awaitable[object]]) -> None:
    """Do something again until the edge aggregator lived long enough to answer."""
    while True:
        try:
            await work()
            return
        except (httpx.TransportError, AssertionError, TimeoutError):
            await asyncio.sleep(0.05)


async def one_update(device: Device, sent: dict[str, Task], value: float) -> None:
    """The device's update of its task, until it is acknowledged."""
    held = sent.get(device.id) or await device.task(2)
    sent[device.id] = held
    answer = await device.upload(held, update(held, value))
    assert answer.is_success, answer.text


async def told(device: Device, task: Task, verdict: str) -> None:
    assert (await device.check_in([task.id]))["settled"] == {task.id: verdict}


def test_an_edge_killed_at_every_point_of_its_work_loses_nothing(tmp_path: Path) -> None:
    async def story(forest: Forest) -> None:
        root = await forest.operator(forest.node("root", prestart=True).start())
        await root.population()
        _, lives, below = await born(forest, root, points([*JOINING, *WORKING]))
        watching = asyncio.create_task(lives.watch())
        experiment = await root.experiment(cohort=1, rounds=2, deadline_s=patience(90.0), lease_s=patience(60.0))
        for number in (1, 2):
            sent: dict[str, Task] = {}
            for device, value in zip(below, (1.0, 2.0), strict=True):
                await patiently(lambda d=device, v=value, s=sent: one_update(d, s, v))
            await root.until_round(experiment, number, "committed")
            for device in below:
                await patiently(lambda d=device, s=sent: told(d, s[d.id], "counted"))
        await lives.until_dead_everywhere()
        assert lives.died == points([*JOINING, *WORKING])
        models = await root.models(experiment)
        last = decode_tensors((await root.http.get(f"/v1/blobs/{models[2]['sha256']}")).content)
        # Two rounds of mean 1.5, the second with momentum 0.5 of the first.
        assert np.array_equal(last["w"], np.full(3, 1.5 + (1.5 + 0.75), np.float32))
        assert [entry["accepted"] for entry in await root.rounds(experiment)] == [1, 1]
        watching.cancel()

    asyncio.run(alive(tmp_path, story))


def test_an_edge_killed_while_it_gives_up_loses_nothing(tmp_path: Path) -> None:
    async def story(forest: Forest) -> None:
        root = await forest.operator(forest.node("root", prestart=True).start())
        await root.population()
        node, lives, below = await born(forest, root, [])
        watching = asyncio.create_task(lives.watch())
        for name in ENDING:
            node.end(signal.SIGTERM)
            lives.at = points([name])
            node.start(f"{lives.at[0]}:1")
            # The edge hears of a stop several times in a lease, which never ends.
            with forest.root.held():
                experiment = await root.experiment(cohort=1, rounds=1, lease_s=2.0)
                sent: dict[str, Task] = {}
                await patiently(lambda s=sent: one_update(below[0], s, 1.0))
                if name == "withdrawn":
                    await root.ok("POST", f"/v1/experiments/{experiment}/stop")
                else:
                    await patiently(lambda e=experiment: stop_here(node, e))
                await patiently(lambda s=sent: told(below[0], s[below[0].id], "rolled_back"))
                await lives.until_dead_everywhere()
                if name == "told":
                    await root.ok("POST", f"/v1/experiments/{experiment}/stop")
        assert lives.died == points(ENDING)
        watching.cancel()

    asyncio.run(alive(tmp_path, story))


async def stop_here(node: Node, experiment: str) -> None:
    """Let the edge's own operator stop its part."""
    operator = node.operator()
    async with operator.http:
        await operator.ok("POST", f"/v1/experiments/{experiment}/stop")


async def born(forest: Forest, root: Operator, at: Sequence[str]) -> tuple[Node, Lives, list[Device]]:
    """An edge aggregator that dies while it joins, on a port that stays; then two devices of it."""
    token = await edge_token(root, "people")
    node = forest.node("edge", upstream=str(root.http.base_url), upstream_token=token, edge_cohort=2)
    lives = Lives(node, [point for point in at if point.split(".")[0] in JOINING])
    watching = asyncio.create_task(lives.watch())
    await lives.until_dead_everywhere()
    operator = await forest.operator(node)
    await joined(operator, "people")
    below = await devices(operator, "people", 2)
    watching.cancel()
    node.end(signal.SIGTERM)
    joining = lives.died
    lives = Lives(node, [point for point in at if point.split(".")[0] not in JOINING])
    lives.died = joining
    return node, lives, below


async def alive(folder: Path, story: Callable[[Forest], Awaitable[None]]) -> None:
    """Live through a story."""
    async with a_forest(folder) as forest:
        await story(forest)
