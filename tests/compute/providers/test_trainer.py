"""The trainer on providers that fail, and with the frozen front of a model elsewhere."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.compute import nn, optim
from coterie.compute.array import Array
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, ParameterSpec
from coterie.compute.runtime.hybrid_loop import Trunk
from coterie.compute.training import Trainer
from coterie.errors import GraphRefused, InputError
from tests.compute.providers.fakes import failing


class FrozenFront(Module):
    """A convolution that nobody trains, and a linear layer."""

    body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))

    def specs(self) -> dict[str, ParameterSpec]:
        found = self.body.specs()
        return {name: replace(spec, role="frozen") if name.startswith("0.") else spec for name, spec in found.items()}

    def __call__(self, params: Any, x: Array, mode: Mode = EVAL) -> Any:
        return self.body(params, x, mode)


def data(rows: int = 40) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(rows, 1, 6, 6)).astype("float32"), "y": rng.integers(0, 3, rows).astype("int32")}


def trainer(model: Module | None = None, **options: Any) -> Trainer:
    return Trainer(model or FrozenFront(), softmax_cross_entropy, optim.sgd(0.1, momentum=0.9), batch_size=8, **options)


def test_a_provider_that_fails_in_the_middle_of_an_epoch_costs_no_step() -> None:
    expected = trainer().fit(data(), epochs=2)
    frail = trainer(provider=failing("Frail", 7))
    with pytest.warns(RuntimeWarning, match="Frail failed in a training step: the device is lost"):
        found = frail.fit(data(), epochs=2)
    assert np.array_equal(found.losses, expected.losses)
    assert [(each.provider, each.steps) for each in found.fallbacks] == [("Frail", 7)] and expected.fallbacks == ()
    assert frail.fit(data(), epochs=1).fallbacks == ()  # on the CPU from here on, without another word


def test_a_provider_that_fails_in_an_evaluation_costs_nothing() -> None:
    frail = trainer(provider=failing("Frail", 2))
    with pytest.warns(RuntimeWarning, match="Frail failed in a graph that it had accepted"):
        found = frail.evaluate(data())
    assert found == trainer().evaluate(data())


def test_training_with_a_trunk_is_training(tmp_path: Path) -> None:
    whole, parted = trainer(), trainer(trunk=Trunk())
    expected, found = whole.fit(data(), epochs=2), parted.fit(data(), epochs=2)
    assert np.array_equal(found.losses, expected.losses)
    for name, value in whole.params.items():
        assert np.array_equal(parted.params[name], value), name
    parted.save(tmp_path / "t.npz")
    other = trainer(trunk=Trunk())
    other.fit(data(), epochs=1)
    other.load(tmp_path / "t.npz")
    assert np.array_equal(other.fit(data(), epochs=1).losses, whole.fit(data(), epochs=1).losses)


def test_a_trunk_fails_over_alone() -> None:
    frail = trainer(trunk=Trunk(provider=failing("Frail", 3)))
    with pytest.warns(RuntimeWarning, match="Frail"):
        found = frail.fit(data(), epochs=1)
    assert np.array_equal(found.losses, trainer().fit(data(), epochs=1).losses)


def test_mistakes_are_named() -> None:
    with pytest.raises(GraphRefused, match="no frozen front"):
        trainer(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), trunk=Trunk()).fit(data())
    with pytest.raises(InputError, match="runs its head on the CPU, one step a call"):
        trainer(trunk=Trunk(), sink_size=4)
