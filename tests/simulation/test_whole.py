"""From clients' data to a model served by a bare runtime."""

from typing import Any, cast

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
import pytest

from coterie.aggregation.experiment import Experiment
from coterie.compute.array import Array
from coterie.compute.nn import BatchNorm1d, Linear, Sequential, Tanh
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.optim import adam
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import simulate_full

CENTRES = np.array([[2, 0, 0, 1], [0, 2, 1, 0], [-2, 0, 2, 0]], np.float32)


def rows(count: int, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    generator = np.random.Generator(np.random.PCG64(seed))
    y = generator.integers(0, 3, count).astype(np.int32)
    return {"x": (CENTRES[y] + generator.normal(0, 0.4, (count, 4))).astype(np.float32), "y": y}


@pytest.mark.capability("A1")
def test_three_clients_train_one_model_that_a_bare_runtime_serves() -> None:
    """One description of the model: trained by three clients as plans, averaged, exported, and run by a session that
    knows nothing of coterie; its logits are those of the layers on the committed weights.
    """
    model = Sequential(Linear(4, 8), BatchNorm1d(8), Tanh(), Linear(8, 3))
    experiment = Experiment(
        name="whole",
        model=model,
        schema=DataSchema((Feature(name="x", shape=(4,)),), Label(name="y", low=0, high=2)),
        loss=softmax_cross_entropy,
        optimizer=adam(0.05),
        metrics={"accuracy": accuracy},
        batch_size=8,
        rounds=RoundPolicy(rounds=4, cohort=3),
        infer_batch=5,
    )
    result = simulate_full(experiment, [rows(40, seed) for seed in range(3)])
    assert [record.accepted for record in result.history.rounds] == [3] * 4
    session = cast(Any, onnxruntime).InferenceSession(result.infer(best=False), providers=["CPUExecutionProvider"])
    assert [(put.name, put.shape) for put in session.get_inputs()] == [("batch/x", [5, 4])]
    test = rows(100, 9)
    logits = np.concatenate(
        [session.run(None, {"batch/x": test["x"][first : first + 5]})[0] for first in range(0, 100, 5)]
    )
    expected = model({name: Array(value) for name, value in result.weights.items()}, Array(test["x"])).numpy()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)
    assert np.mean(logits.argmax(1) == test["y"]) > 0.9
