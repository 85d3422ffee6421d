"""A model of another framework, given where a coterie model is meant: every place says how to export it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.compute import nn, optim
from coterie.compute.nn import losses
from coterie.compute.onnx import load
from coterie.compute.onnx.importer.frameworks import export_hint
from coterie.compute.training.trainer import Trainer
from coterie.errors import CoterieError
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label


def of(module: str) -> Any:
    """A model whose class derives from one of a framework, as those of users do."""
    base = type("Base", (), {"__module__": module})
    return type("Net", (base,), {"__module__": "my_models"})()


def compiled(model: Any) -> Any:
    return compile_plan(
        Experiment(
            name="foreign",
            model=model,
            schema=DataSchema((Feature(name="x", shape=(4,)),), Label(name="y", low=0, high=2)),
            loss=losses.softmax_cross_entropy,
            optimizer=optim.sgd(0.1),
            rounds=RoundPolicy(rounds=1, cohort=2),
        )
    )


PLACES: dict[str, Callable[[Any], Any]] = {
    "Experiment": compiled,
    "Trainer": lambda model: Trainer(model, losses.softmax_cross_entropy, optim.sgd(0.1)),
    "nn.Imported": nn.Imported,
    "onnx.load": load,
}
FRAMEWORKS = {
    "torch.nn.modules.module": "from PyTorch with torch.onnx.export.*dynamo=True, optimize=False",
    "keras.src.models.model": "from Keras with model.export",
    "tensorflow.python.module.module": "from TensorFlow with python -m tf2onnx.convert",
    "flax.nnx.module": "from Flax with jax2onnx.to_onnx",
    "sklearn.base": "from scikit-learn with .*skl2onnx.to_onnx",
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_place_says_how_to_export_each_framework(place: str, framework: str) -> None:
    given: list[Any] = [of(framework), type(of(framework))]
    for model in given:
        with pytest.raises(CoterieError, match=r"(?s)" + FRAMEWORKS[framework] + r".*give onnx.load\("):
            PLACES[place](model)


@pytest.mark.parametrize("ending, framework", [("pt", "PyTorch"), ("h5", "Keras"), ("pkl", "scikit")])
def test_a_file_of_another_framework_is_told_by_its_ending(ending: str, framework: str, tmp_path: Path) -> None:
    path = tmp_path / f"net.{ending}"
    path.write_bytes(b"no graph")
    with pytest.raises(CoterieError, match=f"Export it from {framework}"):
        load(path)


def test_what_belongs_to_no_framework_gets_no_such_hint() -> None:
    assert [export_hint(each) for each in (nn.Linear(4, 3), "net.onnx", b"", None, object)] == [None] * 5
