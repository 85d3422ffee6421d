"""The trainer on providers that fail, and with the frozen front of a model elsewhere."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from coterie.compute import nn, optim
from coterie.compute.array import Array
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, ParameterSpec
from coterie.compute.quant import QuantSettings, quantise
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


def test_a_trunk_of_integers_trains_nearly_as_well() -> None:
    files: list[bytes] = []

    def integers(model: bytes, batches: Sequence[Mapping[str, Any]]) -> bytes:
        files.append(quantise(model, batches, QuantSettings()))
        return files[0]

    whole, parted = trainer(), trainer(trunk=Trunk(quantise=integers, calibration=3))
    expected, found = whole.fit(data(), epochs=5), parted.fit(data(), epochs=5)
    assert {"QuantizeLinear", "DequantizeLinear"} <= {
        node.op_type for node in onnx.load_from_string(files[0]).graph.node
    }
    assert 0 < np.abs(found.losses - expected.losses).max() < 0.02
    assert found.epochs[-1] < 0.8 * found.epochs[0]


class Frozen(Module):
    """A model whose parameters of these names nobody trains."""

    def __init__(self, body: Module, *names: str) -> None:
        self.body, self.names = body, names

    def specs(self) -> dict[str, ParameterSpec]:
        found = self.body.specs()
        return {name: replace(spec, role="frozen") if name in self.names else spec for name, spec in found.items()}

    def __call__(self, params: Any, x: Any, mode: Mode = EVAL) -> Any:
        return self.body(params, x, mode)


class TwoFronts(Module):
    """Two inputs, each with a frozen layer of its own, and a trained one over both."""

    left, right, top = nn.Linear(4, 8), nn.Linear(5, 8), nn.Linear(8, 3)

    def specs(self) -> dict[str, ParameterSpec]:
        parts = {"left": self.left, "right": self.right, "top": self.top}
        return {
            f"{part}.{name}": spec if part == "top" else replace(spec, role="frozen")
            for part, layer in parts.items()
            for name, spec in layer.specs().items()
        }

    def __call__(self, params: Any, x: Any, mode: Mode = EVAL) -> Any:
        def of(part: str) -> dict[str, Any]:
            return {name.removeprefix(f"{part}."): value for name, value in params.items() if name.startswith(part)}

        return self.top(of("top"), nn.ReLU()({}, self.left(of("left"), x["u"]) + self.right(of("right"), x["v"])))


def pairs() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    features = {name: rng.normal(size=(40, size)).astype("float32") for name, size in (("u", 4), ("v", 5))}
    return features | {"y": rng.integers(0, 3, 40).astype("int32")}


LAYERS = (nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (Frozen(nn.Sequential(LAYERS[0], nn.Dropout(0.5), *LAYERS[1:]), "0.weight", "0.bias"), data),
        (Frozen(nn.Sequential(LAYERS[0], nn.BatchNorm2d(4), *LAYERS[1:]), "0.weight", "0.bias"), data),
        (
            Frozen(
                nn.Sequential(LAYERS[0], nn.BatchNorm2d(4), *LAYERS[1:]), "0.weight", "0.bias", "1.weight", "1.bias"
            ),
            data,
        ),
        (TwoFronts(), pairs),
    ],
    ids=["dropout behind it", "normalisation behind it", "normalisation in it", "two inputs"],
)
def test_whatever_the_front_is_a_trunk_changes_no_more_than_a_rounding(
    model: Module, given: Callable[[], dict[str, Any]]
) -> None:
    whole, parted = trainer(model), trainer(model, trunk=Trunk())
    expected, found = whole.fit(given(), epochs=2), parted.fit(given(), epochs=2)
    assert np.allclose(found.losses, expected.losses, rtol=1e-6, atol=1e-6)
    assert all(np.allclose(parted.params[name], value, rtol=1e-5, atol=1e-6) for name, value in whole.params.items())
    assert parted.evaluate(given()) == pytest.approx(whole.evaluate(given()), rel=1e-5)


def test_mistakes_are_named() -> None:
    with pytest.raises(GraphRefused, match="makes 'loss', a result of the step.*at least the last layer"):
        trainer(Frozen(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), "1.weight", "1.bias"), trunk=Trunk()).fit(data())
    with pytest.raises(GraphRefused, match="no frozen front"):  # behind what is trained
        layers = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Linear(8, 3))
        trainer(Frozen(layers, "2.weight", "2.bias"), trunk=Trunk()).fit(data())
    with pytest.raises(GraphRefused, match="no frozen front"):
        trainer(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), trunk=Trunk()).fit(data())
    with pytest.raises(InputError, match="runs its head on the CPU, one step a call"):
        trainer(trunk=Trunk(), sink_size=4)
