"""Files that change on the disk under the coordinator: nothing of them goes into a model, and each is named."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from server_kit import Opener, Operator, Recipe, fleet, measured, once, sha256, tiny, update
from structlog.testing import capture_logs

from coterie.protocol.tensors import decode_tensors
from coterie.server.coordinator import Coordinator


def stored(folder: Path, shelf: str, digest: str) -> Path:
    """Where the file of a digest lies."""
    (found,) = (folder / "blobs" / shelf).rglob(digest)
    return found


def flip(path: Path, at: int = -3) -> None:
    """Change one bit."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def counted(operator: Operator) -> float:
    here: Coordinator = operator.app.state.coordinator
    return here.metrics.registry.get_sample_value("coterie_damaged_blobs_total") or 0.0


async def version(operator: Operator, digest: str) -> dict[str, NDArray[Any]]:
    """The weights of a model version."""
    return decode_tensors((await operator.call("GET", f"/v1/blobs/{digest}")).content)


def test_an_accepted_update_that_changes_on_the_disk_goes_into_no_model(coordinator: Opener) -> None:
    async def check() -> None:
        async with coordinator() as operator:
            token = await operator.population()
            experiment = await operator.experiment(rounds=1, cohort=2, min_updates=1, lr=1.0)
            one, two = await fleet(operator, token, 2)
            task, other = await one.task(), await two.task()
            data = update(task, 5.0)
            assert (await one.upload(task, data)).json()["state"] == "accepted"
            flip(stored(operator.app.state.coordinator.settings.folder, "updates", sha256(data)))
            with capture_logs() as logs:
                assert (await two.upload(other, update(other, 1.0))).json()["state"] == "accepted"
                await operator.finished(experiment)
            (record,) = await operator.rounds(experiment)
            assert (record["state"], record["accepted"]) == ("committed", 1)
            first, last = await operator.models(experiment)
            before, after = [await version(operator, each["sha256"]) for each in (first, last)]
            changes = {name: np.unique(after[name] - before[name]).tolist() for name in before}
            assert all(change == [1.0] for change in changes.values()), changes
            (said,) = [entry for entry in logs if entry["event"] == "a stored update is damaged"]
            assert (said["log_level"], said["task"]) == ("error", task.id)
            assert sha256(data) in said["why"]
            assert counted(operator) == 1
            assert (await one.check_in([task.id]))["settled"] == {task.id: "rolled_back"}

    asyncio.run(check())


def test_a_round_whose_base_is_damaged_ends_by_that_name(coordinator: Opener) -> None:
    async def check() -> None:
        async with coordinator() as operator:
            token = await operator.population()
            experiment = await operator.experiment(rounds=1, cohort=1)
            (device,) = await fleet(operator, token, 1)
            task = await device.task()
            flip(stored(operator.app.state.coordinator.settings.folder, "blobs", task.model.sha256))
            with capture_logs() as logs:
                await device.upload(task, update(task))
                await operator.until_round(experiment, 1, "abandoned")
            assert any(task.model.sha256 in entry.get("why", "") for entry in logs if entry["log_level"] == "error")
            assert counted(operator) >= 1

    asyncio.run(check())


def test_a_blob_that_is_served_and_not_what_it_is_named_for_is_told(coordinator: Opener) -> None:
    async def check() -> None:
        async with coordinator() as operator:
            await operator.population()
            recipe = tiny()
            await operator.experiment(recipe=recipe)
            path = stored(operator.app.state.coordinator.settings.folder, "blobs", sha256(recipe.initial))
            flip(path)
            with capture_logs() as logs:
                await operator.call("GET", f"/v1/blobs/{path.name}")
            (said,) = [entry for entry in logs if entry["event"] == "a stored blob is damaged"]
            assert said["file"] == str(path)
            assert counted(operator) == 1

    asyncio.run(check())


@pytest.mark.parametrize("damage", ["flipped", "missing", "graph"])
def test_a_damaged_plan_stops_its_own_experiment_alone_until_the_file_is_back(coordinator: Opener, damage: str) -> None:
    broken, whole = measured(), tiny()

    def file_of(recipe: Recipe, folder: Path) -> Path:
        graph = next(iter(recipe.graphs.values()), b"")
        return stored(folder, "blobs", sha256(graph) if damage == "graph" else recipe.manifest.id)

    async def check() -> None:
        async with coordinator() as operator:
            folder: Path = operator.app.state.coordinator.settings.folder
            token = await operator.population()
            lost = await operator.experiment(recipe=broken, rounds=1, cohort=1, evaluate_every=0)
            kept = await operator.experiment(recipe=whole, rounds=1, cohort=1)
        path = file_of(broken, folder)
        before = path.read_bytes()
        path.unlink() if damage == "missing" else flip(path)
        with capture_logs() as logs:
            async with coordinator() as operator:
                (said,) = [entry for entry in logs if entry["event"] == "experiment stands still"]
                assert (said["experiment"], str(path) in said["why"]) == (lost, True)
                view = await operator.state(lost)
                assert (view["state"], path.name in view["reason"]) == ("running", True)
                (device,) = await fleet(operator, token, 1)
                task = await device.task()
                assert task.experiment == kept
                await device.upload(task, update(task))
                assert (await operator.finished(kept))["reason"] == "completed"
                assert (await device.check_in())["task"] is None
                path.write_bytes(before)
                await operator.population("another")  # any commit makes the coordinator look again
                assert (await device.task()).experiment == lost
                assert (await operator.state(lost))["reason"] is None

    asyncio.run(check())


def test_a_folder_that_is_deleted_under_the_coordinator_accepts_nothing_more(
    coordinator: Opener, tmp_path: Path
) -> None:
    async def check() -> None:
        async with coordinator() as operator:
            token = await operator.population()
            await operator.experiment(rounds=1, cohort=2, min_updates=1)
            (device,) = await fleet(operator, token, 1)
            task = await device.task()
            folder = operator.app.state.coordinator.settings.folder
            moved = folder.rename(tmp_path / "moved")
            refused = await device.upload(task, update(task, 1.0))
            assert (refused.status_code, refused.json()["code"]) == (507, "storage_lost")
            assert str(folder) in refused.json()["detail"] and "restore" in refused.json()["hint"].lower()
            plan = await operator.call("GET", f"/v1/blobs/{task.plan.id}")
            assert (plan.status_code, plan.json()["code"]) == (507, "storage_lost")
            moved.rename(folder)
            assert (await device.upload(task, update(task, 1.0))).json()["state"] == "accepted"

    asyncio.run(check())


@pytest.mark.parametrize("replaced", [False, True])
def test_a_connection_that_is_opened_after_the_folder_is_gone_opens_nothing_else(
    coordinator: Opener, tmp_path: Path, replaced: bool
) -> None:
    """Many requests at once open connections at any time. None makes an empty database in the place of the lost one."""

    async def check() -> None:
        async with coordinator() as operator:
            await operator.population()
            here: Coordinator = operator.app.state.coordinator
            folder = here.settings.folder
            moved = folder.rename(tmp_path / "moved")
            if replaced:
                folder.mkdir()
            await here.storage.database.close()  # whoever comes next opens a connection
            token = {"kind": "enrol", "population": "people"}
            for refused in (
                await operator.call("GET", "/v1/populations/people"),
                await operator.call("GET", "/v1/devices"),
                await operator.call("POST", "/v1/tokens", json=token, headers=once()),
            ):
                assert (refused.status_code, refused.json()["code"]) == (507, "storage_lost"), refused.text
                assert str(folder) in refused.json()["detail"] and "restore" in refused.json()["hint"].lower()
            if replaced:
                assert list(folder.iterdir()) == []
                folder.rmdir()
            moved.rename(folder)
            assert (await operator.ok("GET", "/v1/populations/people"))["name"] == "people"

    asyncio.run(check())
