"""A loss that is no number ends a training at once, says why, and leaves the trainer where it was."""

import numpy as np
import pytest

from coterie.compute import nn, optim
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.training import Trainer
from coterie.errors import DataError, InputError

RNG = np.random.default_rng(0)
ROWS = {"x": RNG.normal(size=(40, 4)).astype(np.float32), "y": RNG.integers(0, 3, 40)}


def trainer(rate: float, sink_size: int = 1) -> Trainer:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    return Trainer(net, softmax_cross_entropy, optim.sgd(rate), batch_size=8, sink_size=sink_size)


@pytest.mark.parametrize("sink_size", [1, 2])
def test_a_rate_that_is_too_high_is_said_with_its_step(sink_size: int) -> None:
    made = trainer(1e30, sink_size=sink_size)
    before = made.params
    with pytest.raises(InputError, match=r"Training diverged: the loss is \S+ in step 2") as refused:
        made.fit(ROWS, epochs=3)
    assert refused.value.reason == "training_diverged" and "Lower the learning rate" in str(refused.value.hint)
    assert made.steps == 0 and all(np.array_equal(made.params[name], value) for name, value in before.items())


def test_rows_that_are_no_numbers_are_named() -> None:
    x = ROWS["x"].copy()
    x[3, 2] = np.nan
    made = trainer(0.1)
    with pytest.raises(DataError, match=r"'x' holds nan at \[\d, 2\] of its batch") as refused:
        made.fit({**ROWS, "x": x})
    assert refused.value.reason == "data_cell"
    assert len(made.fit(ROWS).losses) == 5
