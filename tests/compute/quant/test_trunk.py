"""A frozen front in integers under a head that trains in floats: what the hybrid plan of the runtime is for."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coterie.compute import nn, optim
from coterie.compute.array import Array
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec
from coterie.compute.quant import quantise
from coterie.compute.quant.reporting import operators_run
from coterie.compute.runtime.hybrid_loop import Trunk
from coterie.compute.training import Trainer
from tests.compute.quant.graphs import CNN, stripes, trained_cnn

FRONT = ("0.", "3.")


@dataclass(frozen=True)
class FrozenFront(Module):
    """The CNN whose convolutions do not train."""

    def specs(self) -> dict[str, ParameterSpec]:
        frozen = {name for name in CNN.specs() if name.startswith(FRONT)}
        return {name: replace(spec, role="frozen") if name in frozen else spec for name, spec in CNN.specs().items()}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        return CNN(params, x, mode)


def test_a_head_trains_on_what_a_front_in_integers_makes() -> None:
    data, test = stripes(640, 4), stripes(300, 9)
    front = {name: value for name, value in trained_cnn().items() if name.startswith(FRONT)}
    made: list[bytes] = []

    def in_integers(model: bytes, batches: Any) -> bytes:
        made.append(quantise(model, batches))
        return made[-1]

    def run(trunk: Trunk | None) -> tuple[Any, float]:
        metrics = {"accuracy": nn.metrics.accuracy}
        options: dict[str, Any] = {"batch_size": 32, "initial": front, "metrics": metrics, "trunk": trunk}
        trainer = Trainer(FrozenFront(), softmax_cross_entropy, optim.adam(0.005), **options)
        return trainer.fit(data, epochs=3).losses, trainer.evaluate(test)["accuracy"]

    (plain, before), (mixed, after) = run(None), run(Trunk(quantise=in_integers, calibration=8))
    (file,) = made
    assert operators_run(file)["QLinearConv"] == 2 and not operators_run(file)["Conv"]
    np.testing.assert_allclose(mixed, plain, atol=0.1)
    assert (mixed != plain).any() and after >= before - 0.02 > 0.8
