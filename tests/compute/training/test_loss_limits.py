"""Losses at the ends of float32: what is right, and never NaN where there is an answer."""

import numpy as np
import pytest

import coterie.compute as cc
from coterie.compute.nn.losses import softmax_cross_entropy

LOW, HIGH = -3e38, 3e38


@pytest.mark.parametrize(
    ("logits", "label", "loss", "gradient"),
    [
        ([0.0, -np.inf, 0.0], 0, np.log(2), [-0.5, 0.0, 0.5]),
        ([-np.inf, 0.0, -np.inf], 1, 0.0, [0.0, 0.0, 0.0]),
        ([HIGH, LOW, 0.0], 0, 0.0, [0.0, 0.0, 0.0]),
        ([HIGH, LOW, 0.0], 2, HIGH, [1.0, 0.0, -1.0]),
        ([0.0, -np.inf], 1, np.inf, [1.0, -1.0]),
    ],
)
def test_a_class_that_is_ruled_out_spoils_no_other(
    logits: list[float], label: int, loss: float, gradient: list[float]
) -> None:
    rows, labels = np.array([logits], np.float32), np.array([label], np.int32)
    assert np.asarray(cc.jit(softmax_cross_entropy)(rows, labels)) == pytest.approx(loss, rel=1e-6)

    def total(rows: cc.Array, labels: cc.Array) -> cc.Array:
        return softmax_cross_entropy(rows, labels)[0]

    assert np.asarray(cc.jit(cc.grad(total))(rows, labels))[0] == pytest.approx(gradient, abs=1e-6)
