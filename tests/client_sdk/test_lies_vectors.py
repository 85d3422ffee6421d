"""protocol/vectors/lies.json: the tasks that every SDK refuses, by code, and the honest ones beside them."""

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from make_lies import FILE, text
from test_spending import MANIFEST

from coterie.aggregation.plan.manifest import Training
from coterie.aggregation.plan.reading import read
from coterie.client_sdk.device.policy import DevicePolicy
from coterie.client_sdk.device.policy_file import read_policy
from coterie.client_sdk.device.spending import PrivacyLedger, Release
from coterie.client_sdk.device.work import seed_of
from coterie.errors import PolicyRefused
from coterie.privacy.dp.events import event_from_json
from coterie.protocol.claims import PrivacyTerms
from coterie.protocol.device import Task

VECTORS = json.loads(FILE.read_text())


def test_the_file_is_current() -> None:
    assert FILE.read_text() == text()


def as_toml(policy: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in policy.items()) or "threads = 1\n"


def verdict(case: Mapping[str, Any], folder: Path) -> str | None:
    """The code with which this SDK refuses a case, None where it takes the task."""
    (folder / "policy.toml").write_text(as_toml(case["policy"]))
    policy = read_policy(folder / "policy.toml")
    ledger = PrivacyLedger(folder / "ledger.db")
    for number, row in enumerate(case["record"]):
        events = tuple(event_from_json(event) for event in row["events"])
        endless = PrivacyTerms(unit="user", epsilon=1e6, delta=0.5, mechanism="gaussian", trusts="device")
        written = Release(
            key=f"before/{number}",
            task="task",
            coordinator=row["coordinator"],
            population="p",
            experiment=row["experiment"],
            promise=endless,
            events=events,
            once=row["once"],
        )
        ledger.charge(written, DevicePolicy())
    task = Task.model_validate(case["task"])
    steps = case.get("steps")
    training = MANIFEST.training if steps is None else read(Training, steps)
    manifest = replace(MANIFEST, training=replace(training, private=None) if steps is None else training)
    try:
        policy.check_task(task, frozenset((VECTORS["signer"],)))
        release = Release.of(task, manifest, key="now", coordinator=VECTORS["coordinator"], population="p")
        if release is not None:
            ledger.check(release, policy)
    except PolicyRefused as error:
        return error.reason
    if ledger.path.exists():
        with closing(sqlite3.connect(ledger.path)) as database:
            assert database.execute("SELECT count(*) FROM releases").fetchone() == (len(case["record"]),)
    return None


@pytest.mark.parametrize("name", [case["name"] for case in VECTORS["taken"]])
def test_an_honest_task_is_taken(name: str, tmp_path: Path) -> None:
    (case,) = (case for case in VECTORS["taken"] if case["name"] == name)
    assert verdict(case, tmp_path) is None


@pytest.mark.parametrize("name", [case["name"] for case in VECTORS["refused"]])
def test_a_lie_is_refused_by_its_code(name: str, tmp_path: Path) -> None:
    (case,) = (case for case in VECTORS["refused"] if case["name"] == name)
    assert verdict(case, tmp_path) == case["code"]


@pytest.mark.parametrize("name", [case["name"] for case in VECTORS["seeds"]])
def test_a_seed_is_believed_only_where_no_sum_hides_what_it_does(name: str) -> None:
    (case,) = (case for case in VECTORS["seeds"] if case["name"] == name)
    told = Task.model_validate(case["task"])
    drawn = {seed_of(told) for _ in range(3)}
    assert (told.seed in drawn, len(drawn)) == ((False, 3) if case["own"] else (True, 1))
