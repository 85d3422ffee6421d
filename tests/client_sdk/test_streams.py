"""A data set as a device's data: rows that are made for each batch, which train as arrays of the same rows do."""

import asyncio
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sdk_kit import SCHEMA, Lab, experiment, hear, rows, run

from coterie.aggregation.compiling.compile import compile_plan
from coterie.client_sdk.device.holdout import split
from coterie.client_sdk.device.policy import DevicePolicy
from coterie.client_sdk.device.trainers.base import LocalTask, LocalWork, Rows, TrainOptions
from coterie.client_sdk.device.trainers.external import ExternalTrainer
from coterie.client_sdk.device.trainers.plan import PlanTrainer, step_feeds
from coterie.client_sdk.rows.loading import load_data, load_rows
from coterie.compute.data import ArraySource, Context, Dataset, Transform
from coterie.compute.data.streamed_rows import StreamedRows
from coterie.compute.data.supply import column_of, row_count
from coterie.errors import ArgumentValueError, DataError, PolicyRefused
from coterie.protocol.privacy import ExampleLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label

HELD = rows(90, 1)
PLAN = compile_plan(experiment(epochs=3, holdout=0.2))
TASK = LocalTask(experiment="exp", round=1, seed=7)
SPECIES = replace(SCHEMA, label=Label(name="y", classes=("a", "b"), others="dropped"))


@dataclass(frozen=True)
class Jitter(Transform):
    """Some noise."""

    def apply(self, value: Any, context: Context) -> Any:
        return value + context.random.uniform(-0.01, 0.01, value.shape).astype(np.float32)


@dataclass(frozen=True)
class Later(Transform):
    """What ``change`` makes of a value from the second epoch on."""

    change: Callable[[Any], Any]

    def apply(self, value: Any, context: Context) -> Any:
        return self.change(value) if context.epoch else value


@dataclass(frozen=True)
class Keeps(Transform):
    """Whether a row stays: by chance, or never after the first epoch."""

    never: bool = False

    def apply(self, value: Any, context: Context) -> Any:
        return (context.epoch == 0 or not self.never) and context.random.uniform() < (1 if self.never else 0.6)


def held(**changes: Any) -> Dataset:
    return Dataset.of(ArraySource({**HELD, **changes}))


def double(value: Any) -> Any:
    return value * 2


def work_on(given: Rows, task: LocalTask = TASK, **options: Any) -> LocalWork:
    return LocalWork(plan=PLAN.plan, task=task, weights=PLAN.initial, rows=given, options=TrainOptions(**options))


def stream(dataset: Dataset, schema: DataSchema = SCHEMA) -> StreamedRows:
    found = load_rows(dataset, schema)
    assert isinstance(found, StreamedRows)
    return found


def feeds(given: Rows, task: LocalTask = TASK) -> list[dict[str, bytes]]:
    return [{name: value.tobytes() for name, value in fed.items()} for fed in step_feeds(work_on(given, task))]


def same(one: Mapping[str, NDArray[Any]], other: Mapping[str, NDArray[Any]]) -> bool:
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


ALIKE: dict[str, tuple[Dataset, DataSchema]] = {
    "plain": (held(), SCHEMA),
    "mapped": (held(x=HELD["x"] / 2).map(double, "x"), SCHEMA),
    "shuffled": (held().shuffle(3), SCHEMA),
    "filtered": (held(n=np.arange(90)).filter(lambda n: bool(n % 3), "n"), SCHEMA),
    "taken after a filter": (held(n=np.arange(90)).filter(lambda n: bool(n % 3), "n").take(40), SCHEMA),
    "repeated": (held().take(20).repeat(3), SCHEMA),
    "other classes": (held(y=np.array(["a", "b", "c"])[HELD["y"]].tolist()), SPECIES),
    "fewer than a batch": (held().take(5), SCHEMA),
}


@pytest.mark.capability("F8")
@pytest.mark.parametrize("name", sorted(ALIKE))
def test_without_chance_a_stream_trains_bit_for_bit_as_arrays_of_its_rows_do(name: str) -> None:
    dataset, schema = ALIKE[name]
    arrays, streamed = load_data(dataset, schema), stream(dataset, schema)
    assert row_count(streamed) == row_count(arrays) and streamed.read == arrays.read
    trainer = PlanTrainer()
    for part, whole in zip(split(streamed, 0.2), split(arrays, 0.2), strict=True):
        assert row_count(part) == row_count(whole)
        assert column_of(part, "y").tolist() == column_of(whole, "y").tolist()
        if row_count(part):
            assert feeds(part) == feeds(whole)
            assert trainer.evaluate(work_on(part)) == trainer.evaluate(work_on(whole))
    expected, found = trainer.train(work_on(arrays)), trainer.train(work_on(streamed))
    assert same(expected.sections, found.sections)
    assert (expected.weight, expected.steps) == (found.weight, found.steps)


@pytest.mark.capability("F8")
def test_every_epoch_and_every_task_draws_anew_and_a_task_that_is_done_again_draws_the_same() -> None:
    streamed = stream(held().map(Jitter(), "x"))
    first = list(step_feeds(work_on(streamed)))
    again = feeds(stream(held().map(Jitter(), "x")))
    assert [{name: value.tobytes() for name, value in fed.items()} for fed in first] == again
    other = list(step_feeds(work_on(streamed, replace(TASK, round=2, seed=8))))
    seen = np.concatenate([fed["batch/x"][fed["batch/sample_weight"] > 0] for fed in [*first, *other]])
    assert len(seen) == 90 * 6 and len(np.unique(seen[:, 0])) > 90 * 5
    assert np.abs(seen[:, None] - HELD["x"]).max(-1).min(-1).max() <= 0.011
    trainer = PlanTrainer()
    assert same(trainer.train(work_on(streamed)).sections, PlanTrainer().train(work_on(streamed)).sections)
    assert trainer.evaluate(work_on(streamed)) == trainer.evaluate(work_on(streamed))


@pytest.mark.capability("F8")
def test_memory_holds_a_few_batches_however_many_rows_there_are() -> None:
    row, count = 16_384, 4_096
    schema = DataSchema((Feature(name="x", shape=(row,)),), Label(name="y", low=0, high=2))
    small = ArraySource({"n": np.arange(count), "y": (np.arange(count) % 3).astype(np.int32)})
    dataset = Dataset.of(small).map(lambda n: np.full(row, n, np.float32), "n", outputs="x").shuffle(1)
    tracemalloc.start()
    try:
        train, evaluated = split(stream(dataset, schema), 0.2)
        work = work_on(train)
        batch = sum(1 for _ in step_feeds(work))
        assert batch == 3 * -(-row_count(train) // 8) and row_count(train) + row_count(evaluated) == count
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # All rows are 256 MiB; the 32 that are looked at while they are checked are 2 MiB, and are copied once or twice.
    assert peak < 12 << 20


def test_rows_that_are_held_out_are_never_trained_on_whatever_is_shuffled_or_drawn() -> None:
    marked = {"x": np.repeat(np.arange(90, dtype=np.float32)[:, None] / 10, 4, 1), "y": HELD["y"]}
    dataset = Dataset.of(ArraySource(marked)).shuffle(5).map(Jitter(), "x")
    train, evaluated = split(stream(dataset), 0.3)
    ids = [
        {round(float(x) * 10) for fed in step_feeds(work_on(part)) for x in fed["batch/x"][:, 0]}
        for part in (train, evaluated)
    ]
    assert ids[0] | ids[1] == set(range(90)) and not ids[0] & ids[1]
    assert len(ids[0]) == row_count(train) and len(ids[1]) == row_count(evaluated) > 10


def test_a_row_that_a_filter_drops_by_chance_is_left_out_of_its_batch() -> None:
    streamed = stream(held().map(Jitter(), "x").filter(Keeps(), "y"))
    assert 30 < row_count(streamed) < 75
    weights = [float(fed["batch/sample_weight"].sum()) for fed in step_feeds(work_on(streamed))]
    assert 0 < min(weights) and sum(weights) < 3 * row_count(streamed)
    result = PlanTrainer().train(work_on(streamed))
    assert result.weight == row_count(streamed) and result.steps == len(weights)


def low(value: Any) -> Any:
    return value - 100


def longer(value: Any) -> Any:
    return np.append(value, np.float32(0))


def text(value: Any) -> Any:
    return "many"


def seventh(value: Any) -> Any:
    if value == 7:
        raise ValueError("seven")
    return value


LATE: dict[str, tuple[Dataset, str, str]] = {
    "bound": (held().map(Later(low), "x"), "data_cell", r"the pipeline given: column 'x', row \d+, element"),
    "shape": (held().map(Later(longer), "x"), "data_shape", r"column 'x' has examples of shape \[5\].* shape \[4\]"),
    "dtype": (held().map(Later(text), "y"), "data_cell", r"column 'y', row \d+: 'many' is not a number"),
    "class": (held().map(Later(double), "y"), "data_cell", r"column 'y', row \d+: \d is too high"),
    "operation": (
        held(n=np.arange(90)).map(Later(seventh), "n").map(double, "x"), "data_step", r"Later.* failed at row 8.*seven"
    ),
    "no row": (held().filter(Keeps(never=True), "y"), "data_empty", r"Epoch 2 of .*filter\(Keeps.* has no batch"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(LATE))
def test_what_does_not_fit_in_a_later_epoch_is_refused_by_name(name: str) -> None:
    dataset, code, said = LATE[name]
    streamed = stream(dataset)
    with pytest.raises(DataError, match=said) as caught:
        PlanTrainer().train(work_on(streamed))
    assert caught.value.reason == code
    if name != "no row":
        told = " ".join(caught.value.__notes__)
        assert "In epoch 2 of" in told and f"written at: {__file__}:" in told


def mixed(n: Any) -> Any:
    return np.zeros(4 + n % 2, np.float32)


FIRST: dict[str, tuple[Dataset, type[Exception], str]] = {
    "bound": (held(x=np.where(np.arange(90)[:, None] == 70, 99, HELD["x"])), DataError, "row 71, element .*too high"),
    "shapes": (
        held(n=np.arange(90)).map(mixed, "n", outputs="x"), DataError,
        r"Column 'x': the rows hold values of shapes \(4,\) and \(5,\)",
    ),
    "no end": (held().repeat(), ArgumentValueError, "no end"),
    "nothing": (held().take(0), DataError, "there are no rows"),
    "nothing left": (held().filter(lambda y: False, "y"), DataError, "there are no rows|No row is left"),
    "no column": (held().select("x"), DataError, "column 'y' is missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(FIRST))
def test_what_does_not_fit_at_all_is_refused_before_anything_is_trained(name: str) -> None:
    dataset, kind, said = FIRST[name]
    with pytest.raises(kind, match=said):
        load_rows(dataset, SCHEMA)


def test_what_needs_all_rows_refuses_a_stream_by_name() -> None:
    level = ExampleLevel(clip=0.7, delta=1e-5, noise_multiplier=0.9, rows=50)
    rounds = RoundPolicy(rounds=2, cohort=1, weight_cap=1, evaluate_every=0)
    private = compile_plan(experiment(privacy=level, rounds=rounds, holdout=0.0, metrics={}))
    work = replace(work_on(stream(held())), plan=private.plan, weights=private.initial)
    with pytest.raises(PolicyRefused, match=r"Example-level privacy.* needs all rows at hand") as caught:
        PlanTrainer().train(work)
    assert caught.value.reason == "data_streamed" and "dataset.arrays()" in (caught.value.hint or "")
    own = ExternalTrainer(lambda params, task: (params, 1, 1, {}), lambda params, task: (1, {}))
    with pytest.raises(PolicyRefused, match="A trainer of one's own needs all rows at hand"):
        own.evaluate(work_on(stream(held())))


def test_a_device_refuses_a_task_that_needs_all_rows_before_it_looks_at_one(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        level = ExampleLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0, rows=40)
        policy = RoundPolicy(rounds=1, cohort=1, weight_cap=1, evaluate_every=0)
        wanted = experiment("own", rounds=policy, privacy=level, max_steps=5, holdout=0.0, metrics={})
        await place.submit(wanted)
        events: list[dict[str, Any]] = []
        taken = DevicePolicy(max_epsilon=50.0, trusts=frozenset({"device"}), units=frozenset({"example"}))
        agent = await place.agent("own", data=held(), policy=taken, on_event=hear(events))
        async with asyncio.timeout(60):
            running = asyncio.create_task(agent.run(rounds=1))
            while not any(event["event"] == "refused" for event in events):
                await asyncio.sleep(0.02)
            agent.stop()
            await running
        refused = next(event for event in events if event["event"] == "refused")
        assert refused["code"] == "data_streamed" and "Example-level privacy" in refused["message"]

    run(work, tmp_path)


MODULE = """
import numpy as np
from coterie.compute.data import ArraySource, Dataset

dataset = Dataset.of(ArraySource({"x": np.ones((6, 4), np.float32), "y": np.zeros(6, np.int32)}))
def made(schema): return dataset.take(4)
source = ArraySource({"x": np.ones((3, 4), np.float32), "y": np.zeros(3, np.int32)})
"""


def test_a_data_set_is_found_by_the_name_of_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "streamed_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    found = [load_rows(f"streamed_module:{name}", SCHEMA) for name in ("dataset", "made", "source")]
    assert [row_count(each) for each in found] == [6, 4, 3]
    assert [isinstance(each, StreamedRows) for each in found] == [True, True, False]
    assert load_data("streamed_module:made", SCHEMA)["x"].shape == (4, 4)


@pytest.mark.capability("F8")
def test_a_device_trains_and_evaluates_on_a_stream(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        policy = RoundPolicy(rounds=3, cohort=1, evaluate_every=1)
        view = await place.submit(experiment("stream", rounds=policy, epochs=4))
        agent = await place.agent("stream", data=held().shuffle(2).map(Jitter(), "x"))
        summary = await agent.run(rounds=3)
        assert (summary.trained, summary.counted, summary.failed) == (3, 3, 0)
        history = await place.control.history(view.id)
        assert [value for _, value in history.curve("accuracy")][-1] > 0.9

    run(work, tmp_path)
