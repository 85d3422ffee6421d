"""Optimizers that follow curvature compile into plans and keep the padding laws there."""

from typing import Any

import numpy as np
import pytest

from coterie.aggregation.compiling.compile import compile_plan
from coterie.compute.nn import Conv2d, Flatten, Linear, ReLU, Sequential
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import Optimizer, lbfgs, shampoo
from coterie.compute.optim.sgd import sgd
from coterie.compute.step.precision import Precision, skipping_overflows

OPTIMIZERS = {
    "shampoo": shampoo(0.1),
    "shampoo of short axes": shampoo(0.1, largest=4),
    "lbfgs": lbfgs(0.5, memory=2),
    "loss scaled": skipping_overflows(sgd(0.3, momentum=0.9), Precision(scale=1.0, grow_after=None)),
}
MODELS = {
    "mlp": (mlp((4, 5, 3)), (4,)),
    "conv": (Sequential(Conv2d(1, 2, 3), ReLU(), Flatten(), Linear(8, 3)), (1, 4, 4)),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_inactive_step_returns_the_state_bit_for_bit_and_others_learn(
    optimizer: Optimizer, model: str, make_experiment: Any, schema_of: Any, make_batch: Any, drive: Any
) -> None:
    module, shape = MODELS[model]
    compiled = compile_plan(make_experiment(model=module, optimizer=optimizer, schema=schema_of(shape)))
    batch = make_batch(shape, real=5)
    driven = drive(compiled.plan, compiled.initial, [batch] * 12, active=[0.0] + [1.0] * 10 + [0.0])
    for name, value in driven.steps[10].items():
        assert driven.steps[11][name].tobytes() == value.tobytes(), name
        assert np.isfinite(value).all()
    for name, value in compiled.initial.items():
        assert driven.steps[0][f"shared/{name}"].tobytes() == (value + np.float32(0)).tobytes()
    losses = np.diff([step["metric/loss"].item() for step in driven.steps[:11]])
    assert losses[-1] < 0.8 * losses[0], "it learns the one batch"
