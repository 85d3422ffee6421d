"""What the folder of a role keeps, from one program and one session to the next."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import split_role
from sdk_kit import Coordinator
from split_sessions import Pair, both, paired

from coterie.aggregation.vertical.compile import compile_split
from coterie.client_sdk.party.learner import Learner
from coterie.client_sdk.party.learner_store import LearnerStore, RoleProgress
from coterie.client_sdk.party.party import Session
from coterie.client_sdk.party.plans import receive_plan, send_plan
from coterie.errors import CoterieError, InputError, RemoteError, StorageError
from tests.patience import patience


def break_off(monkeypatch: pytest.MonkeyPatch, method: str, when: Callable[[RoleProgress], bool]) -> None:
    """Let the owner's next keeping of such progress fail, as a kill would."""
    real: Any = getattr(LearnerStore, method)

    def broken(self: LearnerStore, *values: Any) -> None:
        (progress,) = (value for value in values if isinstance(value, RoleProgress))
        if progress.role == "owner" and when(progress):
            monkeypatch.setattr(LearnerStore, method, real)
            raise InputError("killed", code="killed")
        real(self, *values)

    monkeypatch.setattr(LearnerStore, method, broken)


def test_calls_that_changed_no_weights_lock_nobody_out_of_another_session(
    coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, feature = split_role.rows("owner"), split_role.rows("feature")
    unlabelled, plan = {"blood": owner["blood"]}, compile_split(split_role.network())

    def reasons(found: tuple[Any, Any]) -> list[str]:
        return [getattr(each, "reason", "done") for each in found]

    with paired(coordinator, tmp_path / "one") as one:
        # Nobody has joined this training.
        with Pair(one.owner, one.feature, tmp_path).learners(plan, patience_s=0.1) as (here, there):
            with pytest.raises(CoterieError) as silent:
                there.train({"scan": feature["scan"][:8]})
            assert silent.value.reason == "partner_silent"
    with paired(coordinator, tmp_path / "two") as two, Pair(two.owner, two.feature, tmp_path).learners(plan) as both_of:
        here, there = both_of
        assert reasons(both(lambda: here.train(owner), lambda: there.train(feature))) == ["done"] * 2
        # One role has done this prediction, the other has not.
        break_off(monkeypatch, "finish", lambda progress: progress.done == 2)
        assert reasons(both(lambda: here.predict(unlabelled), lambda: there.predict(feature))) == ["killed", "done"]
    with paired(coordinator, tmp_path / "three") as three:
        kept = Pair(three.owner, three.feature, tmp_path)
        with kept.learners(plan) as (here, there):
            predicted, none = both(lambda: here.predict(unlabelled), lambda: there.predict(feature))
            assert none is None and predicted.shape == (split_role.ROWS, 2)
        with kept.learners(plan, patience_s=1) as (here, there):
            np.testing.assert_array_equal(here.predict(unlabelled), predicted)
            there.skip_done()
            # This training has changed weights, so it goes on in its own session alone.
            last = 2 * split_role.STEPS
            break_off(monkeypatch, "keep", lambda progress: progress.call is not None and progress.call.step == last)
            assert reasons(both(lambda: here.train(owner), lambda: there.train(feature))) == [
                "killed",
                "partner_silent",
            ]
    with paired(coordinator, tmp_path / "four") as four, pytest.raises(CoterieError) as middle:
        with Pair(four.owner, four.feature, tmp_path).learners(plan):
            pass
    assert middle.value.reason == "plan_changed" and "in the middle of a training" in middle.value.message


def test_a_session_that_a_folder_has_left_is_refused(coordinator: Coordinator, tmp_path: Path) -> None:
    """Its calls would delete the results of the session that the folder is in now."""
    plan, rows = compile_split(split_role.network()), split_role.rows("feature")
    with paired(coordinator, tmp_path / "one") as one, paired(coordinator, tmp_path / "two") as two:
        for session in (one, two):
            with Pair(session.owner, session.feature, tmp_path).learners(plan, patience_s=0.1) as (_, there):
                with pytest.raises(CoterieError) as silent:
                    there.train(rows)
                assert silent.value.reason == "partner_silent"
        with pytest.raises(CoterieError) as left, Pair(one.owner, one.feature, tmp_path).learners(plan):
            pass
        assert left.value.reason == "session_left" and two.feature.membership.session in left.value.message


def test_parts_that_were_not_trained_together_make_no_call(coordinator: Coordinator, tmp_path: Path) -> None:
    owner, feature, plan = split_role.rows("owner"), split_role.rows("feature"), compile_split(split_role.network())
    with paired(coordinator, tmp_path / "one") as one, Pair(one.owner, one.feature, tmp_path).learners(plan) as roles:
        both(lambda: roles[0].train(owner), lambda: roles[1].train(feature))
    (tmp_path / "feature-learning" / "learner.db").unlink()
    with paired(coordinator, tmp_path / "two") as two, Pair(two.owner, two.feature, tmp_path).learners(plan) as roles:
        found = both(lambda: roles[0].train(owner), lambda: roles[1].train(feature))
    assert [error.reason for error in found] == ["session_step"] * 2
    assert "after 0 trainings" in found[0].message and "after 1 trainings" in found[0].message


def test_a_role_that_has_agreed_and_was_killed_makes_that_call(
    coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, feature, plan = split_role.rows("owner"), split_role.rows("feature"), compile_split(split_role.network())
    with paired(coordinator, tmp_path) as pair:
        with pair.learners(plan, patience_s=1) as (here, there):
            break_off(monkeypatch, "keep", lambda progress: progress.call is not None and progress.call.agreed)
            both(lambda: here.train(owner), lambda: there.train(feature))
        with pair.learners(plan) as (here, there):
            with pytest.raises(CoterieError) as other:
                here.train({name: values[:20] for name, values in owner.items()})
            assert other.value.reason == "session_step" and "now it is train on 20 rows" in other.value.message
            trained, _ = both(lambda: here.train(owner), lambda: there.train(feature))
            assert [sums.examples for sums in trained] == [split_role.ROWS] * split_role.EPOCHS


def test_a_message_that_expired_leaves_a_way_forward(
    coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def expired(*_: Any, **__: Any) -> Any:
        raise RemoteError("It expired.", hint="Acknowledge it.", code="message_expired")

    with paired(coordinator, tmp_path) as pair, pair.learners(compile_split(split_role.network())) as (here, _):
        monkeypatch.setattr(Session, "receive", expired)
        with pytest.raises(CoterieError) as late:
            here.train(split_role.rows("owner"))
    assert late.value.reason == "message_expired" and "in another, with the same folders" in str(late.value.hint)


def test_a_folder_of_plans_keeps_that_of_each_session(coordinator: Coordinator, tmp_path: Path) -> None:
    split = split_role.network()
    for name, epochs in (("one", 1), ("two", 2)):
        plan = compile_split(replace(split, epochs=epochs))
        with paired(coordinator, tmp_path / name) as pair:
            send_plan(pair.owner, plan)
            for _ in range(2):
                assert receive_plan(pair.feature, "owner", tmp_path / "plan", patience_s=patience(30)).id == plan.id


def test_damage_is_told_with_the_file_and_what_to_do(coordinator: Coordinator, tmp_path: Path) -> None:
    owner, feature, plan = split_role.rows("owner"), split_role.rows("feature"), compile_split(split_role.network())

    def changed(path: Path, statement: str) -> None:
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(statement)

    def overwritten(path: Path, start: float, stop: float) -> None:
        data = bytearray(path.read_bytes())
        part = slice(int(start * len(data)), int(stop * len(data)))
        data[part] = b"\xff" * len(data[part])
        path.write_bytes(data)

    damages: dict[str, tuple[str, Callable[[Path], object]]] = {
        "page": ("storage_failed", lambda path: overwritten(path, 0.3, 1)),
        "cut": ("storage_failed", lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])),
        "progress": ("checkpoint_damaged", lambda path: changed(path, "UPDATE state SET progress = '[]'")),
        "bytes": ("checkpoint_damaged", lambda path: changed(path, "UPDATE state SET progress = x'ff00'")),
        "tensors": ("checkpoint_damaged", lambda path: changed(path, "UPDATE state SET tensors = x'00'")),
        "text": ("checkpoint_damaged", lambda path: changed(path, "UPDATE state SET tensors = 'abc'")),
        "call": ("checkpoint_damaged", lambda path: changed(path, "UPDATE results SET call = '{}'")),
        "outputs": ("checkpoint_damaged", lambda path: changed(path, "UPDATE results SET tensors = x'00'")),
    }
    with paired(coordinator, tmp_path) as pair:
        with pair.learners(plan) as (here, there):
            both(lambda: here.train(owner), lambda: there.train(feature))
        for name, (code, damage) in damages.items():
            folder = tmp_path / name
            shutil.copytree(tmp_path / "owner-learning", folder)
            damage(folder / "learner.db")
            with pytest.raises(StorageError) as told:
                with Learner(pair.owner, plan, folder, columns=("blood", "ill"), patience_s=1) as role:
                    role.train(owner)
            assert (told.value.reason, str(folder / "learner.db") in told.value.message) == (code, True), name
            assert told.value.hint and "backup" in told.value.hint
