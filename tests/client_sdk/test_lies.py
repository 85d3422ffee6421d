"""A coordinator that lies in its tasks, against real devices: each lie is refused by its code, and nothing leaves that
the device's policy does not allow, over kills, experiments and populations.
"""

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from liar import Lying, devices, lying_coordinator, refusals
from sdk_kit import experiment

from coterie.aggregation.compiling.training import training_of
from coterie.client_sdk.device.spending import PrivacyLedger
from coterie.privacy.dp.accounting import total_cost
from coterie.privacy.dp.rounds import whole_cost
from coterie.protocol import ids
from coterie.protocol.claims import PrivacyTerms
from coterie.protocol.device import Task
from coterie.protocol.privacy import ExampleLevel, LocalLevel, UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.secagg import SecureTerms
from coterie.protocol.secure_aggregation import SecureAggregation
from coterie.protocol.secure_sections import SecureSection

Events = list[dict[str, Any]]

LOCAL = LocalLevel(mechanism="gaussian", epsilon=1.0, delta=1e-6, clip=0.5)
ROWS = ExampleLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0, rows=40)
SHARED = UserLevel(clip=0.5, delta=1e-6, noise_multiplier=8.0, mechanism="discrete_gaussian")
ALONE = RoundPolicy(rounds=40, cohort=1, weight_cap=1, evaluate_every=0)
TOGETHER = RoundPolicy(rounds=4, cohort=6, min_updates=5, weight_cap=1, evaluate_every=0)
TRUSTS_THE_DEVICE = 'max_epsilon = 1.0\ntrusts = ["device"]\n'
TRUSTS_THE_COHORT = 'max_epsilon = 30.0\ntrusts = ["cohort"]\nrequire_secure_aggregation = true\n'


def left(events: Events) -> list[str]:
    """Everything of an update that left a device, by the name of its event."""
    return [event["event"] for event in events if event["event"] in ("uploaded", "sent")]


def changed(task: Task, **changes: Any) -> Task:
    return Task.model_validate({**task.model_dump(mode="json", exclude_unset=True), **changes})


def sectioned(*sections: tuple[str, str]) -> Callable[[Task], Task]:
    """The same task with other sections in the masked vector, all terms of noise as they were."""

    def lie(task: Task) -> Task:
        assert task.secure is not None
        counts, delta = task.secure.sections
        plain: dict[str, Any] = {"values": delta.values, "bits": 24, "top": 255, "norm": 10.0}
        summed: dict[str, Any] = {"values": 2, "bits": 32, "top": 1 << 20, "low": -1.0, "step": 2.0**-16}
        made = [counts]
        for name, encoding in sections:
            shape = plain if encoding == "grid" else summed
            kept = delta.model_dump() if encoding == "noised" else {"name": name, "encoding": encoding, **shape}
            made.append(SecureSection.model_validate({**kept, "name": name}))
        secure = SecureTerms.model_validate({**task.secure.model_dump(mode="json"), "sections": made})
        return changed(task, secure=secure.model_dump(mode="json"))

    return lie


SECTIONS = {
    "the change in clear, the metrics noised": (("delta", "grid"), ("metrics", "noised")),
    "the change noised, the metrics in clear": (("delta", "noised"), ("metrics", "fixed")),
    "the change twice": (("delta", "noised"), ("delta", "grid")),
    "nothing noised": (("delta", "grid"),),
}


@pytest.mark.parametrize("case", SECTIONS)
def test_noise_of_a_cohort_is_on_the_change_and_nothing_stands_beside_it(tmp_path: Path, case: str) -> None:
    wanted = experiment("own", rounds=TOGETHER, privacy=SHARED, secure_aggregation=True)
    with lying_coordinator(tmp_path, task=sectioned(*SECTIONS[case])) as lying:
        _, token = lying.submit(wanted)
        with devices(lying, token, tmp_path, policy=TRUSTS_THE_COHORT) as (device,):
            events = device.events()
    assert refusals(events) == ["privacy_unkept"]
    assert not left(events)


@pytest.mark.parametrize("privacy", [LOCAL, ROWS], ids=["own noise", "private rows"])
def test_an_evaluation_is_refused_under_a_promise(tmp_path: Path, privacy: Any) -> None:
    def lie(task: Task) -> Task:
        return changed(task, kind="evaluate", local=None)

    with lying_coordinator(tmp_path, task=lie) as lying:
        _, token = lying.submit(experiment("own", rounds=ALONE, privacy=privacy, holdout=0.2))
        for name, policy in {
            "strict": 'max_epsilon = 1000.0\nmax_delta = 0.1\ntrusts = ["device"]\n',
            "lax": "",
        }.items():
            with devices(lying, token, tmp_path, policy=policy, names=[name]) as (device,):
                events = device.events()
            assert refusals(events) == ["privacy_unkept"]
            assert not left(events)
            assert not lying.bodies("/update")


def promising(epsilon: float, **changes: Callable[[Task], Any]) -> Callable[[Task], Task]:
    """Every task promises the same for all rounds, however many there are."""

    def lie(task: Task) -> Task:
        assert task.privacy is not None
        promise = PrivacyTerms.model_validate({**task.privacy.model_dump(), "epsilon": epsilon})
        return changed(task, privacy=promise.model_dump(), **{name: change(task) for name, change in changes.items()})

    return lie


def taken(lying: Lying, token: str, folder: Path, policy: str, wanted: int, **options: Any) -> Events:
    """What one device tells until it has done or refused so many tasks."""
    with devices(lying, token, folder, policy=policy, wanted=wanted, **options) as (device,):
        return device.events()


def test_a_promise_for_all_rounds_is_held_by_the_devices_own_record(tmp_path: Path) -> None:
    with lying_coordinator(tmp_path, task=promising(1.0)) as lying:
        _, token = lying.submit(experiment("own", rounds=ALONE, privacy=LOCAL))
        events = taken(lying, token, tmp_path, 'max_epsilon = 9.0\ntrusts = ["device"]\n', 3)
    assert (left(events), refusals(events)) == (["uploaded"], ["privacy_unkept"])


def test_a_promise_about_rows_does_not_believe_which_round_it_is(tmp_path: Path) -> None:
    wanted = experiment("own", rounds=ALONE, privacy=ROWS)
    two = total_cost(whole_cost(ROWS, 2, cohort=1, draws=training_of(wanted).draws()), ROWS.delta).epsilon
    with lying_coordinator(tmp_path, task=promising(two, round=lambda task: 1)) as lying:
        _, token = lying.submit(wanted)
        events = taken(lying, token, tmp_path, 'max_epsilon = 1000.0\ntrusts = ["device"]\n', 12)
    assert left(events) == ["uploaded"] * 2
    assert refusals(events) == ["privacy_unkept"]


@pytest.mark.parametrize("codec", ["int8+rice", "topk:0.2"])
def test_a_limit_on_bytes_asks_nothing_of_an_update_that_is_not_paid_for(tmp_path: Path, codec: str) -> None:
    """How long packed bytes are depends on the values: a refusal by the bytes that came of them would be an answer."""
    longest: list[int] = []

    def lie(task: Task) -> Task:
        said = [len(body) for body in lying.bodies("/update") if body]
        longest[:] = said[-1:]
        return changed(task, upload_limit=max(said)) if said else task

    with lying_coordinator(tmp_path, task=lie) as lying:
        _, token = lying.submit(experiment("own", rounds=ALONE, privacy=LOCAL, codecs=(codec,)))
        events = taken(lying, token, tmp_path, 'max_epsilon = 60.0\ntrusts = ["device"]\n', 3)
    assert longest and refusals(events) == ["upload_too_large"]
    # The limit is one that an honest update has kept, and the device does not even train to find out.
    assert [event["event"] for event in events].count("trained") == len(left(events)) == 1


def test_experiments_that_never_end_are_one_budget(tmp_path: Path) -> None:
    """Each task names an experiment of its own, so that each promise is kept: the owner's limit is not."""
    fresh = promising(1.0, experiment=lambda task: ids.new_id(ids.EXPERIMENT))
    with lying_coordinator(tmp_path, task=fresh) as lying:
        _, token = lying.submit(experiment("own", rounds=ALONE, privacy=LOCAL))
        events = taken(lying, token, tmp_path, 'max_epsilon = 2.0\nmax_delta = 1e-5\ntrusts = ["device"]\n', 6)
        ledger = PrivacyLedger(tmp_path / "device-0" / "state" / "ledger.db")
        total = ledger.total(1e-5)
    assert 2 <= len(left(events)) < 6
    assert refusals(events) == ["privacy_spent"]
    assert total.releases == len(left(events))
    assert total.epsilon <= 2.0


def test_claims_of_a_coordinator_add_up_over_experiments(tmp_path: Path) -> None:
    central = UserLevel(clip=0.5, delta=1e-6, noise_multiplier=8.0)
    fresh = promising(1.0, experiment=lambda task: ids.new_id(ids.EXPERIMENT))
    with lying_coordinator(tmp_path, task=fresh) as lying:
        _, token = lying.submit(experiment("own", rounds=ALONE, privacy=central))
        events = taken(lying, token, tmp_path, "max_epsilon = 3.0\n", 5)
    assert len(left(events)) == 3
    assert refusals(events) == ["privacy_spent"]


def test_a_claim_is_paid_for_by_each_client_that_shares_the_record(tmp_path: Path) -> None:
    """Both hold the owner's rows, and the claim hides one client: what is told of the rows costs it twice."""
    central = UserLevel(clip=0.5, delta=1e-6, noise_multiplier=8.0)
    policy = f'max_epsilon = 1.5\nledger = "{tmp_path}/shared.db"\n'
    with lying_coordinator(tmp_path, task=promising(1.0)) as lying:
        _, token = lying.submit(experiment("own", rounds=ALONE, privacy=central))
        first = taken(lying, token, tmp_path, policy, 2, names=["one"])
        second = taken(lying, token, tmp_path, policy, 1, names=["two"])
    assert (left(first), refusals(first)) == (["uploaded"] * 2, [])
    assert (left(second), refusals(second)) == ([], ["privacy_spent"])
    assert PrivacyLedger(tmp_path / "shared.db").total(1e-5).epsilon == 1.0


def test_populations_share_one_limit_by_one_ledger(tmp_path: Path) -> None:
    policy = f'max_epsilon = 1.0\nmax_delta = 1e-6\ntrusts = ["device"]\nledger = "{tmp_path}/shared.db"\n'
    told: list[Events] = []
    with ExitStack() as stack:
        for place in ("one", "two"):
            lying = stack.enter_context(lying_coordinator(tmp_path / place, task=promising(1.0)))
            _, token = lying.submit(experiment(place, rounds=ALONE, privacy=LOCAL))
            told.append(taken(lying, token, tmp_path / place, policy, 1))
    first, second = told
    assert (left(first), refusals(first)) == (["uploaded"], [])
    assert (left(second), refusals(second)) == ([], ["privacy_spent"])


@pytest.mark.parametrize("point", ["trained", "charged", "written", "stored", "uploading", "uploaded"])
def test_a_kill_neither_forgets_a_release_nor_counts_it_twice(tmp_path: Path, point: str) -> None:
    policy = 'max_epsilon = 2.0\nmax_delta = 1e-5\ntrusts = ["device"]\n'
    ledger = PrivacyLedger(tmp_path / "device-0" / "state" / "ledger.db")
    with lying_coordinator(tmp_path, task=promising(1.0)) as lying:
        _, token = lying.submit(experiment("own", rounds=ALONE, privacy=LOCAL))
        taken(lying, token, tmp_path, policy, 1, fault=f"{point}:1")
        before = ledger.total(1e-5).releases
        events = taken(lying, token, tmp_path, policy, 3)
    assert before == (0 if point == "trained" else 1)
    assert ledger.total(1e-5).releases == 1
    assert left(events).count("uploaded") <= 1
    assert refusals(events) == ["privacy_unkept"]


def test_an_attempt_that_fails_before_anything_leaves_costs_nothing(tmp_path: Path) -> None:
    def weaker(path: str, answer: dict[str, Any]) -> dict[str, Any]:
        return {**answer, "threshold": answer["threshold"] - 1} if path.endswith("/secure/roster") else answer

    few = TOGETHER.model_copy(update={"cohort": 3, "min_updates": 3})
    consistent = SecureAggregation(mode="consistent")
    wanted = experiment("own", rounds=few, privacy=SHARED, secure_aggregation=consistent)
    with lying_coordinator(tmp_path, answer=weaker) as lying:
        _, token = lying.submit(wanted)
        with devices(lying, token, tmp_path, count=3, policy=TRUSTS_THE_COHORT + "min_cohort = 3\n") as running:
            told = [device.events() for device in running]
    assert [refusals(events) for events in told] == [["secagg_weakened"]] * 3
    for number in range(3):
        assert PrivacyLedger(tmp_path / f"device-{number}" / "state" / "ledger.db").total(1e-5).releases == 0


def test_a_folder_from_a_backup_releases_nothing_that_its_record_forgets(tmp_path: Path) -> None:
    """The record lies beside the folder and is not set back. What the folder does again is counted again, and a task
    that it refuses strikes nobody else's row.
    """
    shared = tmp_path / "shared.db"
    policy = f'max_epsilon = 9.0\ntrusts = ["device"]\nledger = "{shared}"\n'
    fresh = promising(1.0, experiment=lambda task: ids.new_id(ids.EXPERIMENT))
    state, backup, ledger = tmp_path / "device-0" / "state", tmp_path / "backup", PrivacyLedger(shared)
    with lying_coordinator(tmp_path, task=fresh) as lying:
        _, token = lying.submit(experiment("own", rounds=ALONE, privacy=LOCAL))
        assert left(taken(lying, token, tmp_path, policy, 1)) == ["uploaded"]
        shutil.copytree(state, backup)
        assert left(taken(lying, token, tmp_path, policy, 1)) == ["uploaded"]
        shutil.rmtree(state)
        shutil.copytree(backup, state)
        assert left(taken(lying, token, tmp_path, policy, 1)) == ["uploaded"]
        assert ledger.total(1e-5).releases == 3
        lying.liar.task = lambda task: changed(fresh(task), kind="evaluate", local=None)
        assert refusals(taken(lying, token, tmp_path, policy, 1)) == ["privacy_unkept"]
    assert ledger.total(1e-5).releases == 3


def test_a_task_that_was_sent_is_not_done_again_by_a_folder_from_a_backup(tmp_path: Path) -> None:
    """The backup holds the task as it was when it was given: its update would be made, with other noise, a second
    time.
    """
    shared = tmp_path / "shared.db"
    policy = f'max_epsilon = 9.0\ntrusts = ["device"]\nledger = "{shared}"\n'
    state, backup = tmp_path / "device-0" / "state", tmp_path / "backup"
    with lying_coordinator(tmp_path) as lying:
        _, token = lying.submit(experiment("own", rounds=ALONE, privacy=LOCAL))
        assert not left(taken(lying, token, tmp_path, policy, 1, fault="downloaded:1"))
        shutil.copytree(state, backup)
        assert left(taken(lying, token, tmp_path, policy, 1)) == ["uploaded"]
        shutil.rmtree(state)
        shutil.copytree(backup, state)
        told = taken(lying, token, tmp_path, policy, 1)
    assert (left(told), refusals(told)) == ([], ["privacy_recorded"])
    assert PrivacyLedger(shared).total(1e-5).releases == 1


def test_two_backups_of_one_task_send_one_update(tmp_path: Path) -> None:
    """One of the folder with the task alone, one with its finished update: their noise differs."""
    shared = tmp_path / "shared.db"
    policy = f'max_epsilon = 9.0\ntrusts = ["device"]\nledger = "{shared}"\n'
    state, backups = tmp_path / "device-0" / "state", [tmp_path / "leased", tmp_path / "stored"]
    with lying_coordinator(tmp_path) as lying:
        _, token = lying.submit(experiment("own", rounds=ALONE, privacy=LOCAL))
        for backup, point in zip(backups, ("downloaded", "stored"), strict=True):
            assert not left(taken(lying, token, tmp_path, policy, 1, fault=f"{point}:1"))
            shutil.copytree(state, backup)
        told: list[Events] = []
        for backup in backups:
            shutil.rmtree(state)
            shutil.copytree(backup, state)
            told.append(taken(lying, token, tmp_path, policy, 1))
        sent = {body for body in lying.bodies("/update") if body}
    assert (left(told[0]), refusals(told[0])) == (["uploaded"], [])
    assert (left(told[1]), refusals(told[1])) == ([], ["privacy_recorded"])
    assert len(sent) == 1
    assert PrivacyLedger(shared).total(1e-5).releases == 1
