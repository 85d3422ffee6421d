"""Hierarchical rounds over real HTTP: every coordinator is a process, every device speaks to its own edge."""

import asyncio
import json
import signal
import socket
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from edge_kit import Forest, a_forest, devices, events, settled
from server_kit import Device, Operator, fleet, update

from coterie.protocol.device import Task
from coterie.protocol.tensors import decode_tensors
from tests.patience import patience

Story = Callable[[Forest], Coroutine[Any, Any, None]]


@pytest.fixture
def tell(tmp_path: Path) -> Callable[[Story], None]:
    """Live through a story among processes that end with it."""

    def live(story: Story) -> None:
        async def inside() -> None:
            async with a_forest(tmp_path) as forest:
                await story(forest)

        asyncio.run(inside())

    return live


async def plant(forest: Forest, population: str = "people") -> Operator:
    """A root with a population."""
    root = await forest.operator(forest.node("root", prestart=True).start())
    await root.population(population)
    return root


def value_of(number: int) -> float:
    """Numbers whose sums round differently in different orders."""
    return float(np.float32(1 / (3 + number)))


async def deliver(device: Device, task: Task, value: float, weight: int = 10) -> str:
    answer = await device.upload(task, update(task, value, weight=weight))
    assert answer.is_success, answer.text
    return task.id


async def train(fleet: Sequence[Device], first: int = 0) -> list[str]:
    """Every device trains once, one after another; its value and weight follow from its place."""
    return [
        await deliver(device, await device.task(), value_of(place), weight=1 + place % 7)
        for place, device in enumerate(fleet, first)
    ]


async def weights(root: Operator, experiment: str, round: int) -> npt.NDArray[np.float32]:
    model = next(entry for entry in await root.models(experiment) if entry["round"] == round)
    tensors = decode_tensors((await root.http.get(f"/v1/blobs/{model['sha256']}")).content)
    return np.concatenate([tensors[name].reshape(-1) for name in sorted(tensors)])


def test_a_tree_makes_what_a_flat_round_makes(tell: Callable[[Story], None]) -> None:
    async def story(forest: Forest) -> None:
        root = await plant(forest)
        _, left = await forest.edge(root, "people", "left", edge_cohort=3, edge_name="ward")
        _, right = await forest.edge(root, "people", "right", edge_cohort=2, edge_name="ward")
        listed = [row for row in (await root.ok("GET", "/v1/devices"))["items"] if row["kind"] == "edge"]
        # One name, and two all the same.
        assert [row["name"] for row in listed] == ["ward"] * 2 and len({row["id"] for row in listed}) == 2
        own = await devices(root, "people", 1)
        everybody = [*await devices(left, "people", 3), *await devices(right, "people", 2), *own]
        tree = await root.experiment(cohort=3, rounds=2)
        for first in (0, 20):
            tasks = await train(everybody, first)
            verdicts = [await settled(device, task) for device, task in zip(everybody, tasks, strict=True)]
            assert verdicts == ["counted"] * 6
        assert (await root.finished(tree))["reason"] == "completed"

        flat_token = await root.population("flat")
        crowd = await fleet(root, flat_token, 6)
        flat = await root.experiment("flat", cohort=6, rounds=2)
        for first in (0, 20):
            await train(crowd, first)
            await root.until_round(flat, 1 if first == 0 else 2, "committed")
        for number in (1, 2):
            np.testing.assert_array_max_ulp(
                await weights(root, tree, number), await weights(root, flat, number), maxulp=1
            )
        # What is over above is over at every edge, and nothing of its rounds lies about.
        for edge in (left, right):
            assert (await edge.finished(tree))["reason"] == "completed"
            assert [entry["state"] for entry in await edge.rounds(tree)] == ["committed", "committed"]
        await no_update_is_left(forest)

    tell(story)


async def no_update_is_left(forest: Forest) -> None:
    async with asyncio.timeout(patience(60)):
        while any(p.is_file() for node in forest.nodes for p in (node.folder / "state/blobs/updates").rglob("*")):
            await asyncio.sleep(0.02)


def test_a_tree_of_depth_three_is_one_round(tell: Callable[[Story], None]) -> None:
    async def story(forest: Forest) -> None:
        root = await plant(forest)
        _, middle = await forest.edge(root, "people", "middle", max_clients=5, edge_cohort=2, edge_min_clients=5)
        _, low = await forest.edge(middle, "people", "low", max_clients=4, edge_cohort=4)
        lonely = await devices(middle, "people", 1)
        everybody = [*await devices(low, "people", 4), *lonely]
        experiment = await root.experiment(cohort=1, rounds=1)
        tasks = await train(everybody)
        assert [await settled(d, t) for d, t in zip(everybody, tasks, strict=True)] == ["counted"] * 5
        values = np.array([value_of(place) for place in range(5)])
        mean = np.average(values, weights=[1 + place % 7 for place in range(5)])
        np.testing.assert_array_max_ulp(await weights(root, experiment, 1), np.full(4, mean, np.float32), maxulp=1)
        accepted = [e for e in await events(root, experiment, "experiment.finished") if e["type"] == "update.accepted"]
        assert [event["data"]["clients"] for event in accepted] == [5]

    tell(story)


def test_devices_below_an_edge_evaluate_too(tell: Callable[[Story], None]) -> None:
    async def story(forest: Forest) -> None:
        root = await plant(forest)
        _, edge = await forest.edge(root, "people", "edge", edge_cohort=2)
        (listed,) = [row for row in (await root.ok("GET", "/v1/devices"))["items"] if row["kind"] == "edge"]
        assert listed["name"] == f"edge aggregator on {socket.gethostname()}"
        below, own = await devices(edge, "people", 2), await devices(root, "people", 1)
        experiment = await root.experiment(cohort=2, rounds=1, evaluate_every=1, evaluation_cohort=2)
        await train([*below, *own])
        for device, accuracy in zip([*below, *own], (0.2, 0.4, 0.9), strict=True):
            task = await device.task()
            assert task.kind == "evaluate"
            data = update(task, sums=(10, 5.0, 10 * accuracy))
            assert (await device.upload(task, data)).is_success
        entry = await root.until_round(experiment, 1, "committed")
        assert entry["evaluated"] == 2
        assert entry["metrics"]["accuracy"] == pytest.approx(0.5)
        fairness = entry["fairness"]["accuracy"]
        assert fairness["clients"] == 3
        assert fairness["worst_decile"] == pytest.approx(0.2, abs=1 / 128)

    tell(story)


async def asked(device: Device, rows: int, seconds: float = 30) -> Task | None:
    """The first task of a device that says how many rows it holds; None after a while without one."""
    capabilities = {"trainers": ["external"], "features": ["evaluate/1"]}
    body = json.dumps({"capabilities": capabilities, "data": {"examples": rows, "labels": []}}).encode()
    ends = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < ends:
        found = (await device.send("POST", "/v1/device/check-in", body)).json()["task"]
        if found is not None:
            return Task.model_validate(found)
        await asyncio.sleep(0.02)
    return None


def test_an_evaluation_alone_asks_the_same_devices_below_an_edge(tell: Callable[[Story], None]) -> None:
    async def story(forest: Forest) -> None:
        root = await plant(forest)
        _, edge = await forest.edge(root, "people", "edge", edge_cohort=2)
        small, *large = await devices(edge, "people", 3)
        only = await root.experiment(cohort=1, rounds=1, purpose="evaluate", evaluate_every=1, min_examples=50)
        for device in large:
            task = await asked(device, 50)
            assert task is not None and task.kind == "evaluate"
            assert await asked(small, 49, seconds=0.2) is None
            assert (await device.upload(task, update(task, sums=(10, 5.0, 5.0)))).is_success
        assert (await root.finished(only))["reason"] == "completed"
        # What training made, anybody below may measure.
        both = await root.experiment(cohort=1, rounds=1, evaluate_every=1, evaluation_cohort=1, min_examples=50)
        for device in large:
            task = await asked(device, 50)
            assert task is not None and task.kind == "train"
            await deliver(device, task, 1.0)
        for device in (small, large[0]):
            task = await asked(device, 49)
            assert task is not None and task.kind == "evaluate"
            assert (await device.upload(task, update(task, sums=(10, 5.0, 5.0)))).is_success
        assert (await root.finished(both))["reason"] == "completed"

    tell(story)


def test_an_edge_with_too_few_clients_says_so_and_the_round_goes_on(tell: Callable[[Story], None]) -> None:
    async def story(forest: Forest) -> None:
        root = await plant(forest)
        node, edge = await forest.edge(root, "people", "edge", edge_cohort=3, edge_deadline_s=1.0, min_clients=3)
        below, own = await devices(edge, "people", 2), await devices(root, "people", 1)
        with forest.root.held():
            with node.held():
                experiment = await root.experiment(cohort=2, rounds=1, min_updates=1, deadline_s=2.0)
                tasks = await train(below)
                await train(own)
            assert [await settled(d, t) for d, t in zip(below, tasks, strict=True)] == ["rolled_back"] * 2
            await events(root, experiment, "task.aborted")
        view = await root.finished(experiment)
        told = [e for e in await events(root, experiment, "experiment.finished") if e["type"] == "task.aborted"]
        assert view["reason"] == "completed"
        # It is asked again in the same round, and then nobody is left to train.
        assert [event["data"]["code"] for event in told][:1] == ["too_few_updates"]
        np.testing.assert_array_equal(await weights(root, experiment, 1), np.full(4, value_of(0), np.float32))

    tell(story)


def test_an_edge_that_vanishes_costs_its_round_and_no_more(tell: Callable[[Story], None]) -> None:
    async def story(forest: Forest) -> None:
        root = await plant(forest)
        node, edge = await forest.edge(root, "people", "edge", edge_cohort=2)
        below, own = await devices(edge, "people", 2), await devices(root, "people", 1)
        with forest.root.held() as clock:
            experiment = await root.experiment(cohort=2, rounds=2, min_updates=1, lease_s=2.0)
            (first,) = await train(below[:1])
            await train(own)
            assert node.end(signal.SIGKILL) == -signal.SIGKILL
            # The lease runs out; somebody else takes the place; the round goes on.
            clock.forward(2.1)
            (other,) = await devices(root, "people", 1)
            await deliver(other, await other.task(), 5.0)
            await root.until_round(experiment, 1, "committed")
            # The edge comes back, learns that nobody waits for its round, and takes part in the next one.
            await node.start().ready()
            assert await settled(below[0], first) == "rolled_back"
            tasks = [*await train(below), *await train(own)]
            assert [await settled(d, t) for d, t in zip([*below, *own], tasks, strict=True)] == ["counted"] * 3
        ended = {entry["state"]: entry["cause"] for entry in await edge.rounds(experiment)}
        assert ended == {"abandoned": "withdrawn", "committed": None}

    tell(story)


def test_a_round_that_is_stopped_above_is_withdrawn_below(tell: Callable[[Story], None]) -> None:
    async def story(forest: Forest) -> None:
        root = await plant(forest)
        _, edge = await forest.edge(root, "people", "edge", edge_cohort=2)
        below = await devices(edge, "people", 2)
        # The edge says above that it works, and hears of the stop, several times in a lease, which never ends.
        with forest.root.held():
            experiment = await root.experiment(cohort=1, rounds=1, lease_s=2.0)
            (task,) = await train(below[:1])
            await root.ok("POST", f"/v1/experiments/{experiment}/stop")
            assert await settled(below[0], task) == "rolled_back"
        (entry,) = await edge.rounds(experiment)
        assert (entry["state"], entry["cause"]) == ("abandoned", "withdrawn")
        assert (await edge.finished(experiment))["reason"] == "completed"

    tell(story)


def test_the_operator_of_an_edge_can_stop_its_part(tell: Callable[[Story], None]) -> None:
    async def story(forest: Forest) -> None:
        root = await plant(forest)
        _, edge = await forest.edge(root, "people", "edge", edge_cohort=2)
        (below,) = await devices(edge, "people", 1)
        with forest.root.held():
            experiment = await root.experiment(cohort=1, rounds=1)
            await below.task()
            await edge.ok("POST", f"/v1/experiments/{experiment}/stop")
            assert (await edge.state(experiment))["state"] == "stopped"
            (other,) = await devices(root, "people", 1)
            await train([other])
            await root.finished(experiment)
        told = [e for e in await events(root, experiment, "experiment.finished") if e["type"] == "task.aborted"]
        assert {event["data"]["code"] for event in told} <= {"stopped", "stopped_here"}
        assert told

    tell(story)


BUFFERED: dict[str, Any] = {"mode": "buffered", "concurrency": 3, "cohort": 2, "rounds": 2}


def test_a_late_edge_counts_in_a_buffer_by_its_lag(tell: Callable[[Story], None]) -> None:
    """Its sums and its weight fade as those of its devices would have, each on its own."""

    async def story(forest: Forest) -> None:
        root = await plant(forest)
        _, edge = await forest.edge(root, "people", "edge", edge_cohort=2)
        below, own = await devices(edge, "people", 2), await devices(root, "people", 2)
        experiment = await root.experiment(lease_s=patience(60.0), deadline_s=patience(60.0), **BUFFERED)
        held = [await device.task() for device in below]
        for device, value in zip(own, (1.0, 3.0), strict=True):
            await deliver(device, await device.task(), value)
        await root.until_round(experiment, 1, "committed")
        late = [
            await deliver(device, task, value, weight)
            for device, task, value, weight in zip(below, held, (4.0, 6.0), (20, 10), strict=True)
        ]
        await deliver(own[0], await own[0].task(), 1.0, 20)
        await root.finished(experiment)
        assert [await settled(d, t) for d, t in zip(below, late, strict=True)] == ["counted"] * 2
        assert [entry["accepted"] for entry in await root.rounds(experiment)] == [2, 2]
        fade = 2**-0.5
        mean = (fade * (20 * 4.0 + 10 * 6.0) + 20 * 1.0) / (fade * 30 + 20)
        np.testing.assert_array_equal(await weights(root, experiment, 1), np.full(4, 2.0, np.float32))
        np.testing.assert_allclose(await weights(root, experiment, 2), np.full(4, 2.0 + 0.5 * 2.0 + mean), rtol=1e-6)

    tell(story)


def test_an_edge_that_lags_beyond_the_cap_withdraws_its_round(tell: Callable[[Story], None]) -> None:
    async def story(forest: Forest) -> None:
        root = await plant(forest)
        _, edge = await forest.edge(root, "people", "edge", edge_cohort=2)
        below, own = await devices(edge, "people", 2), await devices(root, "people", 2)
        with forest.root.held():
            experiment = await root.experiment(lease_s=patience(15.0), staleness_cap=0, **BUFFERED)
            late = await deliver(below[0], await below[0].task(), 9.0)
            for device in own:
                await deliver(device, await device.task(), 1.0)
            await root.until_round(experiment, 1, "committed")
            assert await settled(below[0], late) == "rolled_back"
        first = min(await edge.rounds(experiment), key=lambda entry: entry["round"])
        assert (first["state"], first["cause"]) == ("abandoned", "withdrawn")

    tell(story)
