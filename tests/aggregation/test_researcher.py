"""What a newcomer writes wrongly in a model, a loss or a metric is told with what, where, why and what to do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import pytest

from coterie import errors
from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.compute import nn
from coterie.protocol.schema import DataSchema, Feature, Label

Make = Callable[..., Experiment]
OfTwo: TypeAlias = Callable[[Any, Any], Any]
W = nn.ParameterSpec((4, 3), nn.Uniform(0.1))


class Custom(nn.Module):
    """A module made of two functions."""

    def __init__(self, call: OfTwo, specs: Any = None) -> None:
        self._call, self._specs = call, specs or {"w": W}

    def specs(self) -> dict[str, nn.ParameterSpec]:
        return self._specs

    def __call__(self, params: nn.Parameters, x: Any, mode: nn.Mode = nn.EVAL) -> Any:
        return self._call(params, x)


def refusal(experiment: Experiment) -> errors.ExperimentError:
    with pytest.raises(errors.ExperimentError) as caught:
        compile_plan(experiment)
    return caught.value


def here(error: errors.ExperimentError) -> bool:
    """Whether the message names a line of this file."""
    return f"{Path(__file__).name}:" in error.message


def of_one(prediction: Any) -> Any:
    return prediction


def nothing(prediction: Any, label: Any) -> Any:
    return None


def product(params: Any, x: Any) -> Any:
    return x @ params["w"]


def halved(params: Any, x: Any) -> Any:
    while x.sum() > 1:
        x = x * 0.5
    return x @ params["w"]


def doubled(params: Any, x: Any) -> Any:
    return (x * 2 if x.sum() > 1 else x) @ params["w"]


@pytest.mark.parametrize("call", [halved, doubled])
def test_a_loop_or_branch_that_depends_on_data_names_its_line(make_experiment: Make, call: OfTwo) -> None:
    error = refusal(make_experiment(model=Custom(call)))
    assert here(error) and "is being traced" in error.message
    assert "while_loop" in str(error.hint) and "cond" in str(error.hint)


def test_a_module_of_ones_own_compiles(make_experiment: Make) -> None:
    assert compile_plan(make_experiment(model=Custom(product))).plan.manifest.layout.names == ("w",)


LOSSES: list[tuple[OfTwo, str, str]] = [
    (lambda p, y: None, "loss_shape", "returned a NoneType, not an array"),
    (lambda p, y: (p, y), "loss_shape", "returned a tuple, not an array"),
    (lambda p, y: 0.0, "loss_shape", r"must return one value per example, \[6\]; it returned \[\]"),
    (cast(Any, of_one), "loss_mismatch", "raised TypeError: .* 1 positional argument"),
    (lambda p, y: p.logits, "loss_mismatch", "raised AttributeError at .*logits"),
    (lambda p, y: 1 // 0, "loss_mismatch", "raised ZeroDivisionError at"),
    (lambda p, y: p(y), "loss_mismatch", "raised TypeError at"),
    (lambda p, y: p[:, 0] if p.sum() > 0 else p[:, 1], "loss_mismatch", "whether it is true cannot be known"),
    (lambda p, y: np.linalg.norm(p, axis=1), "loss_mismatch", "np.norm does not work"),
    (lambda p, y: p[:, 0].astype("float64"), "loss_dtype", "must return float32; it returned float64"),
]


@pytest.mark.parametrize(("loss", "code", "message"), LOSSES)
def test_a_loss_that_fails_is_named(make_experiment: Make, loss: Any, code: str, message: str) -> None:
    error = refusal(make_experiment(loss=loss))
    assert error.reason == code and error.message.startswith("The loss 'loss' ") and error.hint
    with pytest.raises(errors.ExperimentError, match=message):
        raise error
    assert here(error) or " at " not in message


def test_a_metric_that_fails_is_named(make_experiment: Make) -> None:
    error = refusal(make_experiment(metrics={"recall": nothing}))
    assert error.reason == "metric_shape" and error.message.startswith("The metric 'recall' returned a NoneType")


MODELS: list[tuple[nn.Module, str]] = [
    (Custom(lambda p, x: x @ p["w"] + p["b"]), "there is no parameter 'b'; there are w"),
    (Custom(lambda p, x: x.view(-1, 4) @ p["w"]), "raised AttributeError at .*view"),
    (Custom(lambda p, x: None), "returned a NoneType"),
    (Custom(lambda p, x: (x @ p["w"],)), "returned a tuple"),
    (Custom(product, {"w": (4, 3)}), r"specs\(\) has a tuple for 'w'"),
    (Custom(product, {"w": nn.ParameterSpec([4, 3], nn.Uniform(0.1))}), r"shape \[4, 3\]; it must be a tuple"),  # pyright: ignore[reportArgumentType]
    (Custom(product, {"w": nn.ParameterSpec((), nn.Uniform(0.1))}), r"the shape \(1,\), which broadcasts"),
    (Custom(product, {"w": nn.ParameterSpec((0, 3), nn.Uniform(0.1))}), r"shape \(0, 3\)"),
    (Custom(product, {"w": nn.ParameterSpec((), nn.Uniform(0.1))}), r"shape \(\)"),
    (Custom(product, {"w": nn.ParameterSpec((4, 3), 0.1)}), "an init that cannot be called: 0.1"),  # pyright: ignore[reportArgumentType]
    (Custom(product, {"w": nn.ParameterSpec((4, 3), nn.Uniform(0.1), "trainable")}), "the role 'trainable'"),  # pyright: ignore[reportArgumentType]
    (Custom(product, {"w": nn.ParameterSpec((4, 3), lambda shape: shape)}), "init raised TypeError"),  # pyright: ignore[reportArgumentType]
    (nn.Linear, "is the class Linear"),  # pyright: ignore[reportAssignmentType]
]


@pytest.mark.parametrize(("model", "message"), MODELS)
def test_a_model_that_fails_is_named(make_experiment: Make, model: nn.Module, message: str) -> None:
    error = refusal(make_experiment(model=model))
    assert error.reason == "model_mismatch"
    with pytest.raises(errors.ExperimentError, match=message):
        raise error
    assert here(error) or " at " not in message


def test_a_feature_that_the_schema_lacks_is_named(make_experiment: Make) -> None:
    schema = DataSchema((Feature(name="a", shape=(4,)), Feature(name="b")), Label(name="y", low=0, high=2))
    error = refusal(make_experiment(schema=schema, model=Custom(lambda p, x: x["c"] @ p["w"])))
    assert "there is no feature 'c'; there are a, b" in error.message


@pytest.mark.parametrize("label", [Label(name="y", classes=tuple("abcd")), Label(name="y", low=0, high=3)])
def test_a_class_without_a_logit_is_refused(make_experiment: Make, label: Label) -> None:
    """Its one-hot row would be zeros, and the model would train on the wrong loss without a word."""
    error = refusal(make_experiment(schema=DataSchema((Feature(name="x", shape=(4,)),), label)))
    assert "goes up to class 3, but the model gives 3 logits" in error.message
    assert error.hint and "4 outputs" in error.hint


def test_first_weights_beyond_float32_are_refused(make_experiment: Make) -> None:
    experiment = make_experiment()
    assert isinstance(experiment.model, nn.Module)
    first = {name: value.astype(np.float64) * 1e300 for name, value in experiment.model.init(0).items()}
    assert "finite in float32" in refusal(make_experiment(initial=first)).message
