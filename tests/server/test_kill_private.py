"""kill -9 between reserving, spending and committing: a round is paid once, and what is done again after a crash is the
same noised value, bit for bit.

The seed of a round's noise is read from the database while the coordinator is dead; from it the model that must be
committed is computed here, with no coordinator at all.
"""

import asyncio
import signal
import sqlite3
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from kill_kit import Supervisor, supervised, until_all_have_struck, until_no_update_is_left
from server_kit import SIZE, Device, Operator, fleet, once, update

from coterie.aggregation.private.central import CentralNoise, noised_mean
from coterie.privacy.dp.accounting import total_cost
from coterie.privacy.dp.events import Gaussian
from coterie.privacy.ledger.chain import Entry, Head, check, commitment
from coterie.privacy.ledger.events import Limit, Reserve, Spend
from coterie.protocol.privacy import UserLevel
from coterie.protocol.tensors import decode_tensors
from coterie.server.faults import BUDGET_POINTS

PRIVACY = UserLevel(clip=1.0, delta=1e-6, noise_multiplier=1.5)
VALUES = (0.1, 5.0)
POINTS = (
    *BUDGET_POINTS,
    "experiment.before_commit",
    "experiment.after_commit",
    "accept.before_commit",
    "result_blob.before_sync",
    "result_blob.after_sync",
    "aggregated.before_commit",
    "aggregated.after_commit",
    "commit.before_commit",
    "commit.after_commit",
)
KEPT = ("spent.after_commit", "result_blob.before_sync", "result_blob.after_sync", "aggregated.before_commit")
"""Where the seed lies in the database while the coordinator is dead."""


def test_every_point_of_a_budget_is_killed_at() -> None:
    assert set(BUDGET_POINTS) < set(POINTS) and set(KEPT) < set(POINTS)


@pytest.mark.parametrize("point", POINTS)
def test_kill_a_private_round_at(point: str, tmp_path: Path) -> None:
    asyncio.run(assert_the_books_hold(point, tmp_path))


async def assert_the_books_hold(point: str, folder: Path) -> None:
    """A policy, one private round, a death at the point; then the books are held against what happened."""
    seeds: list[bytes] = []
    async with supervised(folder, f"{point}:1") as (supervisor, operator):
        watching = asyncio.create_task(_note_seeds(folder, supervisor, seeds))
        token = await operator.population()
        limit = {"max_epsilon_per_year": 50.0, "delta": 1e-6}
        await operator.ok("PATCH", "/v1/populations/people", json=limit)
        request = (await operator.request(rounds=1, weight_cap=1)).model_copy(update={"privacy": PRIVACY})
        made = await operator.ok("POST", "/v1/experiments", json=request.model_dump(mode="json"), headers=once())
        devices = await fleet(operator, token, 2)
        await asyncio.gather(*(_deliver(device, value) for device, value in zip(devices, VALUES, strict=True)))
        view = await operator.finished(made["id"])
        await until_all_have_struck(supervisor)
        watching.cancel()
        assert (view["state"], view["reason"]) == ("finished", "completed")
        await _check_books(operator, made["id"], seeds)
        if point in KEPT:
            assert len(set(seeds)) == 1
            weights = decode_tensors((await operator.http.get(f"/v1/blobs/{view['latest']}")).content)
            got = np.concatenate([weights[name].reshape(-1) for name in ("w", "b")])
            assert got.tobytes() == _expected(seeds[0]).tobytes()
        await until_no_update_is_left(folder)
    assert supervisor.statuses == [-signal.SIGKILL, 0]


async def _deliver(device: Device, value: float) -> None:
    task = await device.task()
    answer = await device.upload(task, update(task, value, weight=1))
    assert answer.status_code == 200, answer.text


def _expected(seed: bytes) -> npt.NDArray[np.float32]:
    """The model of one round by this seed: the noised mean of what the devices sent, from zeros."""
    vectors = (np.full(SIZE, value, np.float32) for value in VALUES)
    terms = CentralNoise(privacy=PRIVACY, round=1, rounds=1, expected=2, seed=seed)
    return noised_mean(vectors, SIZE, terms, {}).mean.astype(np.float32)


async def _note_seeds(folder: Path, supervisor: Supervisor, seeds: list[bytes]) -> None:
    """Every seed that ever lies in the database."""
    while True:
        path = folder / "state" / "coterie.db"
        if path.exists():
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
                rows = database.execute("SELECT value FROM secrets WHERE name LIKE 'noise/%'").fetchall()
            database.close()
            seeds += [row[0] for row in rows]
        await asyncio.sleep(0.005)


async def _check_books(operator: Operator, experiment: str, seeds: list[bytes]) -> None:
    """One reservation, one payment, one committed round; the chain holds and names the noise that was used."""
    public = (await operator.ok("GET", "/v1/populations/people"))["coordinator_key"]
    page = await operator.ok("GET", "/v1/populations/people/budget/entries")
    entries = [Entry.from_json(item) for item in page["items"]]
    verdict = check(entries, head=Head(population="people"), public=public)
    assert verdict.broken is None
    events = [entry.event for entry in entries]
    assert [type(event) for event in events] == [Limit, Limit, Reserve, Spend]
    paid = events[-1]
    assert isinstance(paid, Spend) and (paid.experiment, paid.round) == (experiment, 1)
    assert {commitment(seed) for seed in seeds} <= {paid.noise}
    found = (await operator.ok("GET", "/v1/populations/people/budget"))["experiments"][0]
    assert found["epsilon_spent"] == pytest.approx(total_cost([Gaussian(1.5)], 1e-6).epsilon, rel=1e-6)
