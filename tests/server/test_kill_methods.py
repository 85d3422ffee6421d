"""kill -9 in the second round of a method that the server keeps state for: nothing of that state is lost, and nothing
of it moves twice.

SCAFFOLD keeps its variate in the version and runs here with momentum on the server, FedDyn its h beside it, and centred
clipping the aggregate that it goes on from; FLTrust finds its trusted device's update again. After the third round the
version is what the formulas give that never heard of a restart.
"""

import asyncio
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from kill_kit import supervised, until_all_have_struck, until_no_update_is_left
from server_kit import Device, Operator, Recipe, fleet, once, tiny

from coterie.aggregation.horizontal import FedDyn, Scaffold
from coterie.aggregation.plan.manifest import DELTA, METRICS, Manifest, NamedRule
from coterie.protocol.control import ServerRule
from coterie.protocol.device import Task
from coterie.protocol.layout import Layout
from coterie.protocol.sections import SectionSpec
from coterie.protocol.tensors import decode_tensors, encode_tensors
from coterie.protocol.update import encode_update

ROUNDS, CLIENTS, ALPHA, MOMENTUM, TAU = 3, 4, 0.5, 0.5, 1.5
WEIGHTS = (10, 30)
SHARE = len(WEIGHTS) / CLIENTS


def manifests() -> Mapping[str, Manifest]:
    """Plans whose trainer is the test itself."""
    plain = tiny().manifest
    metrics = plain.sections[-1]
    layout = Layout.of({**plain.layout.shapes, **{f"variate/{n}": s for n, s in plain.layout.shapes.items()}})
    half = plain.layout.size
    sections = (SectionSpec.over(DELTA, layout, [(0, half)]), SectionSpec.over("variate", layout, [(half, 2 * half)]))
    dyn, scaffold = FedDyn(CLIENTS, ALPHA), Scaffold(CLIENTS)
    return {
        "feddyn": replace(plain, algorithm=NamedRule(dyn.name, dyn.parameters)),
        "clipping": plain,
        "fltrust": plain,
        "scaffold": replace(
            plain, layout=layout, sections=(*sections, metrics), algorithm=NamedRule(scaffold.name, scaffold.parameters)
        ),
    }


Sent = list[list[tuple[float, float]]]
"""Of each round: what each device sent as delta and as change of the variate."""


def means(sent: Sent) -> list[tuple[float, float]]:
    """The weighted means of each round."""
    found = [np.average(each, axis=0, weights=WEIGHTS) for each in sent]
    return [(float(delta), float(change)) for delta, change in found]


def clipping(sent: Sent) -> npt.NDArray[np.float64]:
    x = v = np.zeros(4)
    for each in sent:
        apart = [np.full(4, delta) - v for delta, _ in each]
        v = v + np.mean([one * min(1, TAU / np.linalg.norm(one)) for one in apart], axis=0)
        x = x + v
    return x


def fltrust(sent: Sent) -> npt.NDArray[np.float64]:
    """All point one way, so each round goes as far as the first device, which is trusted."""
    return np.full(4, sum(each[0][0] for each in sent))


def feddyn(sent: Sent) -> npt.NDArray[np.float64]:
    x = h = 0.0
    for mean, _ in means(sent):
        h -= ALPHA * SHARE * mean
        x += mean - h / ALPHA
    return np.full(4, x)


def scaffold(sent: Sent) -> npt.NDArray[np.float64]:
    x = c = velocity = 0.0
    for mean, change in means(sent):
        velocity = MOMENTUM * velocity + mean
        x, c = x + velocity, c + SHARE * change
    return np.repeat([x, c], 4)


FORMULAS: Mapping[str, Callable[[Sent], npt.NDArray[np.float64]]] = {
    "feddyn": feddyn,
    "scaffold": scaffold,
    "clipping": clipping,
    "fltrust": fltrust,
}
RULES = {"clipping": f"centered_clipping({TAU})", "fltrust": "fltrust"}
# FedDyn says itself where the model goes, so its server optimizer must be plain.
SERVERS = {
    "feddyn": ServerRule(name="sgd", parameters={"lr": 1.0, "momentum": 0.0}),
    "clipping": ServerRule(name="sgd", parameters={"lr": 1.0, "momentum": 0.0}),
    "fltrust": ServerRule(name="sgd", parameters={"lr": 1.0, "momentum": 0.0}),
    "scaffold": ServerRule(name="sgd", parameters={"lr": 1.0, "momentum": MOMENTUM}),
}
STRIKES = (
    ("scaffold", "accept.after_commit:3"),
    ("scaffold", "aggregated.before_commit:2"),
    ("feddyn", "result_blob.after_sync:4"),
    ("feddyn", "commit.before_commit:2"),
    ("clipping", "aggregated.before_commit:2"),
    ("clipping", "commit.before_commit:2"),
    ("fltrust", "accept.after_commit:3"),
    ("fltrust", "aggregated.before_commit:2"),
)


@pytest.mark.parametrize(("method", "strike"), STRIKES)
def test_kill_in_the_second_round_of_a_method_with_state(method: str, strike: str, tmp_path: Path) -> None:
    asyncio.run(assert_nothing_is_lost(method, strike, tmp_path))


async def assert_nothing_is_lost(method: str, strike: str, folder: Path) -> None:
    manifest = manifests()[method]
    first = encode_tensors(manifest.layout.unflatten(np.zeros(manifest.layout.size, np.float32)))
    async with supervised(folder, strike) as (supervisor, operator):
        token = await operator.population()
        devices = await fleet(operator, token, len(WEIGHTS))
        trusted = devices[0].id if method == "fltrust" else None
        request = await operator.request(recipe=Recipe(manifest, {}, first), rounds=ROUNDS, trusted=trusted)
        changed = {"server": SERVERS[method], "reducer": RULES.get(method, "mean")}
        body = request.model_copy(update=changed).model_dump(mode="json")
        experiment = (await operator.ok("POST", "/v1/experiments", json=body, headers=once()))["id"]
        delivered: Sent = []
        for number in range(ROUNDS):
            sent = [(1.0 + number + place, 0.25 * number - place) for place in range(len(WEIGHTS))]
            held = [await device.task() for device in devices]
            for device, task, values, weight in zip(devices, held, sent, WEIGHTS, strict=True):
                await deliver(device, task, manifest, values, weight)
            delivered.append(sent)
        view = await operator.finished(experiment)
        await until_all_have_struck(supervisor)
        assert view["state"] == "finished"
        await check(operator, experiment, manifest, FORMULAS[method](delivered))
        await until_no_update_is_left(folder)
    assert supervisor.statuses == [-signal.SIGKILL, 0]


async def deliver(device: Device, task: Task, manifest: Manifest, values: tuple[float, float], weight: int) -> None:
    """Upload until it is acknowledged."""
    sections: dict[str, npt.NDArray[Any]] = {METRICS: np.array((weight, 1.0, 1.0), np.float64)}
    for spec, value in zip(manifest.sections, values, strict=False):
        if spec.name != METRICS:
            sections[spec.name] = np.full(spec.length, value, np.float32)
    data = encode_update(
        task=task.id,
        plan=task.plan.id,
        base=task.model.sha256,
        weight=weight,
        steps=1,
        specs=manifest.sections,
        sections=sections,
    ).data
    answer = await device.upload(task, data)
    assert answer.status_code == 200, answer.text


async def check(operator: Operator, experiment: str, manifest: Manifest, expected: npt.NDArray[np.float64]) -> None:
    """Every round counted everybody, and the last version is what the formulas give."""
    assert [entry["accepted"] for entry in await operator.rounds(experiment)] == [len(WEIGHTS)] * ROUNDS
    newest = (await operator.models(experiment))[-1]
    weights = decode_tensors((await operator.http.get(f"/v1/blobs/{newest['sha256']}")).content)
    np.testing.assert_allclose(manifest.layout.flatten(weights), expected, rtol=1e-6)
