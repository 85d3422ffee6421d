"""What a device remembers, over reopenings of its folder."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coterie.client_sdk.device.attempts import AttemptRecord, MessageKind
from coterie.client_sdk.device.history import StoredMembership
from coterie.client_sdk.device.store import STATES, DeviceStore
from coterie.errors import ConfigurationError, InternalError, PolicyRefused
from coterie.protocol.canonical import sha256_hex
from tests.patience import patience

UPDATE = b"the update's bytes"
VECTOR = b"the vector's numbers in clear"
SECRET = "5ec7e75ec7e75ec7e75ec7e75ec7e75ec7e75ec7e75ec7e75ec7e75ec7e75ec7e" * 200
RECORD = AttemptRecord(
    attempt="a1",
    mode="semi_honest",
    message="keys",
    body='{"mask_key": "public"}',
    state={"seed": SECRET},
    vector=sha256_hex(VECTOR),
)


def lease(store: DeviceStore, task: str, round: int = 1) -> None:
    store.lease(task=task, experiment="exp", round=round, kind="train", message="{}")


def finish(store: DeviceStore, task: str, value: float) -> None:
    store.write_update(task, UPDATE, {"v": np.full(2, value, np.float32)})
    store.stored(task, sha256=sha256_hex(UPDATE), size=len(UPDATE), weight=3, steps=4)


def counted(store: DeviceStore, task: str, value: float, round: int = 1, outcome: str = "counted") -> None:
    lease(store, task, round)
    finish(store, task, value)
    store.acknowledged(task, kind="train")
    store.settle({task: outcome})


def value(store: DeviceStore) -> float | None:
    state = store.client_state("exp")
    return float(state["v"][0]) if state else None


def reopened(store: DeviceStore) -> DeviceStore:
    store.close()
    return DeviceStore(store.folder)


def test_client_state_becomes_committed_only_when_the_update_counted_and_outlives_a_restart(tmp_path: Path) -> None:
    store = DeviceStore(tmp_path)
    assert value(store) is None
    lease(store, "t1")
    finish(store, "t1", 1)
    store.acknowledged("t1", kind="train")
    store = reopened(store)
    assert value(store) is None and store.pending() == ["t1"]
    assert store.settle({"t1": "counted"}) == {"t1": "counted"}
    store = reopened(store)
    assert value(store) == 1 and store.pending() == []
    counted(store, "t2", 2, round=2, outcome="rolled_back")
    store = reopened(store)
    assert value(store) == 1
    counted(store, "t3", 3, round=3)
    assert value(reopened(store)) == 3


def test_settling_again_or_settling_the_unknown_changes_nothing(tmp_path: Path) -> None:
    store = DeviceStore(tmp_path)
    counted(store, "t1", 1)
    assert store.settle({"t1": "rolled_back", "never-heard-of": "counted"}) == {}
    assert value(store) == 1


def test_of_two_counted_tasks_the_later_round_stays_whatever_the_order(tmp_path: Path) -> None:
    store = DeviceStore(tmp_path)
    for task, round in (("early", 1), ("late", 2)):
        lease(store, task, round)
        finish(store, task, round)
        store.acknowledged(task, kind="train")
    store.settle({"late": "counted"})
    store.settle({"early": "counted"})
    assert value(store) == 2


def test_a_task_in_flight_is_found_again_with_the_very_bytes_that_were_stored(tmp_path: Path) -> None:
    store = DeviceStore(tmp_path)
    lease(store, "t1")
    found = reopened(store).in_flight()
    assert found is not None and (found.task, found.state) == ("t1", "leased")
    store = DeviceStore(tmp_path / "other")
    lease(store, "t1")
    finish(store, "t1", 1)
    store = reopened(store)
    found = store.in_flight()
    assert found is not None and (found.state, found.sha256) == ("stored", sha256_hex(UPDATE))
    assert store.update_path("t1").read_bytes() == UPDATE


def test_files_without_a_row_are_swept_and_files_with_one_are_kept(tmp_path: Path) -> None:
    store = DeviceStore(tmp_path)
    counted(store, "kept", 1)
    lease(store, "killed")
    store.write_update("killed", UPDATE, {"v": np.zeros(2, np.float32)})
    store = reopened(store)
    assert not store.update_path("killed").exists() and not store.state_path("killed").exists()
    assert store.state_path("kept").exists()


@pytest.mark.parametrize("state", STATES)
def test_only_the_moves_of_the_table_are_possible(tmp_path: Path, state: str) -> None:
    moves: dict[str, Callable[[DeviceStore], None]] = {
        "stored": lambda store: finish(store, "t", 1),
        "attempt": lambda store: store.begin_attempt("t", RECORD, weight=3, steps=1),
        "pending": lambda store: store.acknowledged("t", kind="train"),
        "reported": lambda store: store.acknowledged("t", kind="evaluate"),
        "failed": lambda store: store.fail("t", "why"),
    }
    ways: dict[str, list[str]] = {
        "leased": [],
        "stored": ["stored"],
        "attempt": ["attempt"],
        "pending": ["stored", "pending"],
        "reported": ["stored", "reported"],
        "failed": ["failed"],
    }
    for target, move in moves.items():
        store = DeviceStore(tmp_path / target)
        lease(store, "t")
        for step in ways.get(state, ["stored", "pending"]):
            moves[step](store)
        if state in ("counted", "rolled_back"):
            store.settle({"t": state})
        if target in STATES[state]:
            move(store)
            assert store.state_of("t") == target
        else:
            with pytest.raises(InternalError):
                move(store)
            assert store.state_of("t") == state
        store.close()


def begun(folder: Path) -> DeviceStore:
    store = DeviceStore(folder)
    lease(store, "t")
    store.write_vector("t", VECTOR, {"v": np.zeros(2, np.float32)})
    store.begin_attempt("t", RECORD, weight=3, steps=1)
    return store


def test_an_attempt_and_its_vector_survive_a_restart(tmp_path: Path) -> None:
    store = reopened(begun(tmp_path))
    found = store.in_flight()
    assert found is not None and found.state == "attempt"
    assert store.attempts.load("t") == RECORD and store.vector_path("t").read_bytes() == VECTOR
    assert SECRET not in repr(RECORD)
    store.write_masked("t", UPDATE)
    store.masked("t", replace(RECORD, message="masked", vector=""), sha256=sha256_hex(UPDATE), size=len(UPDATE))
    store = reopened(store)
    found = store.in_flight()
    assert found is not None and (found.sha256, found.size) == (sha256_hex(UPDATE), len(UPDATE))
    assert store.update_path("t").read_bytes() == UPDATE and not store.vector_path("t").exists()


@pytest.mark.parametrize("column", ["state", "message", "body", "vector", "attempt", "digest"])
def test_an_attempt_that_is_not_what_was_written_is_lost(tmp_path: Path, column: str) -> None:
    store = begun(tmp_path)
    store.close()
    with closing(sqlite3.connect(tmp_path / "device.db")) as database, database:
        database.execute(f"UPDATE attempts SET {column} = ?", ("{}" if column == "state" else "other",))
    store = DeviceStore(tmp_path)
    with pytest.raises(PolicyRefused, match="is damaged in the store") as caught:
        store.attempts.load("t")
    assert caught.value.reason == "attempt_lost"
    with pytest.raises(PolicyRefused, match="is not in the store"):
        store.attempts.load("t2")


@pytest.mark.parametrize("how", ["acknowledged", "failed"])
def test_the_secrets_of_an_attempt_that_is_over_are_nowhere_in_the_folder(tmp_path: Path, how: str) -> None:
    store = begun(tmp_path)
    later: tuple[MessageKind, ...] = ("shares", "masked", "reveal")
    for message in later:
        store.attempts.advance("t", replace(RECORD, message=message, state={"seed": SECRET, "after": message}))
    needle = SECRET[:64].encode()
    assert any(needle in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    if how == "failed":
        store.fail("t", "attempt_over")
    else:
        store.acknowledged("t", kind="train", outcome="summed")
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert needle not in path.read_bytes() and VECTOR not in path.read_bytes(), path
    entry = store.history()[0]
    assert (entry.sent, entry.mode) == (("keys", *later), "semi_honest")
    assert entry.outcome == ("given_up" if how == "failed" else "summed")
    with pytest.raises(PolicyRefused):
        store.attempts.load("t")


def test_the_key_and_the_membership_are_the_same_after_a_restart_and_the_key_is_private(tmp_path: Path) -> None:
    store = DeviceStore(tmp_path)
    membership = StoredMembership(
        url="http://c", population="p", device_id="d", coordinator_key="k", signers=("a", "b"), schema="{}"
    )
    assert store.membership() is None
    store.join(membership)
    public = store.key.public
    store = reopened(store)
    assert store.key.public == public and store.membership() == membership
    assert (tmp_path / "device.key").stat().st_mode & 0o077 == 0


def test_a_second_client_in_the_folder_is_refused_with_a_hint(tmp_path: Path) -> None:
    store = DeviceStore(tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        DeviceStore(tmp_path)
    assert caught.value.reason == "store_in_use" and "folder of its own" in str(caught.value)
    imports = "from pathlib import Path; from coterie.client_sdk.device.store import DeviceStore"
    code = f"{imports}; DeviceStore(Path({str(tmp_path)!r}))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=patience(60))
    assert other.returncode != 0 and "Another client uses the folder" in other.stderr
    store.close()
    DeviceStore(tmp_path).close()


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "device.db").write_bytes(b"certainly no SQLite database, but long enough to be read as one" * 20)
    with pytest.raises(ConfigurationError, match="device.db is not a device's database"):
        DeviceStore(tmp_path)


def test_history_tells_every_task_with_its_outcome(tmp_path: Path) -> None:
    store = DeviceStore(tmp_path)
    counted(store, "t1", 1)
    lease(store, "t2", 2)
    store.fail("t2", "plan_signer: not allowed")
    entries = store.history()
    assert [(e.task, e.state, e.weight, e.bytes_up) for e in entries] == [
        ("t1", "counted", 3, len(UPDATE)),
        ("t2", "failed", 0, 0),
    ]
    assert entries[1].detail == "plan_signer: not allowed"


def test_nothing_of_a_device_is_for_other_users_even_in_a_folder_that_was_there(tmp_path: Path) -> None:
    folder = tmp_path / "device"
    folder.mkdir(mode=0o755)
    (folder / "device.db").touch(mode=0o644)
    before = os.umask(0o022)
    try:
        DeviceStore(folder).close()
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    exposed = [path for path in folder.rglob("*") if path.stat().st_mode & 0o077]
    assert exposed == []
