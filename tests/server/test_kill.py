"""kill -9 at every point where something becomes durable: nothing acknowledged is lost or counted twice, every round
ends by name.

The points are not sampled: the table `COMMIT_POINTS` is enumerated, and the coordinator can commit nothing outside of
it. Real coordinator processes serve over a socket, devices work with them over HTTP, SIGKILL strikes at one point after
another, each time another process takes over the folder, and the devices carry on as real ones do: they repeat what was
not answered.
"""

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from kill_kit import supervised, until_all_have_struck, until_no_update_is_left
from server_kit import Device, Operator, Recipe, fleet, measured, planted, tiny, update

from coterie.protocol.device import Task
from coterie.protocol.tensors import decode_tensors
from coterie.server.faults import BUDGET_POINTS, COMMIT_POINTS, EDGE_POINTS, SECURE_POINTS, SESSION_POINTS
from tests.held_clock import HeldClock

REFUSED = (409, 422)


@dataclass
class Ledger:
    """What the coordinator acknowledged: (experiment, round) → value and weight of each accepted update."""

    accepted: dict[tuple[str, int], list[tuple[float, int]]] = field(
        default_factory=dict[tuple[str, int], list[tuple[float, int]]]
    )
    tasks: list[tuple[Device, str, str]] = field(default_factory=list[tuple[Device, str, str]])
    held: Callable[[], AbstractContextManager[HeldClock]] = field(kw_only=True)
    """Holds the coordinator's clock."""

    def note(self, device: Device, task: Task, value: float, weight: int) -> None:
        """An acknowledged update."""
        self.accepted.setdefault((task.experiment, task.round), []).append((value, weight))
        self.tasks.append((device, task.id, task.experiment))


async def deliver(ledger: Ledger, device: Device, task: Task, value: float, recipe: Recipe | None = None) -> None:
    """Upload until it is acknowledged."""
    weight = int(10 * abs(value)) % 50 + 1
    answer = await device.upload(task, update(task, value, weight=weight, recipe=recipe))
    assert answer.status_code == 200, answer.text
    if task.kind == "train":
        ledger.note(device, task, value, weight)


async def main_story(operator: Operator, token: str, ledger: Ledger) -> list[str]:
    """One round with everything in it: progress, parts, an abort, a refusal, two accepted updates."""
    experiment = await operator.experiment(rounds=1)
    one, two, three, four = await fleet(operator, token, 4)
    first, second = await one.task(), await two.task()
    await one.send("POST", f"/v1/device/tasks/{first.id}/progress", b'{"phase":"training"}')
    answer = await two.send("POST", f"/v1/device/tasks/{second.id}/abort", b'{"phase":"training","code":"battery_low"}')
    assert answer.status_code == 204, answer.text
    third = await three.task()
    refused = await three.upload(third, planted(third, np.nan))
    assert refused.status_code in REFUSED, refused.text
    data = update(first, 1.5, weight=16)
    await one.upload(first, data, part=data[:100])
    held = await one.send("HEAD", f"/v1/device/tasks/{first.id}/update")
    offset = int(held.headers["Upload-Offset"])
    answer = await one.upload(first, data, offset=offset if offset < len(data) else 0)
    assert answer.status_code == 200, answer.text
    ledger.note(one, first, 1.5, 16)
    await deliver(ledger, four, await four.task(), 3.0)
    return [experiment]


async def late_story(operator: Operator, token: str, ledger: Ledger) -> list[str]:
    """A deadline with one update of two."""
    one, two = await fleet(operator, token, 2)
    with ledger.held():
        experiment = await operator.experiment(rounds=1, min_updates=1, deadline_s=1.0)
        await deliver(ledger, one, await one.task(), 2.0)
        await two.task()
    return [experiment]


async def lost_story(operator: Operator, token: str, ledger: Ledger) -> list[str]:
    """A lease that runs out, so that another device takes the place."""
    one, two = await fleet(operator, token, 2)
    with ledger.held() as clock:
        experiment = await operator.experiment(rounds=1, cohort=1, min_updates=1, lease_s=1.0)
        await two.task()
        clock.forward(1.1)
        await deliver(ledger, one, await one.task(), 2.0)
    return [experiment]


async def measured_story(operator: Operator, token: str, ledger: Ledger) -> list[str]:
    """A central and a federated evaluation."""
    recipe = measured()
    experiment = await operator.experiment(recipe=recipe, rounds=1, cohort=1, evaluate_every=1)
    (one,) = await fleet(operator, token, 1)
    await deliver(ledger, one, await one.task(), 0.5, recipe)
    await deliver(ledger, one, await one.task(), 0.5, recipe)
    return [experiment]


async def failing_story(operator: Operator, token: str, ledger: Ledger) -> list[str]:
    """An aggregate that overflows, and so cannot become a version."""
    experiment = await operator.experiment(rounds=1, cohort=1, lr=100.0)
    (one,) = await fleet(operator, token, 1)
    await deliver(ledger, one, await one.task(), 1e38)
    return [experiment]


async def stopped_story(operator: Operator, token: str, ledger: Ledger) -> list[str]:
    """A stop in the middle of a round, and a device shut out while it holds a task."""
    experiment = await operator.experiment()
    one, two = await fleet(operator, token, 2)
    await deliver(ledger, one, await one.task(), 2.5)
    await two.task()
    await operator.ok("POST", f"/v1/devices/{two.id}/revoke")
    await operator.ok("POST", f"/v1/experiments/{experiment}/stop")
    return [experiment]


Story = Callable[[Operator, str, Ledger], Awaitable[list[str]]]

START = ("first_start", "sweep", "population", "token")
BEGINNING = ("blob", "experiment", "enrol", "lease")
MIDDLE = ("progress", "abort", "refuse", "part")
END = ("aggregated", "commit")


def sides(names: Sequence[str], side: str) -> tuple[str, ...]:
    """One side of transactions, by name."""
    return tuple(f"{name}.{side}_commit" for name in names)


def both(name: str) -> tuple[str, ...]:
    """Both sides of a transaction."""
    return (f"{name}.before_commit", f"{name}.after_commit")


# What a coordinator lives through, and where it dies on the way: every point once, in the order of the story.
CHAINS: dict[str, tuple[Story, tuple[str, ...]]] = {
    "before the beginning": (
        main_story,
        (*sides(START, "before"), "upload_blob.before_sync", *sides(BEGINNING, "before")),
    ),
    "after the beginning": (
        main_story,
        (*sides(START, "after"), "upload_blob.after_sync", *sides(BEGINNING, "after")),
    ),
    "before the end": (
        main_story,
        (
            *sides(MIDDLE, "before"), "update_blob.before_sync", "accept.before_commit", "job.before_commit",
            "result_blob.before_sync",
            *sides(END, "before"), "blobs.before_delete", "cleanup.before_commit",
        ),
    ),
    "after the end": (
        main_story,
        (
            *sides(MIDDLE, "after"), "update_blob.after_sync", "accept.after_commit", "job.after_commit",
            "result_blob.after_sync",
            *sides(END, "after"), "blobs.after_delete", "cleanup.after_commit",
        ),
    ),
    "a lease that runs out": (lost_story, both("expire")),
    "a deadline": (late_story, both("deadline")),
    "an evaluation": (measured_story, both("evaluated")),
    "a failing aggregate": (failing_story, both("aggregate_failed")),
    "a device shut out": (stopped_story, both("revoke")),
    "a stop": (stopped_story, both("stop")),
}  # fmt: skip

ENDINGS: dict[Story, tuple[str, str, str, str | None]] = {
    main_story: ("finished", "completed", "committed", None),
    late_story: ("finished", "completed", "committed", None),
    lost_story: ("finished", "completed", "committed", None),
    measured_story: ("finished", "completed", "committed", None),
    failing_story: ("finished", "completed", "abandoned", "aggregate_failed"),
    stopped_story: ("stopped", "stopped", "abandoned", "stopped"),
}

ELSEWHERE = (*EDGE_POINTS, *SECURE_POINTS, *BUDGET_POINTS, *SESSION_POINTS)


def test_every_point_is_struck_once() -> None:
    struck = [point for _, points in CHAINS.values() for point in points]
    assert sorted(struck) == sorted(set(COMMIT_POINTS) - set(ELSEWHERE))


@pytest.mark.parametrize("chain", CHAINS)
def test_kill_at(chain: str, tmp_path: Path) -> None:
    asyncio.run(assert_nothing_is_lost(*CHAINS[chain], tmp_path))


async def assert_nothing_is_lost(story: Story, points: Sequence[str], folder: Path) -> None:
    """Live through a story in which the coordinator dies at each point, then hold it to what it acknowledged."""
    async with supervised(folder, *(f"{point}:1" for point in points)) as (supervisor, operator):
        ledger = Ledger(held=supervisor.held)
        token = await operator.population()
        (experiment,) = await story(operator, token, ledger)
        await operator.finished(experiment)
        await until_all_have_struck(supervisor)
        await check_rounds(operator, experiment, ENDINGS[story])
        await check_updates(operator, experiment, ledger, measured() if story is measured_story else tiny())
        await check_events(operator, experiment, ledger)
        await until_no_update_is_left(folder)
    assert supervisor.statuses == [*([-signal.SIGKILL] * len(points)), 0]


async def check_rounds(operator: Operator, experiment: str, ending: tuple[str, str, str, str | None]) -> None:
    """The experiment and its one round ended by name."""
    view = await operator.state(experiment)
    (entry,) = await operator.rounds(experiment)
    assert (view["state"], view["reason"], entry["state"], entry["cause"]) == ending


async def check_updates(operator: Operator, experiment: str, ledger: Ledger, recipe: Recipe) -> None:
    """Each acknowledged update is in the model exactly once, and its device is told so."""
    (entry,) = await operator.rounds(experiment)
    counted = ledger.accepted.get((experiment, 1), [])
    assert entry["accepted"] == len(counted)
    models = await operator.models(experiment)
    committed = entry["state"] == "committed"
    assert [model["round"] for model in models] == ([0, 1] if committed else [0])
    if committed:
        before = decode_tensors(recipe.initial)
        after = decode_tensors((await operator.http.get(f"/v1/blobs/{models[1]['sha256']}")).content)
        mean = sum(value * weight for value, weight in counted) / sum(weight for _, weight in counted)
        for name, start in before.items():
            assert np.allclose(after[name], start + mean, rtol=1e-6)
    for device, task, owner in ledger.tasks:
        if owner == experiment:
            settled = (await device.check_in([task]))["settled"]
            assert settled == {task: "counted" if committed else "rolled_back"}


async def check_events(operator: Operator, experiment: str, ledger: Ledger) -> None:
    """The events say the same: each acceptance and each end once, numbered upwards."""
    found: list[dict[str, Any]] = []
    headers = {"Authorization": f"Bearer {operator.token}"}
    url = operator.http.base_url.join("/v1/events")
    async with (
        httpx.AsyncClient() as http,
        http.stream("GET", url, params={"experiment": experiment}, headers=headers) as answer,
    ):
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
                if found[-1]["type"] == "experiment.finished":
                    break
    numbers = [event["id"] for event in found]
    assert numbers == sorted(set(numbers))
    accepted = [
        event["data"]["task"]
        for event in found
        if event["type"] == "update.accepted" and event["data"]["kind"] == "train"
    ]
    assert sorted(accepted) == sorted(task for _, task, owner in ledger.tasks if owner == experiment)
    assert sum(event["type"] in ("round.committed", "round.abandoned") for event in found) == 1
