"""Accumulation in a plan: micro-batches with padding, on a device, equal the large batch."""

from typing import Any

import numpy as np
import pytest

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.horizontal import Algorithm, FedAvg, FedProx
from coterie.compute.optim import Optimizer, adam, clipped, sgd
from coterie.compute.training.accumulation import accumulate


@pytest.mark.parametrize("algorithm", [FedAvg(), FedProx(0.5)], ids=["fedavg", "fedprox"])
@pytest.mark.parametrize(
    "optimizer", [sgd(0.3, momentum=0.9), adam(0.1), clipped(sgd(0.3), 0.1)], ids=["momentum", "adam", "clipped"]
)
def test_micro_batches_with_padding_equal_the_large_batch(
    optimizer: Optimizer, algorithm: Algorithm, make_experiment: Any, make_batch: Any, drive: Any
) -> None:
    def plan(batch_size: int, chosen: Optimizer) -> Any:
        return compile_plan(make_experiment(optimizer=chosen, algorithm=algorithm, batch_size=batch_size))

    few, many = plan(6, accumulate(optimizer, 2)), plan(12, optimizer)
    rows = [make_batch((4,), rows=6, seed=seed, real=6 if seed % 2 else 4) for seed in range(4)]
    joined = [
        {name: np.concatenate([a[name], b[name]]) for name in a} for a, b in zip(rows[::2], rows[1::2], strict=True)
    ]
    left = drive(few.plan, few.initial, [*rows, make_batch((4,), rows=6, seed=9)])
    right = drive(many.plan, many.initial, joined)
    for name in few.initial:
        # The fifth micro-batch is half a group: it moves nothing.
        np.testing.assert_allclose(left.state[f"shared/{name}"], right.state[f"shared/{name}"], rtol=1e-5, atol=1e-6)
    assert left.state["metric/examples"] == 26 and left.state["optimizer/accumulate.count"] == 1
    assert left.upload.keys() == right.upload.keys()
