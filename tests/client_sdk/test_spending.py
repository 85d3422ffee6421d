"""The device's own record of what it has released: what it counts, what it refuses, and what it survives."""

import os
import sqlite3
import stat
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from coterie.aggregation.plan.manifest import Manifest, NamedRule, Training
from coterie.aggregation.plan.private_steps import PrivateSteps
from coterie.client_sdk.device import spending
from coterie.client_sdk.device.policy import DevicePolicy
from coterie.client_sdk.device.promise import events_of
from coterie.client_sdk.device.spending import PrivacyLedger, Release, epsilon_of
from coterie.errors import ConfigurationError, PolicyRefused
from coterie.privacy.dp.accounting import total_cost
from coterie.privacy.dp.events import Approximate, Gaussian, PrivacyEvent, Pure, SampledGaussian
from coterie.privacy.dp.rounds import whole_cost
from coterie.protocol.claims import PrivacyTerms
from coterie.protocol.device import Task
from coterie.protocol.layout import Layout
from coterie.protocol.privacy import ExampleLevel
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.sections import SectionSpec
from tests.patience import patience

LAYOUT = Layout.of({"w": (3,)})
STEPS = PrivateSteps(clip=1.0, noise_multiplier=1.0, expected=8, rows=100)
TRAINING = Training(batch_size=40, epochs=1, max_steps=10, private=STEPS)
MANIFEST = Manifest(
    name="rows",
    shape="horizontal",
    schema=DataSchema((Feature(name="x", shape=(4,)),), Label(name="y", low=0, high=2)),
    layout=LAYOUT,
    sections=(SectionSpec.over("delta", LAYOUT),),
    hyper={},
    training=TRAINING,
    algorithm=NamedRule("fedavg", {}),
    optimizer=NamedRule("sgd", {}),
    stages=(),
)
ROUNDS = 5
LEVEL = ExampleLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0, rows=100)
CLAIM = total_cost(whole_cost(LEVEL, ROUNDS, cohort=3, draws=TRAINING.draws()), 1e-5)
ANY = DevicePolicy()


def promise(epsilon: float, delta: float = 1e-5, **changes: Any) -> PrivacyTerms:
    told: dict[str, Any] = {"unit": "user", "mechanism": "gaussian", "trusts": "device"} | changes
    return PrivacyTerms(epsilon=epsilon, delta=delta, **told)


def release(key: str, *events: PrivacyEvent, epsilon: float = 1.0, **changes: Any) -> Release:
    """One task's release in an experiment of this device's coordinator."""
    told: dict[str, Any] = {"coordinator": "c" * 64, "population": "p", "experiment": "e", "once": False} | changes
    return Release(key=key, task=f"task_{key}", events=events, promise=told.pop("promise", promise(epsilon)), **told)


def code_of(ledger: PrivacyLedger, made: Release, policy: DevicePolicy = ANY) -> str | None:
    try:
        ledger.check(made, policy)
        ledger.charge(made, policy)
    except PolicyRefused as error:
        assert error.hint
        return error.reason
    return None


@pytest.fixture
def ledger(tmp_path: Path) -> PrivacyLedger:
    return PrivacyLedger(tmp_path / "ledger.db")


def of_rows(training: Training, round: int = 1) -> tuple[PrivacyEvent, ...]:
    asked = Task.model_construct(kind="train", round=round)
    return events_of(asked, promise(1.0, unit="example"), replace(MANIFEST, training=training))


def trained(ledger: PrivacyLedger, rounds: int, epsilon: float, training: Training = TRAINING) -> list[str | None]:
    """What becomes of so many trainings by a plan's private steps, under one promise."""
    told = promise(epsilon, unit="example")
    events = of_rows(training)
    return [code_of(ledger, release(str(round), *events, promise=told)) for round in range(rounds)]


def test_a_promise_that_the_steps_keep_is_taken_in_every_round(ledger: PrivacyLedger) -> None:
    assert trained(ledger, ROUNDS, CLAIM.epsilon) == [None] * ROUNDS


def test_a_device_counts_the_noise_of_the_round_that_a_task_names(ledger: PrivacyLedger) -> None:
    factors = (2.0, 1.0, 0.5)
    training = replace(TRAINING, private=replace(STEPS, factors=factors))
    whole = whole_cost(LEVEL.but(schedule=factors), 3, cohort=3, draws=TRAINING.draws())
    told = promise(total_cost(whole, 1e-5).epsilon, unit="example")
    assert [event.multiplier for n in (1, 2, 3) if isinstance(event := of_rows(training, n)[0], SampledGaussian)] == [
        2.0,
        1.0,
        0.5,
    ]
    found = [code_of(ledger, release(str(n), *of_rows(training, n), promise=told)) for n in (1, 2, 3)]
    assert found == [None] * 3
    # The quietest round once more, as a coordinator may ask that repeats it.
    assert code_of(ledger, release("again", *of_rows(training, 3), promise=told)) == "privacy_unkept"
    with pytest.raises(PolicyRefused, match="factors for 3 rounds, and this is round 4") as refused:
        of_rows(training, 4)
    assert refused.value.reason == "privacy_unkept"


def test_a_device_without_loss_distributions_takes_it_too(
    ledger: PrivacyLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spending.loss_distribution, "available", lambda: False)
    assert trained(ledger, ROUNDS, CLAIM.epsilon) == [None] * ROUNDS


exact_price = pytest.mark.skipif(
    find_spec("dp_accounting") is None,
    reason="without dp-accounting, which the extra server brings, a device lets by what is less than half too dear",
)


@pytest.mark.parametrize(
    ("rounds", "epsilon", "training"),
    [
        pytest.param(ROUNDS + 1, CLAIM.epsilon, TRAINING, marks=exact_price),
        pytest.param(ROUNDS, 0.9 * CLAIM.epsilon, TRAINING, marks=exact_price),
        (ROUNDS, CLAIM.epsilon, replace(TRAINING, private=replace(STEPS, noise_multiplier=0.5))),
        (ROUNDS, CLAIM.epsilon, replace(TRAINING, private=replace(STEPS, rows=20))),
        (ROUNDS, CLAIM.epsilon, replace(TRAINING, batch_size=9)),
    ],
    ids=["more rounds", "less epsilon", "less noise", "fewer rows", "batches that overflow"],
)
def test_a_promise_that_the_steps_cannot_keep_is_refused(
    ledger: PrivacyLedger, rounds: int, epsilon: float, training: Training
) -> None:
    assert trained(ledger, rounds, epsilon, training)[-1] == "privacy_unkept"


def test_a_promise_about_rows_needs_steps_with_noise() -> None:
    with pytest.raises(PolicyRefused, match="neither clip nor noise") as refused:
        of_rows(replace(TRAINING, private=None))
    assert refused.value.reason == "privacy_unkept"


UPLOAD = Gaussian(4.0)


def most(policy_epsilon: float, **changes: Any) -> DevicePolicy:
    return DevicePolicy(max_epsilon=policy_epsilon, **changes)


def test_the_owners_limit_is_over_experiments_populations_and_coordinators(ledger: PrivacyLedger) -> None:
    limit = epsilon_of([UPLOAD] * 3, 1e-5)
    places = [{"experiment": "e1"}, {"experiment": "e2", "population": "q"}, {"coordinator": "d" * 64}]
    for number, place in enumerate(places):
        assert code_of(ledger, release(str(number), UPLOAD, epsilon=9.0, **place), most(limit)) is None
    for place in places:
        refused = release("another", UPLOAD, epsilon=9.0, **place)
        assert code_of(ledger, refused, most(limit)) == "privacy_spent"
    assert ledger.total(1e-5).epsilon == pytest.approx(limit)
    assert ledger.total(1e-5, experiment="e1").releases == 1


def test_a_release_counts_once_however_often_it_is_written(ledger: PrivacyLedger) -> None:
    limit = epsilon_of([UPLOAD], 1e-5)
    for _ in range(3):
        assert code_of(ledger, release("one", UPLOAD, epsilon=9.0), most(limit)) is None
    assert ledger.total(1e-5).releases == 1


def test_two_devices_that_share_a_ledger_are_two_even_where_a_coordinator_names_their_tasks_alike(
    ledger: PrivacyLedger,
) -> None:
    one, two = (replace(release(key, UPLOAD, epsilon=9.0), task="task_same") for key in ("a/1", "b/1"))
    assert code_of(ledger, one) is None
    assert code_of(ledger, two) is None
    assert ledger.total(1e-5).releases == 2


def test_a_refund_strikes_one_release_and_no_other(ledger: PrivacyLedger) -> None:
    for key in ("1", "2"):
        ledger.charge(release(key, UPLOAD, epsilon=9.0), ANY)
    ledger.refund("1")
    ledger.refund("none")
    with pytest.raises(PolicyRefused, match="lacks the finished task"):
        ledger.send("1", "a" * 64)
    ledger.send("2", "a" * 64)
    assert ledger.total(1e-5).epsilon == pytest.approx(epsilon_of([UPLOAD], 1e-5))


def test_what_was_sent_is_neither_struck_nor_released_again(ledger: PrivacyLedger) -> None:
    made = release("1", UPLOAD, epsilon=9.0)
    assert (code_of(ledger, made), code_of(ledger, made)) == (None, None)
    ledger.send("1", "a" * 64)
    ledger.send("1", "a" * 64)
    with pytest.raises(PolicyRefused, match="another update of this task was sent before"):
        ledger.send("1", "b" * 64)
    ledger.refund("1")
    assert code_of(ledger, made) == "privacy_recorded"
    assert ledger.total(1e-5).releases == 1


def test_a_later_task_widens_no_promise_of_its_experiment(ledger: PrivacyLedger) -> None:
    first = epsilon_of([UPLOAD], 1e-5)
    told = [code_of(ledger, release(str(n), UPLOAD, epsilon=n * first * 1.01)) for n in (1, 2, 3)]
    assert told == [None, "privacy_unkept", "privacy_unkept"]
    assert code_of(ledger, release("4", UPLOAD, epsilon=first * 1.01, experiment="e2")) is None


def test_a_record_of_an_earlier_version_counts_as_sent(ledger: PrivacyLedger) -> None:
    ledger.charge(release("1", UPLOAD, epsilon=9.0), ANY)
    with sqlite3.connect(ledger.path) as database:
        for column in ("sent", "epsilon", "delta"):
            database.execute(f"ALTER TABLE releases DROP COLUMN {column}")
    ledger.refund("1")
    assert ledger.total(1e-5).releases == 1
    assert code_of(ledger, release("2", UPLOAD, epsilon=9.0)) is None


def test_the_claim_of_a_coordinator_counts_once_for_an_experiment_and_anew_where_it_changes(
    ledger: PrivacyLedger,
) -> None:
    claim, larger = Approximate(1.0, 1e-6), Approximate(1.5, 1e-6)
    policy = most(4.0)
    for key in ("1", "2", "3"):
        assert code_of(ledger, release(key, claim, once=True), policy) is None
    assert ledger.total(1e-5).epsilon == 1.0
    assert code_of(ledger, release("4", larger, once=True), policy) is None
    assert ledger.total(1e-5).epsilon == 2.5
    assert code_of(ledger, release("5", claim, once=True, experiment="e2"), policy) is None
    assert code_of(ledger, release("6", claim, once=True, experiment="e3"), policy) == "privacy_spent"


def test_a_claim_may_use_all_of_the_delta(ledger: PrivacyLedger) -> None:
    assert code_of(ledger, release("1", Approximate(8.0, 1e-5), once=True), most(8.0)) is None
    assert code_of(ledger, release("2", UPLOAD, epsilon=9.0, experiment="e2"), most(80.0)) == "privacy_spent"


@pytest.mark.parametrize("events", [[], [Pure(0.5)], [Pure(0.5), UPLOAD], [Approximate(1.0, 1e-6), UPLOAD]])
def test_more_never_costs_less(events: list[PrivacyEvent]) -> None:
    for more in (UPLOAD, Pure(0.1), Approximate(0.1, 1e-7)):
        assert epsilon_of([*events, more], 1e-5) >= epsilon_of(events, 1e-5)


def test_the_record_is_its_owners_alone_and_nothing_is_made_before_there_is_a_release(ledger: PrivacyLedger) -> None:
    ledger.check(release("1", UPLOAD, epsilon=9.0), ANY)
    ledger.refund("1")
    with pytest.raises(PolicyRefused, match="lacks the finished task"):
        ledger.send("1", "a" * 64)
    assert ledger.total(1e-5).epsilon == 0.0
    assert not ledger.path.exists()
    ledger.charge(release("1", UPLOAD, epsilon=9.0), ANY)
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600


@pytest.mark.parametrize("damage", ["text", "event", "row"])
def test_a_damaged_record_is_refused_by_name(ledger: PrivacyLedger, damage: str) -> None:
    ledger.charge(release("1", UPLOAD, epsilon=9.0), ANY)
    if damage == "text":
        ledger.path.write_text("no database at all, but long enough to be looked at" * 100)
    else:
        changed = '[{"event":"none"}]' if damage == "event" else "["
        with sqlite3.connect(ledger.path) as database:
            database.execute("UPDATE releases SET events = ?", (changed,))
    with pytest.raises(ConfigurationError, match=r"ledger\.db is not a record") as refused:
        ledger.charge(release("2", UPLOAD, epsilon=9.0), ANY)
    assert refused.value.reason == "privacy_ledger"
    assert refused.value.hint


_CHARGE = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[4:]
from test_spending import UPLOAD, code_of, most, release
from coterie.client_sdk.device.spending import PrivacyLedger
ledger = PrivacyLedger(Path(sys.argv[1]))
for number in range(8):
    made = release(f"{sys.argv[2]}/{number}", UPLOAD, epsilon=99.0)
    print(code_of(ledger, made, most(float(sys.argv[3]))))
"""


def test_processes_that_share_a_record_together_keep_the_limit(ledger: PrivacyLedger) -> None:
    limit = epsilon_of([UPLOAD] * 5, 1e-5)
    here = Path(__file__).parent
    running = [
        subprocess.Popen(
            [sys.executable, "-c", _CHARGE, str(ledger.path), name, str(limit), str(here), str(here.parents[1])],
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )
        for name in "abc"
    ]
    told = "".join(process.communicate(timeout=patience(60))[0] for process in running)
    assert [process.returncode for process in running] == [0, 0, 0]
    assert told.count("None") == 5
    assert told.count("privacy_spent") == 3 * 8 - 5
    assert ledger.total(1e-5).releases == 5
