"""A trainer fed by a pipeline: the same steps as over arrays, and gone on from wherever it stood."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.compute import data_sink, nn, optim
from coterie.compute.data import ArraySource, Batched, Context, Dataset, Transform
from coterie.compute.training import Trainer
from coterie.compute.training.supply import Data
from coterie.errors import DataError, InputError

MODEL = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
RNG = np.random.default_rng(3)


def arrays(count: int = 90) -> dict[str, np.ndarray]:
    x = RNG.normal(size=(count, 4)).astype(np.float32)
    return {"x": x, "y": np.argmax(x[:, :3], axis=1).astype(np.int32)}


def trainer(**options: Any) -> Trainer:
    given: dict[str, Any] = {"batch_size": 16, "seed": 5, "metrics": {"accuracy": nn.metrics.accuracy}} | options
    return Trainer(MODEL, nn.losses.softmax_cross_entropy, optim.adam(0.05), **given)


@dataclass(frozen=True)
class Noise(Transform):
    """A little noise of the row's own."""

    def apply(self, value: Any, context: Context) -> Any:
        return value + np.float32(0.1) * context.random.uniform(-1, 1, value.shape).astype(np.float32)


def noisy(data: dict[str, np.ndarray], workers: int = 0) -> Batched:
    """A pipeline of which nobody knows beforehand how many batches it has."""
    rows = Dataset.of(ArraySource(data)).shuffle(1).map(Noise(), "x").filter(lambda x: x[0] > -1.0, "x")
    return rows.batch(16).workers(workers)


@pytest.mark.capability("F8")
@pytest.mark.parametrize("sink_size", [1, 4])
def test_a_shuffled_data_set_trains_as_its_arrays_do(sink_size: int) -> None:
    data = arrays()
    plain, fed = trainer(sink_size=sink_size), trainer(sink_size=sink_size)
    dataset = Dataset.of(ArraySource(data)).shuffle(5)
    ones, others = plain.fit(data, 3), fed.fit(dataset.batch(16).prefetch(2), 3)
    assert ones.losses.tobytes() == others.losses.tobytes() and ones.epochs == others.epochs
    assert len(ones.epochs) == 3 and ones.host_calls == others.host_calls
    assert plain.evaluate(data) == fed.evaluate(Dataset.of(ArraySource(data))) == fed.evaluate(data)
    # What is between epochs can go on with either.
    assert plain.fit(dataset, 1).losses.tobytes() == fed.fit(data, 1).losses.tobytes()


@pytest.mark.capability("F13")
@pytest.mark.parametrize("stops", [(1,), (4, 3), (6,), (9, 2)])
def test_a_training_goes_on_at_any_step_of_a_pipeline(stops: tuple[int, ...], tmp_path: Path) -> None:
    data = arrays()
    whole = trainer()
    expected = whole.fit(noisy(data), 3)
    losses: list[np.ndarray] = []
    for workers, stop in enumerate(stops):
        here = trainer()
        if workers:
            here.load(tmp_path / "stopped.npz")
        losses.append(here.fit(noisy(data, workers), 3, steps=stop).losses)
        here.save(tmp_path / "stopped.npz")
    last = trainer()
    last.load(tmp_path / "stopped.npz")
    per_epoch = len(expected.losses) // 3
    left = 3 - sum(stops) // per_epoch
    losses.append(last.fit(noisy(data, 2), left).losses)
    assert np.concatenate(losses).tobytes() == expected.losses.tobytes()
    assert all((whole.params[name] == value).all() for name, value in last.params.items())


@pytest.mark.capability("F8", "E20")
def test_steps_are_sunk_over_a_device_queue() -> None:
    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        return state + batch["x"].sum(), batch["sample_weight"].sum()

    data = arrays(40)
    with Dataset.of(ArraySource(data)).batch(8).device_queue() as queue:
        sink = data_sink(step, queue, sink_size=5)
        total, weights = sink(np.zeros((), np.float32))
        sink.close()
    assert np.asarray(weights.numpy()).tolist() == [8.0] * 5
    np.testing.assert_allclose(total.numpy(), data["x"].sum(), rtol=1e-4)


def sized(size: int) -> Batched:
    return Dataset.of(ArraySource(arrays())).batch(size)


def late_label() -> Data:
    data = arrays()
    data["y"][-1] = 3
    return Dataset.of(ArraySource(data))


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "size": (lambda: trainer().fit(sized(8)), InputError, "have 8 rows, the trainer's batch_size is 16"),
    "sync": (lambda: trainer().fit(sized(16).sync_wait("a", every=1, initial=0)), InputError, "sync points"),
    "label": (lambda: trainer(label="z").fit(sized(16)), InputError, "must have the label 'z'"),
    "text": (
        lambda: trainer().fit(Dataset.of(ArraySource(arrays(3) | {"t": ["a", "b", "c"]}))), InputError, "'t' must be a"
    ),
    "late label": (lambda: trainer().fit(late_label()), InputError, "goes from 0 to 3"),
    "nothing": (lambda: trainer().fit(Dataset.of(ArraySource(arrays())).take(0)), DataError, "no row is left"),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_pipelines_that_do_not_fit_are_refused(case: str) -> None:
    act, kind, said = REFUSED[case]
    with pytest.raises(kind, match=said):
        act()


@dataclass(frozen=True)
class Only(Transform):
    """Keeps rows in the passes named."""

    passes: tuple[int, ...]

    def apply(self, value: Any, context: Context) -> Any:
        return context.epoch in self.passes


@pytest.mark.parametrize(("passes", "epoch"), [((0,), 2), ((0, 2), 2), ((0, 1), 3)])
def test_an_epoch_without_rows_is_refused_by_its_number(passes: tuple[int, ...], epoch: int) -> None:
    data = Dataset.of(ArraySource(arrays())).filter(Only(passes), "y")
    with pytest.raises(DataError, match=rf"Epoch {epoch} of .*filter\(Only.* has no batch"):
        trainer().fit(data, 3)
    assert len(trainer().fit(data, len(passes) if passes == (0, 1) else 1).losses)


def test_in_the_middle_of_an_epoch_the_data_is_not_exchanged() -> None:
    data = arrays()
    here = trainer()
    here.fit(data, steps=2)
    with pytest.raises(InputError, match="in the middle of an epoch over arrays"):
        here.fit(noisy(data))
    there = trainer()
    there.fit(noisy(data), steps=2)
    with pytest.raises(InputError, match="in the middle of an epoch over a pipeline"):
        there.fit(data)
    with pytest.raises(InputError, match="another pipeline"):
        there.fit(Dataset.of(ArraySource(data)).batch(16))
    there.fit(noisy(data))
    there.fit(data)


@dataclass(frozen=True)
class Weighed(Transform):
    """The column ``w`` as weights of the rows."""

    def apply(self, value: Any, context: Context) -> Any:
        kept = {name: column for name, column in value.items() if name != "w"}
        return kept | {"sample_weight": value["sample_weight"] * value["w"]}


def test_a_pipeline_weighs_rows_by_a_column_as_arrays_do_by_an_argument() -> None:
    data, weight = arrays(), (np.arange(90) % 3).astype(np.float32)
    plain, fed = trainer(), trainer()
    pipeline = Dataset.of(ArraySource({**data, "w": weight})).shuffle(5).batch(16, per_batch_map=Weighed())
    losses = fed.fit(pipeline, 2).losses
    np.testing.assert_array_equal(plain.fit(data, 2, sample_weight=weight).losses, losses)
    assert plain.evaluate(data, sample_weight=weight)["loss"] == pytest.approx(fed.evaluate(pipeline)["loss"], rel=1e-5)
    with pytest.raises(InputError, match="sample_weight goes with arrays") as told:
        plain.fit(pipeline, sample_weight=weight)
    assert "per_batch_map" in (told.value.hint or "")
