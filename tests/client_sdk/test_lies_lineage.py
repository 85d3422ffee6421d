"""A coordinator that lies about the history of versions, against real devices: a crafted version in one round, a fork,
a folder that was set back. And what must go on all the same: kills, newcomers, buffers, many versions.
"""

import asyncio
import json
import shutil
import signal
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from liar import Lying, devices, lying_coordinator, refusals
from sdk_kit import counting, experiment

from coterie import errors
from coterie.aggregation.horizontal import FedBuff, FedDyn, Moon, Scaffold
from coterie.aggregation.horizontal.algorithm import Algorithm
from coterie.aggregation.promises.promises import lines
from coterie.client_sdk.device.lineage import ChainPlace
from coterie.client_sdk.device.store import DeviceStore
from coterie.privacy.secagg.roster import model_digest
from coterie.protocol.device import Task
from coterie.protocol.lineage import GENESIS, Lineage, LineageLink, head
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.secure_aggregation import SecureAggregation
from tests.patience import patience

CLIENTS = 5
CONSISTENT = SecureAggregation(mode="consistent", dropout=0.2)
HONEST = SecureAggregation(mode="semi_honest", dropout=0.2)
STRICT = 'require_secure_aggregation = true\nmodes = ["consistent"]\n'


def in_secret(secure: SecureAggregation = CONSISTENT, **changes: Any) -> Any:
    rounds = RoundPolicy(rounds=2, cohort=CLIENTS, evaluate_every=0, deadline_s=600.0)
    return experiment("own", rounds=rounds, secure_aggregation=secure, **changes)


def alone(rounds: int, **changes: Any) -> Any:
    return experiment("own", rounds=RoundPolicy(rounds=rounds, cohort=1, evaluate_every=0), **changes)


def books(lying: Lying, statement: str, *values: object) -> list[Any]:
    """Read or change the coordinator's own database behind its back."""
    with closing(sqlite3.connect(lying.folder / "coterie.db", timeout=patience(20))) as database, database:
        return database.execute(statement, values).fetchall()


def await_round(lying: Lying, run: str, number: int) -> None:
    """Wait until a round has begun: an update is acknowledged before its round is made into a version."""
    until = time.monotonic() + patience(30)
    while not books(lying, "SELECT state FROM rounds WHERE experiment = ? AND number = ?", run, number):
        assert time.monotonic() < until, f"round {number} has not begun"
        time.sleep(0.02)


def crafted(lying: Lying, method: Algorithm) -> str:
    """A version that no round of the experiment made: another one's first, which the coordinator can serve."""
    other, _ = lying.submit(experiment("other", seed=99, algorithm=method))
    ((version,),) = books(lying, "SELECT model FROM experiments WHERE id = ?", other)
    return str(version)


def begin_with(lying: Lying, run: str, version: str) -> None:
    """Let the open round of an experiment begin with another version than the last one committed."""
    ((state,),) = books(lying, "SELECT state FROM rounds WHERE experiment = ?", run)
    changed = json.dumps({**json.loads(state), "base": version})
    books(lying, "UPDATE rounds SET state = ?, base = ? WHERE experiment = ?", changed, version, run)


def last_place(folder: Path, run: str) -> ChainPlace | None:
    """What a device that has ended remembers."""
    store = DeviceStore(folder)
    try:
        return store.lineages.recall(run)
    finally:
        store.close()


def stop(lying: Lying, run: str) -> None:
    """What an operator does with an experiment."""

    async def inside() -> None:
        control = lying.control()
        await control.stop(run)
        await control.close()

    asyncio.run(inside())


def uploads(events: list[dict[str, Any]]) -> int:
    return sum(event["event"] == "uploaded" for event in events)


def test_state_that_a_crafted_version_left_enters_no_later_round(tmp_path: Path) -> None:
    with lying_coordinator(tmp_path) as lying:
        method = Scaffold(clients=2)
        run, token = lying.submit(alone(3, algorithm=method))
        begin_with(lying, run, crafted(lying, method))
        with devices(lying, token, tmp_path, wanted=2) as (device,):
            events = device.events()
    # The round on the crafted version counted; the honest-looking one after it does not follow from what was seen.
    assert [event["outcome"] for event in events if event["event"] == "settled"] == ["counted"]
    assert (refusals(events), uploads(events)) == (["lineage_broken"], 1)


def test_a_consistent_round_of_a_method_with_state_is_refused_by_every_device(tmp_path: Path) -> None:
    method = Scaffold(clients=CLIENTS)
    with lying_coordinator(tmp_path) as lying:
        run, token = lying.submit(in_secret(HONEST, algorithm=method))
        # Nobody but the coordinator itself keeps it from what its own check of experiments refuses: a round on a
        # crafted version, of all devices but the one whose update shall stand alone in the next.
        ((request,),) = books(lying, "SELECT request FROM experiments WHERE id = ?", run)
        wanted = json.loads(request)
        wanted["secure"]["mode"] = "consistent"
        books(lying, "UPDATE experiments SET request = ? WHERE id = ?", json.dumps(wanted), run)
        begin_with(lying, run, crafted(lying, method))
        with devices(lying, token, tmp_path, count=CLIENTS, policy=STRICT) as members:
            heard = [device.events(30) for device in members]
        assert [(refusals(events), uploads(events)) for events in heard] == [(["client_state_refused"], 0)] * CLIENTS
        assert not lying.bodies("/secure/")


@pytest.mark.parametrize("method", [Scaffold(clients=CLIENTS), FedDyn(clients=CLIENTS), Moon()], ids=lambda m: m.name)
def test_methods_with_state_are_for_coordinators_that_are_trusted_to_follow_the_protocol(method: Algorithm) -> None:
    with pytest.raises(errors.ExperimentError, match="keeps state on devices.*FedAvg.*semi_honest"):
        in_secret(CONSISTENT, algorithm=method)
    honest = in_secret(HONEST, algorithm=method)
    assert any("rests on a coordinator that follows the protocol" in line for line in lines(honest))
    assert not any("keeps state" in line for line in lines(in_secret(HONEST)))


def test_the_coordinator_refuses_them_too_whoever_wrote_the_request(tmp_path: Path) -> None:
    wanted = in_secret(HONEST, algorithm=Scaffold(clients=CLIENTS))
    consistent = wanted.secure.model_dump() | {"mode": "consistent"}
    with lying_coordinator(tmp_path) as lying, pytest.raises(errors.CoterieError) as refused:
        lying.submit(Disguised(wanted, consistent))
    assert refused.value.reason == "experiment_combination"


class Disguised:
    """An experiment whose request says another secure aggregation than its own checks saw."""

    def __init__(self, wanted: Any, secure: Mapping[str, Any]) -> None:
        self._wanted, self._secure = wanted, SecureAggregation(**secure)

    def __getattr__(self, name: str) -> Any:
        return self._secure if name == "secure" else getattr(self._wanted, name)


def _believe(*_: object, **__: object) -> None:
    """What a coordinator does that does not check."""


def test_a_device_told_another_history_than_the_others_is_in_no_sum_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A coordinator that lies does not check what it knows to be false.
    for module in ("coterie.privacy.secagg.server_rules", "coterie.server.device.trained"):
        monkeypatch.setattr(f"{module}.verify_keys", _believe)
    told: list[str] = []

    def lie(task: Task) -> Task:
        told.append(task.device)
        forked = Lineage(round=1, before="ab" * 32)
        return task.model_copy(update={"lineage": forked}) if task.device == told[0] else task

    with lying_coordinator(tmp_path, task=lie) as lying:
        _, token = lying.submit(in_secret())
        with devices(lying, token, tmp_path, count=CLIENTS, policy=STRICT) as members:
            heard = [device.events(40) for device in members]
        assert not lying.bodies("/secure/shares") and not lying.bodies("/secure/reveal")
    assert [refusals(events) for events in heard].count(["secagg_signature"]) == CLIENTS


@pytest.mark.parametrize("change", [{"round": 1}, {"before": "cd" * 32}, None])
def test_what_the_members_of_an_attempt_prove_to_each_other_has_the_history_in_it(change: Any) -> None:
    told = Lineage(round=2, before="ab" * 32)
    task = Task.model_construct(kind="train", lineage=told)
    other = None if change is None else told.model_copy(update=change)
    assert model_digest(task) != model_digest(Task.model_construct(kind="train", lineage=other))
    assert model_digest(task) == model_digest(Task.model_construct(kind="train", lineage=told))


@pytest.mark.parametrize(
    "told",
    [Lineage(round=1, before="ab" * 32), Lineage(round=0, before="ab" * 32), Lineage(round=7, before=GENESIS), None],
    ids=["another past", "a past before the first version", "rounds that never were", "none"],
)
def test_a_device_that_is_told_another_history_than_before_refuses(tmp_path: Path, told: Lineage | None) -> None:
    def lie(task: Task) -> Task:
        return task if task.round == 1 else task.model_copy(update={"lineage": told})

    with lying_coordinator(tmp_path, task=lie) as lying:
        run, token = lying.submit(alone(3))
        with devices(lying, token, tmp_path, wanted=2) as (device,):
            events = device.events()
            assert (refusals(events), uploads(events)) == (["lineage_broken"], 1)
            assert "downloaded" not in str(events[-1])
        place = last_place(device.folder, run)
        assert place is not None and place.round == 0


def test_a_task_without_a_history_is_refused_under_secure_aggregation_by_a_newcomer_too(tmp_path: Path) -> None:
    with lying_coordinator(tmp_path, task=lambda task: task.model_copy(update={"lineage": None})) as lying:
        _, token = lying.submit(in_secret())
        with devices(lying, token, tmp_path) as (device,):
            assert refusals(device.events(20)) == ["lineage_broken"]
        assert not lying.bodies("/secure/")


def test_a_coordinator_set_back_to_a_backup_is_refused_by_who_saw_later_versions(tmp_path: Path) -> None:
    server, backup = tmp_path / "server", tmp_path / "backup"
    with lying_coordinator(tmp_path) as lying:
        run, token = lying.submit(alone(20))
        with devices(lying, token, tmp_path, names=("old",)) as (device,):
            assert uploads(device.events()) == 1
    shutil.copytree(server, backup)
    with (
        lying_coordinator(tmp_path) as lying,
        devices(lying, token, tmp_path, names=("old",), wanted=2) as (device,),
    ):
        assert uploads(device.events()) == 2
    place = last_place(device.folder, run)
    assert place is not None and place.round >= 1
    shutil.rmtree(server)
    shutil.copytree(backup, server)
    with lying_coordinator(tmp_path) as lying:
        with devices(lying, token, tmp_path, names=("old",)) as (device,):
            assert refusals(device.events()) == ["lineage_broken"]
        # Who saw nothing later goes on with the restored history, ...
        with devices(lying, token, tmp_path, names=("new",), wanted=3) as (device,):
            assert uploads(device.events()) == 3
        # ... which the other one refuses when it is further on, too. A new experiment is open to both.
        with devices(lying, token, tmp_path, names=("old",)) as (device,):
            assert refusals(device.events()) == ["lineage_broken"]
        stop(lying, run)
        lying.submit(alone(1))
        with devices(lying, token, tmp_path, names=("old",)) as (device,):
            assert uploads(device.events()) == 1


def test_state_is_left_out_of_a_task_on_a_version_from_before_it_was_made(tmp_path: Path) -> None:
    first: list[Task] = []

    def lie(task: Task) -> Task:
        first.append(task)
        return (
            task if len(first) < 3 else task.model_copy(update={"model": first[0].model, "lineage": first[0].lineage})
        )

    with lying_coordinator(tmp_path, task=lie) as lying:
        run, token = lying.submit(alone(9, algorithm=counting()))
        with devices(lying, token, tmp_path, wanted=3) as (device,):
            events = device.events()
        place = last_place(device.folder, run)
    (dropped,) = [event for event in events if event["event"] == "state_dropped"]
    assert (dropped["experiment"], dropped["task"], dropped["made_in"]) == (run, first[2].id, 2)
    assert [event["outcome"] for event in events if event["event"] == "settled"] == ["counted", "counted"]
    # Its history is true, so the device works on it; but it does not forget what came later.
    assert [event["task"] for event in events if event["event"] == "trained"] == [task.id for task in first[:3]]
    assert place is not None and place.round == 1


def test_newcomers_and_devices_that_missed_rounds_take_part(tmp_path: Path) -> None:
    with lying_coordinator(tmp_path) as lying:
        run, token = lying.submit(alone(20, algorithm=counting()))
        for name in ("first", "second", "first", "second", "third", "first"):
            with devices(lying, token, tmp_path, names=(name,), wanted=2) as (device,):
                events = device.events()
            assert (refusals(events), uploads(events)) == ([], 2)
            assert not [event for event in events if event["event"] == "state_dropped"]
            place = last_place(device.folder, run)
        paths = [path for _, path, _ in lying.liar.heard if path.endswith("/lineage")]
    assert len(paths) >= 3
    assert place is not None and place.round >= 10


def test_devices_of_buffered_rounds_see_one_chain_whatever_version_they_trained_on(tmp_path: Path) -> None:
    rounds = RoundPolicy(rounds=200, cohort=1, mode="buffered", concurrency=3, staleness_cap=100, evaluate_every=0)
    with lying_coordinator(tmp_path) as lying:
        run, token = lying.submit(experiment("own", algorithm=FedBuff(), rounds=rounds))
        with devices(lying, token, tmp_path, count=3, wanted=3) as members:
            heard = [device.events() for device in members]
        assert [(refusals(events), uploads(events)) for events in heard] == [([], 3)] * 3
        places = [last_place(device.folder, run) for device in members]
    assert all(place is not None and place.round >= 1 for place in places)


def test_a_device_killed_when_it_has_remembered_goes_on(tmp_path: Path) -> None:
    with lying_coordinator(tmp_path) as lying:
        run, token = lying.submit(alone(3, algorithm=counting()))
        with devices(lying, token, tmp_path, wanted=3, fault="remembered:2") as (device,):
            events = device.events()
            assert device.process.exitcode == -signal.SIGKILL and uploads(events) == 1
        with devices(lying, token, tmp_path, wanted=2) as (device,):
            events = device.events()
    assert (refusals(events), uploads(events)) == ([], 2)
    place = last_place(device.folder, run)
    assert place is not None and place.round == 2


def test_three_hundred_versions_later_a_device_reads_all_links_and_goes_on(tmp_path: Path) -> None:
    with lying_coordinator(tmp_path) as lying:
        run, token = lying.submit(alone(20))
        with devices(lying, token, tmp_path) as (device,):
            assert uploads(device.events()) == 1
        await_round(lying, run, 2)
        ((plan, version, size),) = books(
            lying,
            "SELECT plan, m.sha256, m.size FROM experiments JOIN models m ON m.experiment = id"
            " WHERE id = ? AND m.round = 0",
            run,
        )
        before = head(GENESIS, LineageLink(round=0, version=version), experiment=run, plan=plan)
        ((second,),) = books(lying, "SELECT sha256 FROM models WHERE experiment = ? AND round = 1", run)
        before = head(before, LineageLink(round=1, version=second), experiment=run, plan=plan)
        for number in range(2, 302):
            values = (run, number, version, size, "{}", 0, before)
            into = "INSERT INTO models (experiment, round, sha256, size, metrics, created_at, before)"
            books(lying, f"{into} VALUES (?, ?, ?, ?, ?, ?, ?)", *values)
            before = head(before, LineageLink(round=number, version=version), experiment=run, plan=plan)
        ((state,),) = books(lying, "SELECT state FROM rounds WHERE experiment = ? AND number = 2", run)
        changed = json.dumps({**json.loads(state), "base": version})
        books(lying, "UPDATE rounds SET state = ? WHERE experiment = ? AND number = 2", changed, run)
        books(lying, "UPDATE tasks SET state = 'expired' WHERE state = 'leased'")
        with devices(lying, token, tmp_path) as (device,):
            events = device.events()
        asked = [path for _, path, _ in lying.liar.heard if path.endswith("/lineage")]
    assert (refusals(events), uploads(events), len(asked)) == ([], 1, 2)
    place = last_place(device.folder, run)
    assert place == ChainPlace(plan, 301, before)
