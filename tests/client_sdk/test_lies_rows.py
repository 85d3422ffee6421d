"""A coordinator that asks by silence: what a device without a certain row does under a promise of privacy, and who may
sign the steps that keep one.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from liar import Lying, devices, lying_coordinator, refusals
from relay import task as asked
from relay import terms
from sdk_kit import SCHEMA, experiment, kinds, rows

from coterie.aggregation.compiling import graphs
from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.client_sdk.control.submission import Submission, send
from coterie.client_sdk.device.membership import Membership
from coterie.client_sdk.device.outcome import PreparedTask
from coterie.client_sdk.device.policy import DevicePolicy
from coterie.client_sdk.device.spending import PrivacyLedger
from coterie.client_sdk.device.trainers.plan import PlanTrainer
from coterie.client_sdk.device.work import work
from coterie.client_sdk.rows.loading import load_fitting
from coterie.compute.optim import sgd
from coterie.privacy.dp import poisson
from coterie.privacy.dp.noise.source import NoiseSource
from coterie.protocol.claims import PrivacyTerms
from coterie.protocol.privacy import ExampleLevel, LocalLevel, UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.signing import SigningKey
from coterie.server.rounds import asking

DECLARED = DataSchema(
    (*SCHEMA.features, Feature(name="ill", dtype="uint8", shape=(63,), encoding="utf-8")),
    Label(name="unlabelled", constant=0),
)
FINER = DataSchema(SCHEMA.features, Label(name="ill", classes=("flu", "gout"), others="dropped"))
ALONE = RoundPolicy(rounds=1, cohort=2, weight_cap=1, evaluate_every=0)
TOGETHER = RoundPolicy(rounds=1, cohort=6, min_updates=5, weight_cap=1, evaluate_every=0)
TRUSTS_THE_DEVICE = 'max_epsilon = 0.5\ntrusts = ["device"]\n'
LEVELS: dict[str, tuple[Any, RoundPolicy, str]] = {
    "noise of the device": (
        LocalLevel(mechanism="gaussian", epsilon=0.1, delta=1e-6, clip=0.5),
        ALONE,
        TRUSTS_THE_DEVICE,
    ),
    "private rows": (ExampleLevel(clip=1.0, delta=1e-6, noise_multiplier=50.0, rows=40), ALONE, TRUSTS_THE_DEVICE),
    "noise of a cohort": (
        UserLevel(clip=0.5, delta=1e-6, noise_multiplier=8.0, mechanism="discrete_gaussian"),
        TOGETHER,
        'max_epsilon = 30.0\ntrusts = ["cohort"]\nrequire_secure_aggregation = true\n',
    ),
}


def held(flu: int) -> Mapping[str, Any]:
    """Forty rows, so many of them ill with what the coordinator asks about."""
    return {"x": rows()["x"], "ill": np.array(["flu"] * flu + ["cold"] * (40 - flu))}


def in_the_ward(lying: Lying, level: Any, policy: RoundPolicy, wanted: Experiment | None = None) -> str:
    """An experiment that reads one class of the rows of a population; the token to join it."""

    async def made() -> None:
        control = lying.control()
        try:
            await control.ensure_population("ward", DECLARED)
        finally:
            await control.close()

    asyncio.run(made())
    secure = isinstance(level, UserLevel)
    if wanted is None:
        wanted = experiment("ward", schema=FINER, rounds=policy, privacy=level, secure_aggregation=secure, holdout=0.0)
    return lying.submit(wanted, population="ward")[1]


@pytest.mark.parametrize("case", LEVELS)
def test_a_device_without_a_row_of_a_class_does_what_one_with_such_a_row_does(tmp_path: Path, case: str) -> None:
    level, policy, text = LEVELS[case]
    count = policy.cohort
    with lying_coordinator(tmp_path) as lying:
        token = in_the_ward(lying, level, policy)
        data = [held(1)] * (count - 1) + [held(0)]
        with devices(lying, token, tmp_path, count=count, policy=text, data=data) as running:
            told = [device.events() for device in running]
        said: dict[str, list[str]] = {}
        for device, path, _ in lying.liar.heard:
            if "/tasks/" in path and not path.endswith("/progress"):
                said.setdefault(device, []).append(path.rsplit("/", 1)[-1])
    assert [refusals(events) for events in told] == [[]] * count
    assert [event["code"] for events in told for event in events if event["event"] == "unusable"] == ["data_empty"]
    assert len(said) == count
    assert len({tuple(sorted(set(paths))) for paths in said.values()}) == 1
    spent = [PrivacyLedger(tmp_path / f"device-{n}" / "state" / "ledger.db").total(1e-5) for n in (0, count - 1)]
    assert spent[0] == spent[1]
    assert spent[0].releases == 1


@pytest.mark.parametrize("flu", [40, 41])
def test_how_often_a_row_is_drawn_does_not_follow_from_how_many_have_its_class(
    flu: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One ill row more would change how often all others are drawn: weights under which these pull together, and it
    against them, tell of it at twice the promise.
    """
    level = ExampleLevel(clip=1.0, delta=1e-6, noise_multiplier=50.0, rows=40)
    made = compile_plan(
        experiment("ward", schema=FINER, rounds=ALONE, privacy=level, secure_aggregation=False, holdout=0.0)
    )
    data = {"x": rows(41)["x"], "ill": np.array(["flu"] * flu + ["cold"] * (41 - flu))}
    read = load_fitting(data, FINER)
    told: list[tuple[int, float]] = []
    drawn = poisson.draw_rows

    def listening(count: int, rate: float, source: NoiseSource) -> npt.NDArray[np.int64]:
        told.append((count, rate))
        return drawn(count, rate, source)

    monkeypatch.setattr(poisson, "draw_rows", listening)
    member = Membership(
        device_id="dev_" + "0" * 32,
        population="ward",
        url="",
        coordinator_key="",
        signers=frozenset(),
        schema=DECLARED,
        rows=load_fitting(data, DECLARED),
        source=data,
    )
    promise = PrivacyTerms(unit="example", epsilon=1.0, delta=1e-5, mechanism="dp_sgd", trusts="device")
    task = asked(terms(10), member.device_id).model_copy(
        update={"secure": None, "privacy": promise, "hyper": {}, "weight_cap": 1}
    )
    work(
        PreparedTask(task=task, plan=made.plan, weights=made.initial, frozen={}),
        member,
        DevicePolicy(),
        PlanTrainer(),
        {},
    )
    assert len(read["ill"]) == flu
    assert set(told) == {(flu, 8 / 41)}


def test_a_device_draws_its_few_rows_of_a_class_as_seldom_as_all_others(tmp_path: Path) -> None:
    """Of 100 000 rows four are ill. Were it these alone that count, three of four would be drawn in the only step."""
    level = ExampleLevel(clip=1.0, delta=1e-6, noise_multiplier=0.01, rows=4)
    wanted = experiment(
        "ward",
        schema=FINER,
        rounds=RoundPolicy(rounds=1, cohort=1, weight_cap=1, evaluate_every=0),
        privacy=level,
        secure_aggregation=False,
        holdout=0.0,
        optimizer=sgd(1.0),
        batch_size=3,
        max_steps=1,
    )
    many = 100_000
    data = {"x": rows(many)["x"], "ill": np.array(["flu"] * 4 + ["cold"] * (many - 4))}
    with lying_coordinator(tmp_path) as lying:
        token = in_the_ward(lying, level, wanted.rounds, wanted)
        with devices(lying, token, tmp_path, data=[data]) as (device,):
            told = device.events()
    (length,) = noise_of(lying)
    assert refusals(told) == []
    assert 0.001 < length < 0.06, "the noise of one step, and no row"


def test_a_plan_that_no_trainer_here_runs_is_refused_with_such_rows_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator gives a task to devices that lack the trainer which its plan needs."""

    def nothing(*_: object) -> None: ...

    monkeypatch.setattr(asking, "lacks", nothing)
    level, policy, text = LEVELS["noise of the device"]
    wanted = Experiment(
        name="ward",
        model=ExternalModel({"w": (4, 3)}),
        schema=FINER,
        rounds=policy,
        privacy=level,
        secure_aggregation=False,
    )
    with lying_coordinator(tmp_path) as lying:
        token = in_the_ward(lying, level, policy, wanted)
        with devices(lying, token, tmp_path, count=2, policy=text, data=[held(1), held(0)]) as running:
            told = [device.events() for device in running]
    assert [refusals(events) for events in told] == [["plan_stage_absent"]] * 2


def noise_of(lying: Lying) -> Sequence[float]:
    """The lengths of what devices uploaded."""
    found: list[float] = []
    for body in lying.bodies("/update"):
        if body:
            start = 8 + int.from_bytes(body[:8], "little")
            numbers = np.frombuffer(body[start : start + (len(body) - start) // 4 * 4], np.float32)
            found.append(float(np.linalg.norm(np.nan_to_num(numbers))))
    return found


def test_a_joined_device_takes_no_signer_by_the_coordinators_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator adds a key of its own to the population, waits until the device comes back with its token, and
    signs steps that drop the noise that the plan states.
    """
    private = ExampleLevel(clip=1.0, delta=1e-5, noise_multiplier=1000.0, rows=40)
    policy = RoundPolicy(rounds=4, cohort=1, weight_cap=1, evaluate_every=0)
    own = SigningKey.from_seed(b"e" * 32)
    with lying_coordinator(tmp_path) as lying:
        first, token = lying.submit(experiment("own", rounds=policy, privacy=private))
        with devices(lying, token, tmp_path, policy='max_epsilon = 1.0\ntrusts = ["device"]\n') as (device,):
            assert "uploaded" in kinds(device.events())
        honest = noise_of(lying)
        made = graphs.noised_mean

        def hushed(total: Any, noise: Any, *, grid: float, count: float) -> Any:
            return made(total, noise, grid=grid * 0.5**30, count=count)

        monkeypatch.setattr(graphs, "noised_mean", hushed)

        async def replaced() -> None:
            control = lying.control()
            try:
                await control.stop(first)
                again = experiment("own", rounds=policy, privacy=private, seed=7)
                await send(control, Submission(experiment=again, key=own, population="own"))
            finally:
                await control.close()

        asyncio.run(replaced())
        with devices(lying, token, tmp_path, policy='max_epsilon = 1.0\ntrusts = ["device"]\n') as (device,):
            told = device.events()
    assert refusals(told) == ["signer_refused"]
    assert own.public in next(event["hint"] for event in told if event["event"] == "refused")
    assert noise_of(lying) == honest
    assert honest[0] > 50
