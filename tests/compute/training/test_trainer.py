"""The trainer: it learns, stops and goes on bit for bit, sinks its loop, and names what does not fit."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.compute import jit, nn, optim, step, training
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.data.batches import Batches
from coterie.compute.ir import NDArray
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.step.precision import Precision
from coterie.compute.step.step import TrainStep
from coterie.compute.training.accumulation import accumulate
from coterie.compute.training.trainer import Trainer
from coterie.errors import ConfigurationError, InputError, TraceError

Data = dict[str, NDArray]


def rows(count: int = 90, seed: int = 0) -> Data:
    """Three classes around three points."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count).astype(np.int32)
    centres = np.array([[3, 0, 0, 1], [0, 3, 0, -1], [0, 0, 3, 0]], np.float32)
    return {"x": centres[y] + rng.normal(size=(count, 4)).astype(np.float32), "y": y}


MODEL = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
OPTIMIZERS: dict[str, optim.Optimizer] = {
    "momentum": optim.sgd(0.05, momentum=0.9),
    "adam": optim.adam(0.02),
    "accumulated": accumulate(optim.adam(0.02), 3),
}


def trainer(optimizer: optim.Optimizer | None = None, **options: Any) -> Trainer:
    chosen: dict[str, Any] = {"metrics": {"accuracy": accuracy}, "batch_size": 16, "seed": 5, **options}
    return Trainer(chosen.pop("model", MODEL), softmax_cross_entropy, optimizer or optim.adam(0.02), **chosen)


@pytest.mark.capability("B11")
def test_b11_a_workflow_from_data_to_test(tmp_path: Path) -> None:
    train, test = rows(), rows(60, seed=9)
    fitted = trainer()
    before = fitted.evaluate(test)
    fit = fitted.fit(train, epochs=8)
    after = fitted.evaluate(test)
    assert after["accuracy"] > 0.8 > before["accuracy"] and after["loss"] < before["loss"]
    assert len(fit.losses) == fit.host_calls == 8 * 6 and len(fit.epochs) == 8 and fit.epochs[-1] < fit.epochs[0]
    fitted.save(tmp_path / "model.npz")
    other = trainer()
    other.load(tmp_path / "model.npz")
    assert other.evaluate(test) == after


@pytest.mark.capability("B11")
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("stop", [6, 11], ids=["after an epoch", "within one"])
def test_b11_resume_gives_the_same_losses_bit_for_bit(optimizer: optim.Optimizer, stop: int, tmp_path: Path) -> None:
    data, whole = rows(), trainer(optimizer)
    straight = np.concatenate([whole.fit(data, epochs=2).losses, whole.fit(data, epochs=2).losses])
    first, second = trainer(optimizer), trainer(optimizer)
    losses = first.fit(data, epochs=4, steps=stop).losses
    first.save(tmp_path / "half.npz")
    second.load(tmp_path / "half.npz")
    losses = np.concatenate([losses, second.fit(data, epochs=4 - stop // 6).losses])
    assert losses.tobytes() == straight.tobytes()
    for name, value in whole.params.items():
        assert value.tobytes() == second.params[name].tobytes(), name


@pytest.mark.parametrize("sink_size", [4, 5])
def test_sunk_steps_equal_plain_ones_with_fewer_host_calls(sink_size: int) -> None:
    data = rows()
    plain, sunk = trainer(), trainer(sink_size=sink_size)
    left, right = plain.fit(data, epochs=2), sunk.fit(data, epochs=2)
    np.testing.assert_allclose(right.losses, left.losses, rtol=2e-6, atol=1e-7)
    assert (left.host_calls, right.host_calls) == (12, -(-12 // sink_size))
    for name, value in plain.params.items():
        np.testing.assert_allclose(sunk.params[name], value, rtol=1e-5, atol=1e-6)


FAMILIES: dict[str, tuple[nn.Module, tuple[int, ...], int, optim.Optimizer, Precision | None]] = {
    "convolution, running statistics and dropout": (
        nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(64, 3)
        ),
        (1, 6, 6),
        0,
        optim.lbfgs(0.1, memory=2),
        None,
    ),
    "recurrent": (
        nn.Sequential(nn.Embedding(9, 8), nn.GRU(8, 8), nn.MeanPool(), nn.Linear(8, 3)),
        (5,),
        9,
        accumulate(optim.adam(0.01), 2),
        Precision(scale=256.0),
    ),
    "attention": (
        nn.Sequential(nn.Embedding(9, 8), nn.TransformerBlock(8, 2, 16), nn.MeanPool(), nn.Linear(8, 3)),
        (5,),
        9,
        optim.shampoo(0.1),
        Precision(dtype="bfloat16", scale=256.0),
    ),
}


@pytest.mark.capability("E20")
@pytest.mark.parametrize(("model", "shape", "ids", "optimizer", "precision"), FAMILIES.values(), ids=FAMILIES)
def test_e20_every_family_of_layers_can_be_sunk(
    model: nn.Module, shape: tuple[int, ...], ids: int, optimizer: optim.Optimizer, precision: Precision | None
) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(0, ids, (40, *shape), np.int32) if ids else rng.normal(size=(40, *shape)).astype(np.float32)
    data = {"x": x, "y": rng.integers(0, 3, 40).astype(np.int32)}
    plain, sunk = (trainer(optimizer, model=model, precision=precision, sink_size=size) for size in (1, 4))
    left, right = plain.fit(data, epochs=2), sunk.fit(data, epochs=2)
    assert (left.host_calls, right.host_calls) == (6, 2)
    np.testing.assert_allclose(right.losses, left.losses, rtol=1e-5)
    for name, value in plain.params.items():
        np.testing.assert_allclose(sunk.params[name], value, rtol=1e-4, atol=1e-5)


def test_running_statistics_are_trained_saved_and_used(tmp_path: Path) -> None:
    data = rows()
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    fitted, sunk = trainer(model=model), trainer(model=model, sink_size=3)
    fitted.fit(data, epochs=4)
    sunk.fit(data, epochs=4)
    assert np.abs(fitted.params["1.running_mean"]).max() > 0.01
    for name, value in fitted.params.items():
        np.testing.assert_allclose(sunk.params[name], value, rtol=1e-4, atol=1e-5)
    assert fitted.evaluate(rows(60, 9))["accuracy"] > 0.8


def test_a_schedule_reaches_every_step() -> None:
    data = rows()
    still = trainer(optim.sgd(0.5), schedules={"lr": optim.step_decay(0.5, factor=0.0, every=3)})
    three = trainer(optim.sgd(0.5))
    still.fit(data)
    three.fit(data, steps=3)
    for name, value in three.params.items():
        assert value.tobytes() == still.params[name].tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_learns_too(dtype: Any) -> None:
    data = rows()
    full, half = trainer(), trainer(precision=Precision(dtype=dtype, scale=1024.0))
    left, right = full.fit(data, epochs=6), half.fit(data, epochs=6)
    np.testing.assert_allclose(right.epochs, left.epochs, rtol=0.05)
    assert half.evaluate(rows(60, 9))["accuracy"] > 0.8


def test_a_script_of_plain_functions_over_arrays() -> None:
    """The same in the manner of a NumPy script: parameters are a dict, the model is a function."""
    data, rng = rows(), np.random.default_rng(1)
    params = {"w": rng.normal(size=(4, 3)).astype(np.float32), "b": np.zeros(3, np.float32)}

    def objective(params: dict[str, Array], batch: dict[str, Array]) -> Array:
        return softmax_cross_entropy(batch["x"] @ params["w"] + params["b"], batch["y"])

    train = TrainStep(objective, optim.sgd(0.5))
    step = jit(train)
    state, losses = train.init(params), list[float]()
    for batch in Batches(data, batch_size=32, epochs=10):
        state, loss = step(state, batch)
        losses.append(loss.item())
    assert np.mean(losses[-3:]) < 0.5 < losses[0] and step.compilations == 1
    predicted = np.argmax(data["x"] @ state["params"]["w"].numpy() + state["params"]["b"].numpy(), axis=1)
    assert np.mean(predicted == data["y"]) > 0.8


def test_an_objective_of_one_number_is_taken_as_it_is() -> None:
    step = TrainStep(lambda params, batch: xp.sum(params["w"] * batch["x"]), optim.sgd(1.0))
    state, loss = step(step.init({"w": np.ones(2, np.float32)}), {"x": np.array([1, 3], np.float32)})
    assert loss.item() == 4 and state["params"]["w"].numpy().tolist() == [0, -2]


MISTAKES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: trainer(sink_size=0), InputError, "sink_size must be a whole number of at least 1"),
    (lambda: trainer(sink_size=2, provider="WebGpuExecutionProvider"), ConfigurationError, "WebGpu.* has no Loop"),
    (lambda: trainer(schedules={"rate": optim.constant(1)}), InputError, "adam has no hyper-parameter rate"),
    (lambda: trainer().fit(rows(), epochs=0), InputError, "epochs must be a whole number of at least 1, got 0"),
    (lambda: trainer().fit(rows(), steps=2.5), InputError, "steps must be a whole number of at least 1, got 2.5"),  # pyright: ignore[reportArgumentType]
    (lambda: trainer(batch_size=2.5), InputError, "batch_size must be a whole number"),
    (lambda: trainer(seed="a"), InputError, "seed must be a whole number"),
    (lambda: trainer(model=nn.Linear), InputError, "the model must be an nn.Module, .*got the class Linear"),
    (lambda: trainer(optim.adam), InputError, "optimizer must be an Optimizer, .*got the function adam"),  # pyright: ignore[reportArgumentType]
    (lambda: trainer(precision="float16"), InputError, "precision must be a Precision, .*got 'float16'"),
    (lambda: trainer(metrics=["accuracy"]), InputError, "the metrics must be functions by name, got a list"),
    (lambda: trainer(metrics={"m": "accuracy"}), InputError, "the metric 'm' must be a function"),
    (lambda: trainer(metrics={"loss": accuracy}), InputError, "a metric cannot be called 'loss'"),
    (lambda: trainer(metrics={"examples": accuracy}), InputError, "a metric cannot be called 'examples'"),
    (lambda: trainer(schedules={"lr": 0.1}), InputError, "the schedule 'lr' must be a function"),
    (lambda: trainer(schedules={"lr": lambda step: "a"}).fit(rows()), InputError, "'lr' at step 0 must be a finite"),  # pyright: ignore[reportUnknownLambdaType]
    (lambda: trainer(schedules={"lr": lambda step: 1e39}).fit(rows()), InputError, "must be a finite number"),  # pyright: ignore[reportUnknownLambdaType]
    (lambda: trainer().fit(rows() | {"w": rows()["x"]}), InputError, "cannot use the features x, w"),
    (lambda: trainer().fit({**rows(), "x": rows()["x"].tolist()}), InputError, "'x' must be a NumPy array, got a list"),
    (lambda: trainer().fit(tuple(rows().values())), InputError, "must be arrays by name, got a tuple"),  # pyright: ignore[reportArgumentType]
    (lambda: trainer().fit(changed(x=">f4")), InputError, "'x' has dtype float32 in another machine's order of bytes"),
    (lambda: trainer().fit(changed(x="O")), InputError, "'x' has dtype object"),
    (lambda: trainer().fit(changed(y="U4")), InputError, "'y' has dtype str"),
    (lambda: trainer().fit(changed(x="u1")), InputError, "the operands are of different kinds"),
    (lambda: trainer().fit(changed(0)), InputError, "at least one"),
    (lambda: trainer().fit(shifted(1)), InputError, "'y' goes from 1 to 3, but the model gives 3 logits: class 0 to 2"),
    (lambda: trainer().evaluate(shifted(-1)), InputError, "'y' goes from -1 to 1"),
    (lambda: trainer().fit({"x": rows()["x"]}), InputError, "must have the label 'y' and a feature; it has x"),
    (lambda: trainer().load(Path(__file__)), InputError, "is no checkpoint"),
    (lambda: trainer().load("nowhere.npz"), InputError, "is no checkpoint"),
    (lambda: trainer().save(Path("nowhere") / "deeper" / "x.npz"), InputError, "cannot be written"),
]


@pytest.mark.parametrize(
    ("returned", "message"),
    [(xp.ones((1,)), "returned float32.1. for float32.2. sample weights"), (None, "it returned a NoneType")],
)
def test_an_objective_that_fits_no_weights_is_refused(returned: Any, message: str) -> None:
    step = TrainStep(lambda params, batch: returned, optim.sgd(1.0))
    batch = {"x": np.ones(2, np.float32), "sample_weight": np.ones(2, np.float32)}
    with pytest.raises(InputError, match=message):
        step(step.init({"w": np.ones(2, np.float32)}), batch)


def changed(count: int = 90, **dtypes: str) -> Data:
    """Rows with other dtypes."""
    return {name: value[:count].astype(dtypes.get(name, value.dtype)) for name, value in rows().items()}


def shifted(by: int) -> Data:
    return rows() | {"y": rows()["y"] + np.int32(by)}


NOT_PER_EXAMPLE: dict[str, tuple[Callable[[Array, Array], Any], str]] = {
    "a number": (lambda prediction, label: xp.mean(prediction), r"one value per example, \[16\]; it returned \[\]"),
    "one element": (
        lambda prediction, label: xp.reshape(xp.mean(prediction), (1,)),
        r"one value per example, \[16\]; it returned \[1\]",
    ),
    "a column": (lambda prediction, label: prediction[:, :1], r"one value per example, \[16\]; it returned \[16, 1\]"),
    "nothing": (lambda prediction, label: None, "must return an array, it returned a NoneType"),
}


@pytest.mark.parametrize(("function", "message"), NOT_PER_EXAMPLE.values(), ids=NOT_PER_EXAMPLE)
def test_what_is_not_one_value_per_example_is_refused(function: Callable[[Array, Array], Any], message: str) -> None:
    """It would be weighed wrongly, and count what fills up the last batch."""
    with pytest.raises(InputError, match=f"the loss must return {message}|the loss {message}"):
        Trainer(MODEL, function, optim.adam(0.1), batch_size=16).fit(rows())
    with pytest.raises(InputError, match=f"metric 'm' must return {message}|metric 'm' {message}"):
        trainer(metrics={"m": function}).evaluate(rows())


def test_an_interrupted_training_leaves_the_trainer_as_it_was() -> None:
    def rate(step: int) -> float:
        if step == 9 and interrupted:
            raise KeyboardInterrupt
        return 0.02

    interrupted = True
    stopped, whole = trainer(schedules={"lr": rate}), trainer()
    stopped.fit(rows())
    with pytest.raises(KeyboardInterrupt):
        stopped.fit(rows())
    assert stopped.steps == 6
    interrupted = False
    whole.fit(rows())
    assert stopped.fit(rows()).losses.tobytes() == whole.fit(rows()).losses.tobytes()


@pytest.mark.parametrize(("make", "kind", "message"), MISTAKES, ids=[message for *_, message in MISTAKES])
def test_mistakes_are_named(make: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: trainer(optim.sgd(0.1)), "another model or optimizer"),
        (lambda: trainer(optim.adamw(0.02)), "with the optimizer 'adam', this trainer has 'adamw'"),
        (lambda: trainer(seed=6), "seed 5 and batch_size 16, this trainer has 6 and 16"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(other: Callable[[], Trainer], message: str, tmp_path: Path) -> None:
    saved, taken = trainer(), other()
    saved.fit(rows(), steps=2)
    saved.save(tmp_path / "a.npz")
    before = taken.params
    with pytest.raises(InputError, match=message):
        taken.load(tmp_path / "a.npz")
    assert all(before[name].tobytes() == value.tobytes() for name, value in taken.params.items()) and not taken.steps


@pytest.mark.parametrize(
    "change", [{"steps": -1}, {"batch": None}, {"epoch": 1.5}, {"more": 3}, {"steps": "6"}, {"optimizer": 1}, [1]]
)
def test_a_checkpoint_with_other_facts_is_refused(change: Any, tmp_path: Path) -> None:
    saved = trainer()
    saved.save(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as file:
        arrays = dict(file)
    facts = json.loads(arrays["facts.json"].tobytes())
    facts = facts | change if isinstance(change, dict) else change
    arrays["facts.json"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    np.savez(tmp_path / "b.npz", **arrays)
    with pytest.raises(InputError, match="where its training stopped|no checkpoint of a trainer"):
        trainer().load(tmp_path / "b.npz")


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    saved = trainer()
    saved.save(tmp_path / "a.npz")
    whole, taken, refused = (tmp_path / "a.npz").read_bytes(), trainer(), 0
    np.save(tmp_path / "one.npy", np.zeros(3))
    directory = whole.rindex(b"PK\x01\x02")  # flags, compression, sizes and offset of the last file
    for at in [*range(0, len(whole), 97), *range(directory, directory + 46)]:
        damaged = whole[:at] + bytes([whole[at] ^ 0x5A]) + whole[at + 1 :]
        (tmp_path / "b.npz").write_bytes(damaged)
        try:
            taken.load(tmp_path / "b.npz")
        except InputError as error:
            refused += 1
            assert "no checkpoint" in str(error) and "pickle" not in str(error)
    assert refused > 20
    for name in ("one.npy", ""):
        with pytest.raises(InputError, match="is no checkpoint"):
            taken.load(tmp_path / name)


def test_every_public_name_can_be_had_and_a_step_loads_no_runtime() -> None:
    for package in (step, training):
        for name in package.__all__:
            assert callable(getattr(package, name))
    with pytest.raises(AttributeError, match="frobnicate"):
        _ = training.frobnicate
    program = (
        "import sys; from coterie.compute.step import TrainStep, amp; from coterie.compute.training import accumulate; "
    )
    program += "print([name for name in ('onnx', 'onnxruntime') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@dataclass(frozen=True)
class Noisy(nn.Module):
    """It adds numbers that a trace would keep for ever."""

    def specs(self) -> dict[str, nn.ParameterSpec]:
        return nn.Linear(4, 3).specs()

    def __call__(self, params: nn.Parameters, x: Array, mode: nn.Mode = nn.EVAL) -> Array:
        noise = np.random.normal(size=x.shape)
        return nn.Linear(4, 3)(params, x + Array(noise.astype(np.float32)))


def test_a_module_that_draws_from_numpy_is_refused_by_name() -> None:
    rng = np.random.default_rng(1)
    data = {"x": rng.normal(size=(8, 4)).astype(np.float32), "y": rng.integers(0, 3, 8).astype(np.int32)}
    with pytest.raises(TraceError, match="draws random numbers, .*mode.uniform"):
        Trainer(Noisy(), softmax_cross_entropy, optim.sgd(0.1), batch_size=4).fit(data, epochs=1)


@pytest.mark.parametrize("wrong", [5, 99, -1, -6])
def test_an_id_outside_the_table_is_named_and_trains_nothing(wrong: int) -> None:
    model: Any = nn.Sequential(nn.Embedding(5, 4), nn.MeanPool(), nn.Linear(4, 3))
    ids, labels = np.full((8, 6), 2, np.int32), np.zeros(8, np.int32)
    ids[3, 2] = wrong
    trainer = Trainer(model, softmax_cross_entropy, optim.sgd(0.1), batch_size=8)
    with pytest.raises(InputError, match="leaves the axis that it picks from.*0 .. rows - 1"):
        trainer.fit({"x": ids, "y": labels}, epochs=1)
    with pytest.raises(InputError, match="embedding|gather"):
        model(model.init(0), ids)
    with pytest.raises(InputError, match="leaves the axis"):
        jit(nn.Embedding(5, 4))({"weight": np.ones((5, 4), np.float32)}, ids)


def weighed(model: nn.Module, data: Data, **options: Any) -> Trainer:
    fitted = trainer(optim.sgd(0.1, momentum=0.9), model=model, batch_size=len(data["y"]))
    fitted.fit(data, 3, **options)
    return fitted


@pytest.mark.parametrize("layer", [nn.ReLU(), nn.BatchNorm1d(8)], ids=["plain", "batch norm"])
def test_a_weight_counts_a_row_as_often_as_it_says(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 8), layer, nn.Linear(8, 3))
    data, weight = rows(30), np.arange(30) % 3
    repeated = {name: np.repeat(array, weight, axis=0) for name, array in data.items()}
    ours, expected = weighed(model, data, sample_weight=weight), weighed(model, repeated)
    plain = weighed(model, data)
    assert any(np.abs(ours.params[name] - plain.params[name]).max() > 1e-3 for name in plain.params)
    for name, value in expected.params.items():
        np.testing.assert_allclose(ours.params[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    told = ours.evaluate(data, sample_weight=weight)
    for name, value in ours.evaluate(repeated).items():
        assert told[name] == pytest.approx(value, rel=1e-5)
    assert told["accuracy"] != ours.evaluate(data)["accuracy"] or told["loss"] != ours.evaluate(data)["loss"]


@pytest.mark.parametrize("sink_size", [1, 3])
def test_weights_follow_their_rows_through_every_order_and_a_stop(sink_size: int) -> None:
    """Rows of weight 0 have wrong labels, in every batch; the loss of the first step is the weighted mean."""
    data = rows()
    weight = (np.arange(90) % 2).astype(np.float64)
    wrong = {**data, "y": np.where(weight == 0, (data["y"] + 1) % 3, data["y"]).astype(np.int32)}
    fits = [trainer(sink_size=sink_size) for _ in range(3)]
    right, misled, halves = fits
    losses = right.fit(data, 4, sample_weight=weight).losses
    np.testing.assert_array_equal(misled.fit(wrong, 4, sample_weight=weight).losses, losses)
    first = halves.fit(data, 4, steps=8, sample_weight=weight).losses
    np.testing.assert_array_equal(np.concatenate([first, halves.fit(data, 3, sample_weight=weight).losses]), losses)
    assert not np.array_equal(trainer(sink_size=sink_size).fit(data, 4).losses, losses)


@pytest.mark.parametrize(
    ("weight", "said"),
    [
        (np.ones(89), r"each of 90 rows, got \[89\]"),
        (np.ones((90, 1)), r"each of 90 rows, got \[90, 1\]"),
        ([1.0] * 90, "must be a NumPy array of numbers, got a list"),
        (np.where(np.arange(90) == 7, -1.0, 1.0), r"of row 7 is -1.0; a weight must be 0 or"),
        (np.where(np.arange(90) == 7, np.nan, 1.0), "of row 7 is nan"),
        (np.where(np.arange(90) == 7, 1e300, 1.0), "of row 7 is 1e\\+300"),
        (np.where(np.arange(90) == 7, 1e-300, 1.0), "of row 7 is 1e-300"),
        (np.zeros(90), "is 0 for every row"),
    ],
)
def test_weights_that_cannot_count_are_refused(weight: Any, said: str) -> None:
    fitted = trainer()
    for call in (fitted.fit, fitted.evaluate):
        with pytest.raises(InputError, match=f"sample_weight .*{said}"):
            call(rows(), sample_weight=weight)
