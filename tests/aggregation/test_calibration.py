"""Federated calibration: sums over clients say of every activation what all rows at one place would."""

from typing import Any, cast

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
import pytest
from numpy.typing import NDArray

from coterie import errors
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.methods import algorithm
from coterie.aggregation.preparation.calibration import Calibration
from coterie.aggregation.preparation.ranges import BINS
from coterie.compute import nn, quant
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.optim import sgd
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import simulate_full

SCHEMA = DataSchema(
    (Feature(name="image", dtype="uint8", shape=(1, 8, 8), scale=1 / 255),), Label(name="digit", low=0, high=3)
)
MODEL = nn.Sequential(
    nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 12), nn.ReLU(), nn.Linear(12, 4)
)
Rows = dict[str, NDArray[Any]]


def client(number: int, rows: int = 24) -> Rows:
    """Images with a bright quarter that says the class; each client's light is its own."""
    draw = np.random.Generator(np.random.PCG64(number))
    digit = draw.integers(0, 4, rows).astype(np.int32)
    image = draw.integers(0, 60 + 5 * number, (rows, 1, 8, 8))
    for row, where in enumerate(digit.tolist()):
        image[row, 0, 4 * (where // 2) :, 4 * (where % 2) :][:4, :4] += 140
    return {"image": image.clip(0, 255).astype(np.uint8), "digit": digit}


CLIENTS = [client(number) for number in range(10)]


@pytest.fixture(scope="module")
def model() -> bytes:
    trained = Experiment(
        name="digits",
        model=MODEL,
        schema=SCHEMA,
        loss=softmax_cross_entropy,
        optimizer=sgd(0.1, momentum=0.9),
        batch_size=8,
        infer_batch=4,
        secure_aggregation=False,
        rounds=RoundPolicy(rounds=3, cohort=10, evaluate_every=0),
    )
    return simulate_full(trained, CLIENTS).infer(best=False)


@pytest.mark.capability("G9")
def test_many_clients_calibrate_as_one_place_would(model: bytes) -> None:
    calibration = Calibration(model, SCHEMA)
    asked = calibration.ask(clients=10)
    assert asked.secure is not None and asked.batch_size == 4
    run = simulate_full(asked, CLIENTS)
    assert [record.state for record in run.history.rounds] == ["committed"] * 2
    found = calibration.answer(run.weights)
    images = np.concatenate([rows["image"] for rows in CLIENTS])
    everywhere = quant.observe(model, [{"batch/image": images}])
    assert tuple(found) == quant.observed(model) == tuple(everywhere)
    counted = quant.observe(
        model, [{"batch/image": images}], bounds={name: seen.bounds or (0, 0) for name, seen in found.items()}
    )
    for name, seen in found.items():
        low, high = seen.bounds or (0.0, 0.0)
        width = (high - low) / BINS
        assert seen.low <= everywhere[name].low + width and abs(seen.low - everywhere[name].low) <= 2 * width
        assert abs(seen.high - everywhere[name].high) <= 2 * width
        assert seen.counts.sum() == counted[name].counts.sum()
        # Numbers that lie on an edge may be put on its other side.
        assert np.abs(np.cumsum(seen.counts - counted[name].counts)).max() <= 0.01 * seen.counts.sum()
    by_many, by_one = quant.quantise_with(model, found), quant.quantise(model, [{"batch/image": images}])
    assert len(by_many) == len(by_one)
    float_said, many_said, one_said = (labels(file, images) for file in (model, by_many, by_one))
    assert (many_said == one_said).mean() >= 0.98
    assert (many_said == float_said).mean() >= 0.98


def labels(file: bytes, images: NDArray[Any]) -> NDArray[Any]:
    """What a file says of the images, four at a time, in a bare ONNX Runtime."""
    session = cast(Any, onnxruntime).InferenceSession(file)
    parts = [session.run(None, {"batch/image": images[at : at + 4]})[0] for at in range(0, len(images), 4)]
    return np.concatenate(parts).argmax(axis=1)


def test_a_device_counts_on_no_more_rows_than_asked(model: bytes) -> None:
    calibration = Calibration(model, SCHEMA)
    run = simulate_full(calibration.ask(clients=2, rows=8, secure_aggregation=False), CLIENTS[:2])
    found = calibration.answer(run.weights)
    assert {seen.counts.sum() for seen in found.values()} == {16 * size for size in (64, 36, 12)}


def test_a_server_rebuilds_a_calibration_from_its_numbers(model: bytes) -> None:
    asked = Calibration(model, SCHEMA).ask(clients=300)
    rebuilt = algorithm("calibrate", asked.algorithm.parameters)
    assert rebuilt == asked.algorithm and asked.algorithm.parameters["largest"] * 300 < 2**32


def test_what_is_no_answer_and_what_does_not_fit_is_refused(model: bytes) -> None:
    calibration = Calibration(model, SCHEMA)
    with pytest.raises(errors.InputError, match="not the result of a calibration") as caught:
        calibration.answer({"x": np.zeros(1, np.float32)})
    assert caught.value.reason == "query_mismatch"
    begun = calibration.ask(clients=2, secure_aggregation=False).algorithm.client.initial(lambda seed: {})
    size = 3 * BINS
    first = {"total/high": np.zeros(size, np.float32), "total/low": np.zeros(size, np.float32), **begun}
    with pytest.raises(errors.ExperimentError, match="the calibration has not finished") as unanswered:
        calibration.answer(first)
    assert unanswered.value.reason == "survey_unanswered"
    other = DataSchema((*SCHEMA.features, Feature(name="age")), SCHEMA.label)
    assert Calibration(model, other).ask(clients=2).batch_size == 4
    renamed = DataSchema((Feature(name="picture", shape=(1, 8, 8)), Feature(name="age")), SCHEMA.label)
    with pytest.raises(errors.ExperimentError, match="takes 'batch/image', and the schema has age, picture"):
        Calibration(model, renamed).ask(clients=2)
