"""Every way in which an experiment is refused, when it is made or when it is compiled."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coterie import errors
from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.aggregation.horizontal import FedProx
from coterie.aggregation.server_optimizers import server_sgd
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.nn import Flatten, Linear, Sequential
from coterie.compute.nn.losses import mean_squared_error
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import sgd
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label

Make = Callable[..., Experiment]


def mean_loss(prediction: Array, label: Array) -> Array:
    return xp.mean(xp.sum(prediction, axis=1))


def matrix_loss(prediction: Array, label: Array) -> Array:
    return prediction * 1.0


def integer_loss(prediction: Array, label: Array) -> Array:
    return label


def own_noise(prediction: Array, label: Array) -> Array:
    return xp.mean(prediction * np.random.default_rng().random(3, np.float32), axis=1)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"loss": mean_loss}, "loss_shape", r"\[6\]; it returned \[\]"),
    ({"loss": matrix_loss}, "loss_shape", r"returned \[6, 3\]"),
    ({"loss": integer_loss}, "loss_dtype", "int32"),
    ({"metrics": {"m": mean_loss}}, "metric_shape", "'m'"),
    ({"loss": own_noise}, "not_deterministic", "train graph .* differently when traced again"),
    ({"model": mlp((5, 3))}, "model_mismatch", r"x: float32\[6, 4\]"),
    ({"model": Sequential(Flatten())}, "model_mismatch", "no parameter to train"),
    ({"model": object()}, "model_mismatch", "not a module"),
    ({"initial": {}}, "initial_mismatch", "lack"),
    ({"initial": {"0.weight": np.zeros(3)}, "model": Linear(4, 3)}, "initial_mismatch", "lack"),
    (
        {"initial": Linear(4, 3).init(0) | {"bias": np.full(3, np.nan)}, "model": Linear(4, 3)},
        "initial_mismatch",
        "bias",
    ),
]


@pytest.mark.parametrize(("changes", "code", "message"), REFUSED)
def test_what_does_not_compile_is_refused_by_name(make_experiment: Make, changes: Any, code: str, message: str) -> None:
    with pytest.raises(errors.ExperimentError, match=message) as caught:
        compile_plan(make_experiment(**changes))
    assert caught.value.reason == code


def rounds(**changes: Any) -> RoundPolicy:
    values: dict[str, Any] = {"rounds": 2, "cohort": 2, "min_updates": 1, **changes}
    return RoundPolicy(**values)


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 0}, "batch_size"),
    ({"epochs": 0}, "epochs"),
    ({"max_steps": 0}, "max_steps"),
    ({"holdout": 1.0}, "holdout"),
    ({"holdout": -0.1}, "holdout"),
    ({"infer_batch": 0}, "infer_batch"),
    ({"seed": -1}, "seed"),
    ({"codecs": ()}, "codec"),
    ({"codecs": ("zip",)}, "zip"),
    ({"codecs": ("float64",)}, "float64"),
    ({"codecs": ("int8", "int8")}, "twice"),
    ({"name": ""}, "name"),
    ({"metrics": {"loss": mean_squared_error}}, "added by coterie"),
    ({"metrics": {"examples": mean_squared_error}}, "added by coterie"),
    ({"metrics": {"a b": mean_squared_error}}, "identifier"),
    ({"loss": None}, "needs a loss"),
    ({"optimizer": None}, "needs an optimizer"),
    ({"schema": DataSchema((Feature(name="sample_weight", shape=(4,)),), Label(name="y"))}, "sample_weight"),
    ({"holdout": 0.0}, "cannot evaluate"),
    ({"rounds": rounds(evaluate_every=0, patience=1)}, "patience"),
    ({"rounds": rounds(evaluate_every=0, target={"metric": "accuracy", "value": 0.9})}, "target"),
    ({"rounds": rounds(target={"metric": "auc", "value": 0.9})}, "target"),
    ({"rounds": rounds(best={"metric": "auc"})}, "best"),
    ({"rounds": rounds(hyper_schedule={"beta": (1.0, 2.0)})}, "beta"),
    ({"rounds": rounds(hyper_schedule={"lr": (0.1, -0.1)})}, "makes lr negative"),
    ({"rounds": rounds(labels=(1, 7))}, "with the label 7"),
    ({"algorithm": FedProx(), "optimizer": sgd(0.1), "model": ExternalModel({"w": (2,)})}, "ExternalModel"),
    ({"name": 3}, "name must be text, not '3' \\(int\\)"),
    ({"name": "two\nlines"}, "printable"),
    ({"schema": [Feature(name="x")]}, "schema must be a DataSchema"),
    ({"rounds": 3}, "rounds must be a RoundPolicy"),
    ({"loss": "cross entropy"}, "loss must be a function"),
    ({"optimizer": sgd}, "optimizer must be an optimizer"),
    ({"algorithm": "fedavg"}, "algorithm must be"),
    ({"server_optimizer": "sgd"}, "server_optimizer must be"),
    ({"batch_size": 32.0}, "batch_size must be a whole number"),
    ({"batch_size": "32"}, "batch_size must be a whole number"),
    ({"batch_size": True}, "batch_size must be a whole number"),
    ({"epochs": 1.5}, "epochs must be a whole number"),
    ({"max_steps": 2.5}, "max_steps must be a whole number"),
    ({"seed": 1.5}, "seed must be a whole number"),
    ({"holdout": "0.2"}, "holdout must be a number"),
    ({"codecs": "int8"}, "codecs must be a tuple"),
    ({"metrics": [mean_squared_error]}, "metrics must be a mapping"),
    ({"metrics": {"accuracy": 3}}, "a metric must be a function"),
    # What a device would refuse in the manifest is refused here already.
    ({"epochs": 1 << 21}, "epochs"),
    ({"max_steps": 1 << 40}, "max_steps"),
    ({"holdout": 0.9995}, "holdout"),
]


@pytest.mark.parametrize(("changes", "message"), IMPOSSIBLE)
def test_an_impossible_experiment_is_refused_when_it_is_made(make_experiment: Make, changes: Any, message: str) -> None:
    with pytest.raises(errors.ExperimentError, match=message):
        make_experiment(**changes)


@pytest.mark.parametrize("parameters", [{"w": 3}, {"w": (3, 0)}, {"w": (2.0,)}, {"w": (True,)}, (3, 4)])
def test_an_external_model_with_impossible_shapes_is_refused(parameters: Any) -> None:
    with pytest.raises(errors.ExperimentError, match="ExternalModel"):
        ExternalModel(parameters)


def test_layers_of_ones_own_do_not_all_begin_at_zeros(make_experiment: Make) -> None:
    deep = {"first.weight": (4, 8), "first.bias": (8,), "last.weight": (8, 3)}
    external: dict[str, Any] = {"model": ExternalModel(deep), "loss": None, "optimizer": None, "metrics": {}}
    with pytest.raises(errors.ExperimentError, match="2 weight matrices .*'first.weight', 'last.weight'") as caught:
        compile_plan(make_experiment(**external))
    assert caught.value.reason == "initial_missing"
    zeros = {name: np.zeros(shape, np.float32) for name, shape in deep.items()}
    meant = compile_plan(make_experiment(**external, initial=zeros))
    assert not any(array.any() for array in meant.initial.values())
    external["model"] = ExternalModel({"coef": (3, 4), "intercept": (3,)})
    assert not any(array.any() for array in compile_plan(make_experiment(**external)).initial.values())


def test_what_compiles_is_read_back_as_a_device_reads_it(make_experiment: Make) -> None:
    """A manifest beyond a device's limits must fail on the researcher's machine, not on every device."""
    parameters = {f"tensor.{index:06}.{'x' * 180}": (1,) for index in range(20_000)}
    external: dict[str, Any] = {"model": ExternalModel(parameters), "loss": None, "optimizer": None, "metrics": {}}
    with pytest.raises(errors.ExperimentError, match="exceeds the limit") as caught:
        compile_plan(make_experiment(**external))
    assert caught.value.reason == "plan_inconsistent"


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_parameters_out_of_range_are_refused(value: float) -> None:
    with pytest.raises(errors.ExperimentError):
        FedProx(value)
    with pytest.raises(errors.ExperimentError):
        server_sgd(value)
