"""Two organisations train one network over a session: what comes out, and what is refused."""

import csv
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import split_role
from sdk_kit import Coordinator
from split_sessions import Pair, both, paired, tokens_of

from coterie.aggregation.plan.check_session import SessionPlan
from coterie.aggregation.vertical.compile import compile_split
from coterie.aggregation.vertical.split import FeatureRole, LabelRole, SplitNetwork
from coterie.client_sdk.party.agreement import step_text
from coterie.client_sdk.party.learner import Learner
from coterie.client_sdk.party.learner_store import call_of
from coterie.client_sdk.party.party import Party
from coterie.client_sdk.party.pins import trust_first_use
from coterie.client_sdk.party.plans import receive_plan, send_plan
from coterie.client_sdk.party.role_calls import STAGE
from coterie.client_sdk.party.role_work import MessageAwaited, RoleWork, Sent
from coterie.client_sdk.rows.loading import load_data
from coterie.compute import nn, optim
from coterie.compute.data import ArraySource
from coterie.compute.nn import losses
from coterie.compute.nn import metrics as nn_metrics
from coterie.errors import CoterieError
from coterie.protocol.device import DIVERGED
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.tensors import encode_tensors
from tests.patience import patience

DATA = os.environ.get("COTERIE_DATA")


def breast(role: str) -> dict[str, Any]:
    """The columns of a role in the two halves of the Wisconsin breast cancer data, whose rows are in one order."""
    if DATA is None:
        pytest.skip("COTERIE_DATA names no folder of data.")
    name = {"owner": "breast_hetero_guest.csv", "feature": "breast_hetero_host.csv"}[role]
    with (Path(DATA) / name).open(newline="") as file:
        table = sorted(csv.DictReader(file), key=lambda row: int(row["id"]))
    columns = [name for name in table[0] if name.startswith("x")]
    found: dict[str, Any] = {role: np.array([[float(row[c]) for c in columns] for row in table], np.float32)}
    return found | ({"y": np.array([int(row["y"]) for row in table], np.int32)} if role == "owner" else {})


def cancer() -> SplitNetwork:
    """Ten columns with the label at one role, twenty at the other."""
    return SplitNetwork(
        name="cancer",
        features=(
            FeatureRole(
                role="feature",
                features=(Feature(name="feature", shape=(20,)),),
                model=nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 8)),
            ),
        ),
        labels=LabelRole(
            role="owner",
            schema=DataSchema((Feature(name="owner", shape=(10,)),), Label(name="y", classes=(0, 1))),
            model=nn.Linear(10, 8),
            top=nn.Sequential(nn.Tanh(), nn.Linear(16, 2)),
        ),
        loss=losses.softmax_cross_entropy,
        metrics={"accuracy": nn_metrics.accuracy},
        optimizer=optim.adam(0.01),
        epochs=4,
    )


def part(rows: dict[str, Any], low: int, high: int | None = None) -> dict[str, Any]:
    """Some of the rows."""
    return {name: values[low:high] for name, values in rows.items()}


def test_two_organisations_train_measure_and_predict(coordinator: Coordinator, tmp_path: Path) -> None:
    owner, feature = breast("owner"), breast("feature")
    unlabelled = {"owner": owner["owner"][450:]}
    with paired(coordinator, tmp_path) as pair:
        send_plan(pair.owner, compile_split(cancer()))
        plan = receive_plan(pair.feature, "owner", str(tmp_path / "plan"), patience_s=patience(30))
        assert plan.id == compile_split(cancer()).id
        with pair.learners(plan) as (here, there):
            seen: list[tuple[int, float]] = []
            trained, silent = both(
                lambda: here.train(part(owner, 0, 450), on_epoch=lambda n, means: seen.append((n, means["loss"]))),
                lambda: there.train(part(feature, 0, 450)),
            )
            assert [epoch for epoch, _ in seen] == [1, 2, 3, 4] and seen[-1][1] < seen[0][1]
            assert [sums.examples for sums in trained] == [450.0] * 4
            assert not any(sums.sums for sums in silent)
            measured, nothing = both(
                lambda: here.evaluate(part(owner, 450)), lambda: there.evaluate(part(feature, 450))
            )
            assert measured.examples == 119 and not nothing.sums
            assert measured.means()["accuracy"] >= 0.9
            predicted, none = both(lambda: here.predict(unlabelled), lambda: there.predict(part(feature, 450)))
            assert none is None and predicted.shape == (119, 2)
            right = (predicted.argmax(axis=1) == owner["y"][450:]).mean()
            np.testing.assert_allclose(right, measured.means()["accuracy"], atol=1e-6)

        # A later program makes the same calls, and has their results at once, then goes on.
        with pair.learners(plan) as (here, there):
            assert here.train(part(owner, 0, 450)) == trained
            here.skip_done()
            there.skip_done()
            more, _ = both(lambda: here.train(part(owner, 0, 450)), lambda: there.train(part(feature, 0, 450)))
            assert more[-1].means()["loss"] < trained[-1].means()["loss"]
        for rows, says in ((part(owner, 0, 40), "now it is train on 40 rows"), (part(owner, 1, 451), "on other rows")):
            with pair.learners(plan) as (here, _), pytest.raises(CoterieError) as refused:
                here.train(rows)
            assert refused.value.reason == "session_step" and says in refused.value.message

    # When the session is over, the folders go on in another one.
    with paired(coordinator, tmp_path / "next") as later:
        kept = Pair(later.owner, later.feature, tmp_path)
        with kept.learners(plan) as (here, there):
            here.skip_done()
            there.skip_done()
            again, _ = both(lambda: here.predict(unlabelled), lambda: there.predict(part(feature, 450)))
            assert again.shape == (119, 2) and not np.array_equal(again, predicted)


def test_what_partners_see_is_what_the_plan_says(coordinator: Coordinator, tmp_path: Path) -> None:
    """All that is ever sent is numbered, and its size told beforehand."""
    plan = compile_split(split_role.network())
    with paired(coordinator, tmp_path) as pair, pair.learners(plan) as (here, there):
        both(lambda: here.train(split_role.rows("owner")), lambda: there.train(split_role.rows("feature")))
        for sender, role in ((pair.owner, "feature"), (pair.feature, "owner")):
            store = sender._client._store  # pyright: ignore[reportPrivateUsage]
            # Two about the call itself, then one a batch.
            sent = store.next_outgoing(sender.membership.session, STAGE, role)
            assert sent == 2 + split_role.STEPS * split_role.EPOCHS
    told = {(d.sender, d.step): d.numbers for d in plan.manifest.disclosures()}
    assert told[("feature", "train")] == told[("owner", "train")] == 2


@pytest.mark.parametrize("case", ["rows", "task", "untrained", "data"])
def test_calls_that_do_not_fit_are_refused_and_may_be_made_right(
    case: str, coordinator: Coordinator, tmp_path: Path
) -> None:
    owner, feature = split_role.rows("owner"), split_role.rows("feature")
    with paired(coordinator, tmp_path) as pair, pair.learners(compile_split(split_role.network())) as (here, there):
        calls: dict[str, tuple[Callable[[], Any], Callable[[], Any], str, str]] = {
            "rows": (
                lambda: here.train(part(owner, 0, 20)),
                lambda: there.train(feature),
                "session_step",
                "owner makes call 0, train on 20 rows",
            ),
            "untrained": (lambda: here.evaluate(owner), lambda: there.predict(feature), "not_trained", "not trained"),
            "data": (
                lambda: here.train({"blood": owner["blood"]}),
                lambda: there.train({"other": feature["scan"]}),
                "data_missing",
                "missing",
            ),
            "task": (
                lambda: here.train(owner),
                lambda: there.train(feature),
                "session_step",
                f"evaluate on {split_role.ROWS} rows",
            ),
        }
        one, other, code, says = calls[case]
        if case == "task":
            both(one, other)
            one, other = lambda: here.evaluate(owner), lambda: there.train(feature)
        found = both(one, other)
        assert [error.reason for error in found] == [code, code]
        assert any(says in error.message for error in found)
        # Whoever made a mistake makes the right call.
        again, _ = both(lambda: here.train(owner), lambda: there.train(feature))
        assert [sums.examples for sums in again] == [split_role.ROWS] * split_role.EPOCHS


def test_a_call_that_nobody_has_joined_may_be_taken_back(coordinator: Coordinator, tmp_path: Path) -> None:
    owner, feature = split_role.rows("owner"), split_role.rows("feature")
    plan = compile_split(split_role.network())
    with paired(coordinator, tmp_path) as pair:
        with pair.learners(plan, patience_s=0.1) as (here, _), pytest.raises(CoterieError) as silent:
            here.train(part(owner, 0, 20))
        assert silent.value.reason == "partner_silent"
        with pair.learners(plan) as (here, there):

            def insist() -> Any:
                with pytest.raises(CoterieError) as refused:
                    there.train(feature)
                assert refused.value.reason == "session_step" and "20 rows" in refused.value.message
                return there.train(feature)

            trained, _ = both(lambda: here.train(owner), insist)
            assert [sums.examples for sums in trained] == [split_role.ROWS] * split_role.EPOCHS


def test_a_role_waits_no_longer_than_it_says_for_one_that_has_not_joined(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    plan, tokens = compile_split(split_role.network()), tokens_of(coordinator)
    with Party(tmp_path / "owner", judge=trust_first_use) as party:
        session = party.join(coordinator.url, tokens["owner"])
        with Learner(session, plan, tmp_path / "alone", columns=("blood", "ill"), patience_s=0.1) as here:
            waits: tuple[Callable[[], Any], ...] = (
                lambda: here.train(split_role.rows("owner")),
                lambda: send_plan(session, plan, patience_s=0.1),
                lambda: receive_plan(session, "feature", tmp_path / "plan", patience_s=0.1),
            )
            for wait in waits:
                with pytest.raises(CoterieError) as silent:
                    wait()
                assert silent.value.reason == "partner_silent" and "has not joined yet" in silent.value.message


def test_a_plan_reads_the_columns_that_are_allowed(coordinator: Coordinator, tmp_path: Path) -> None:
    plan = compile_split(split_role.network())
    with paired(coordinator, tmp_path) as pair:
        for columns, reason in (((), "plan_columns"), (("other",), "plan_columns"), ("scan", "argument_type")):
            with pytest.raises(CoterieError) as refused:
                Learner(pair.feature, plan, tmp_path / "refused", columns=columns)
            assert refused.value.reason == reason and "scan" in refused.value.message
        with pytest.raises(CoterieError) as none:
            Learner(pair.feature, cast(Any, split_role.network()), tmp_path / "refused", columns=("scan",))
        assert none.value.reason == "argument_type" and "compile_split" in str(none.value.hint)


def test_the_columns_that_are_allowed_bound_whatever_is_read(coordinator: Coordinator, tmp_path: Path) -> None:
    """A feature may be read whole by its name, or by its columns: where the rows come from decides."""
    salary = Feature(name="salary", shape=(1,), columns=("age",))
    part = FeatureRole(role="feature", features=(salary,), model=nn.Linear(1, 2))
    plan = compile_split(replace(split_role.network(), features=(part,)))

    def sources(name: str, *shape: int) -> tuple[Any, ...]:
        arrays: dict[str, Any] = {name: np.zeros(shape, np.float32)}
        np.savez(tmp_path / f"{name}.npz", **arrays)
        return (tmp_path / f"{name}.npz", arrays, lambda: arrays, ArraySource(arrays))

    np.save(tmp_path / "salary.npy", np.zeros((8, 1), np.float32))
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "rows.csv").write_text("age,salary\n1,50000\n")
    by_name = (tmp_path, *sources("salary", 8, 1))
    by_column = (tmp_path / "tables", tmp_path / "tables" / "rows.csv", *sources("age", 8))
    with paired(coordinator, tmp_path / "parties") as pair:
        for allowed, refused, read in (("age", by_name, by_column), ("salary", by_column, by_name)):
            with Learner(pair.feature, plan, tmp_path / allowed, columns=(allowed,), patience_s=0.1) as learner:
                for rows in refused:
                    with pytest.raises(CoterieError) as named:
                        learner.train(rows)
                    assert named.value.reason == "plan_columns", rows
            for rows in read:
                assert set(load_data(rows, part.schema, allowed=(allowed,))) == {"salary", "no_label"}


def test_a_folder_is_of_one_role_and_one_program(coordinator: Coordinator, tmp_path: Path) -> None:
    plan = compile_split(split_role.network())
    with paired(coordinator, tmp_path) as pair, pair.learners(plan) as (here, there):
        both(lambda: here.train(split_role.rows("owner")), lambda: there.train(split_role.rows("feature")))
        with pytest.raises(CoterieError) as taken:
            Learner(pair.owner, plan, tmp_path / "owner-learning", columns=("blood", "ill"))
        assert taken.value.reason == "store_in_use"
        there.close()
        with pytest.raises(CoterieError) as other:
            Learner(pair.owner, plan, tmp_path / "feature-learning", columns=("blood", "ill"))
        assert other.value.reason == "plan_changed" and "role feature" in other.value.message
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "owner-learning").iterdir()}
    assert modes == {0o600} and (tmp_path / "owner-learning").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("message", "code", "says"),
    [
        (b"no tensors at all", "header_too_large", "header declares"),
        (encode_tensors({}, {"at": "elsewhere"}), "session_step", "elsewhere"),
        ({"gradient": np.zeros((8, 3), np.float32)}, "session_values", "float32[8, 3]"),
        ({"gradient": np.zeros((8, 2), np.int32)}, "session_values", "int32"),
        ({"other": np.zeros((8, 2), np.float32)}, "session_values", "other"),
        ({"gradient": np.full((8, 2), np.nan, np.float32)}, "session_values", "not finite"),
        ({}, "session_values", "nothing"),
        ({"gradient": np.zeros((8, 9000), np.float32)}, "message_too_large", "more than"),
    ],
    ids=["bytes", "place", "shape", "dtype", "key", "nan", "empty", "size"],
)
def test_a_partner_that_sends_something_else_is_refused(
    message: Any, code: str, says: str, coordinator: Coordinator, tmp_path: Path
) -> None:
    """The role with features is real, that with labels sends what a test says."""
    plan = compile_split(split_role.network())
    with paired(coordinator, tmp_path) as pair, pair.learners(plan) as (_, there):
        call = {"call": 0, "plan": plan.id, "rows": split_role.ROWS, "task": "train", "trained": 0}
        said = json.dumps(call, separators=(",", ":"))
        at = json.dumps({"call": 0, "step": 0, "task": "train"}, separators=(",", ":"))
        pair.owner.send(STAGE, "feature", encode_tensors({}, {"at": said}))
        pair.owner.send(STAGE, "feature", encode_tensors({}, {"at": '{"agreed":true,"call":0}'}))
        body = message if isinstance(message, bytes) else encode_tensors(message, {"at": at})
        pair.owner.send(STAGE, "feature", body)
        with pytest.raises(CoterieError) as refused:
            there.train(split_role.rows("feature"))
        assert (refused.value.reason, says in refused.value.message) == (code, True), refused.value.message


def steep(prediction: Any, label: Any) -> Any:
    """A loss with large gradients."""
    return 100.0 * losses.softmax_cross_entropy(prediction, label)


def test_a_tensor_that_comes_again_is_refused() -> None:
    """A stage that reads two tensors of a partner gets the first of them twice."""
    plan = compile_split(split_role.network())
    (descend,) = (stage for stage in plan.manifest.part("feature").stages if stage.name == "descend")
    (gradient,) = descend.from_source("message")
    reads = replace(descend, inputs=(gradient, replace(gradient, name="other", key="other")))
    owner, feature = plan.manifest.parts
    stages = tuple(reads if stage is descend else stage for stage in feature.stages)
    told = replace(plan.manifest, parts=(owner, replace(feature, stages=stages)))
    role = RoleWork(SessionPlan(told, plan.graphs), "feature", secret=bytes(32), session="session")
    rows = role.rows_of("train", split_role.rows("feature"), None)
    call = call_of("train", rows, 0, threads=1, trained=0)
    work = role.work(call, rows, role.first_tensors())
    body = encode_tensors({"gradient": np.zeros((8, 2), np.float32)}, {"at": step_text(call)})
    assert isinstance(next(work), Sent) and isinstance(next(work), MessageAwaited)
    assert isinstance(work.send(body), MessageAwaited)
    with pytest.raises(CoterieError) as again:
        work.send(body)
    assert again.value.reason == "session_values" and "owner/gradient twice" in again.value.message


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({"optimizer": optim.sgd(1e30)}, split_role.ROWS),
        ({"optimizer": optim.sgd(1e38), "loss": steep, "epochs": 1}, 8),
    ],
    ids=["messages", "last weights"],
)
def test_a_training_that_diverges_says_so_and_sends_nothing_of_it(
    changes: dict[str, Any], rows: int, coordinator: Coordinator, tmp_path: Path
) -> None:
    plan = compile_split(replace(split_role.network(), **changes))
    owner, feature = (part(split_role.rows(role), 0, rows) for role in ("owner", "feature"))
    with paired(coordinator, tmp_path) as pair, pair.learners(plan, patience_s=2) as (here, there):
        found = both(lambda: here.train(owner), lambda: there.train(feature))
        assert {error.reason for error in found} == {DIVERGED, "partner_silent"}
        assert any("Lower the learning rate" in str(error.hint) for error in found)


def test_a_plan_for_other_roles_or_another_folder_is_refused(coordinator: Coordinator, tmp_path: Path) -> None:
    plan = compile_split(split_role.network())
    with paired(coordinator, tmp_path) as pair:
        with pair.learners(plan) as (here, there):
            assert here.client_state == {}
            both(lambda: here.train(split_role.rows("owner")), lambda: there.train(split_role.rows("feature")))
            assert "model/weight" in here.client_state
        with pytest.raises(CoterieError) as other, pair.learners(compile_split(cancer())):
            pass
        assert other.value.reason == "plan_changed"
        registry = FeatureRole(role="registry", features=(Feature(name="f", shape=(2,)),), model=nn.Linear(2, 8))
        renamed = compile_split(replace(cancer(), features=(registry,)))
        with pytest.raises(CoterieError) as roles:
            send_plan(pair.owner, renamed)
        assert roles.value.reason == "role_unknown" and "registry" in roles.value.message
    with paired(coordinator, tmp_path / "stages", stages=("messages",)) as pair, pytest.raises(CoterieError) as stage:
        send_plan(pair.owner, plan)
    assert stage.value.reason == "stage_unknown"
