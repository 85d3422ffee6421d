"""Experiments whose model is a foreign file: all kinds compile to plans that devices accept, and learn."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from simulation_kit import CLIENTS, experiment, rows

from coterie import errors
from coterie.aggregation.compiling.compile import CompiledPlan, compile_plan
from coterie.compute import nn, onnx
from coterie.compute.nn.losses import mean_squared_error, softmax_cross_entropy
from coterie.compute.onnx import ImportedModel
from coterie.compute.optim import sgd
from coterie.compute.training.trainer import Trainer
from coterie.protocol.privacy import UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import simulate
from tests.compute.importer.foreign_models import MODELS

READINGS = MODELS["readings_17"].source
CLASSES = Label(name="y", low=0, high=2)


def plan_of(name: str, model: ImportedModel) -> CompiledPlan:
    """The compiled plan of a fixture, whatever its input is."""
    example = MODELS[name].draw(np.random.default_rng(0), 1)
    bounds: dict[str, Any] = (
        {"low": 0, "high": 10, "dtype": "int32"} if example.dtype.kind == "i" else {"low": -9, "high": 9}
    )
    feature = Feature(name="x", shape=example.shape[1:], **bounds)
    label = Label(name="y", low=-9, high=9, dtype="float32") if name == "sk_ridge_15" else CLASSES
    loss = _first_column if name == "sk_ridge_15" else nn.losses.softmax_cross_entropy
    schema = DataSchema((feature,), label)
    metrics: dict[str, Any] = {}
    return compile_plan(experiment(model=model, schema=schema, loss=loss, metrics=metrics))


def _first_column(prediction: Any, label: Any) -> Any:
    return mean_squared_error(prediction[:, :1], label[:, None])


@pytest.mark.capability("G1")
@pytest.mark.parametrize(
    "name", ["cnn_20", "transformer_18_dynamo", "rnn_19", "routed_17", "tensorflow", "sk_logistic_17", "sk_ridge_15"]
)
def test_a_foreign_model_compiles_to_a_plan_of_the_portable_subset(name: str) -> None:
    given = MODELS[name]
    model = onnx.load(given.source)
    model = model.cut(given.score) if given.score else model
    compiled = plan_of(name, model)
    assert set(compiled.plan.manifest.layout.names) == {*model.parameters, *model.buffers}
    for key, value in {**model.parameters, **model.buffers}.items():
        np.testing.assert_array_equal(compiled.initial[key], value)


@pytest.mark.capability("A15", "G1")
def test_it_goes_on_learning_from_the_weights_of_the_file() -> None:
    model = onnx.load(READINGS)
    test = rows(200, seed=50)
    wanted = experiment(model=model, evaluation=test, rounds=RoundPolicy(rounds=3, cohort=4))
    history = simulate(wanted, CLIENTS)
    logits: npt.NDArray[np.float32] = model(model.parameters, test["x"]).numpy()
    before = float(np.equal(logits.argmax(axis=1), test["y"]).mean())
    assert history.final is not None
    assert before < 0.6 < 0.9 < history.final.metrics["accuracy"]


def test_what_is_frozen_is_fetched_once_and_never_sent() -> None:
    trunk = onnx.load(READINGS).cut("/1/Relu_output_0").freeze("*")
    model = nn.Sequential(nn.Imported(trunk), nn.Linear(16, 3))
    compiled = compile_plan(experiment(model=model))
    assert compiled.plan.manifest.layout.names == ("1.weight", "1.bias")
    assert set(compiled.frozen) == {"0.0.weight", "0.0.bias"}
    history = simulate(experiment(model=model, evaluation=rows(200, seed=50)), CLIENTS)
    assert history.final is not None and history.final.metrics["accuracy"] > 0.8


def test_uploads_name_weights_of_the_file() -> None:
    compiled = compile_plan(experiment(model=onnx.load(READINGS), uploads=("2.*",)))
    (spec,) = [spec for spec in compiled.plan.manifest.sections if not spec.is_extra]
    assert spec.length == 3 * 16 + 3


def test_what_does_not_fit_says_what_the_file_takes() -> None:
    with pytest.raises(errors.ExperimentError, match=r"input 'x' has the sizes \['batch', 2, 9, 9\], got \[8, 4\]"):
        compile_plan(experiment(model=onnx.load(MODELS["cnn_20"].source)))
    with pytest.raises(errors.InputError, match="gives 2 outputs"):
        experiment(model=onnx.load(MODELS["sk_mlp_18"].source))
    private = UserLevel(clip=1.0, delta=1e-5, epsilon=8.0)
    images = DataSchema((Feature(name="x", shape=(2, 9, 9), low=-9, high=9),), CLASSES)
    policy = RoundPolicy(rounds=2, cohort=4, weight_cap=1, evaluate_every=0)
    with pytest.raises(errors.ExperimentError, match="'2.running_mean' .BatchNorm."):
        compile_plan(
            experiment(model=onnx.load(MODELS["cnn_20"].source), schema=images, privacy=private, rounds=policy)
        )


def test_a_file_that_ends_in_the_function_of_its_loss_is_refused() -> None:
    """It would learn from gradients that are wrong, without a word."""
    model = onnx.load(MODELS["tensorflow"].source)
    images = DataSchema((Feature(name="x", shape=(7, 7, 2), low=-9, high=9),), CLASSES)
    with pytest.raises(errors.ExperimentError, match="ends in a Softmax") as caught:
        compile_plan(experiment(model=model, schema=images))
    assert caught.value.reason == "loss_mismatch" and "model.cut('logits')" in str(caught.value.hint)
    with pytest.raises(errors.InputError, match="ends in a Softmax"):
        Trainer(onnx.load(MODELS["sk_mlp_18"].source).cut("probabilities"), softmax_cross_entropy, sgd(0.1))
    Trainer(model, mean_squared_error, sgd(0.1))
