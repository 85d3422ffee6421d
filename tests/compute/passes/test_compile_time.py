"""Budgets of compilation, from tracing to a session that is ready, in processor seconds."""

import time

import pytest

from coterie.compute import nn
from coterie.compute.nn.module import Module
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.runtime.executable import Executable
from coterie.compute.trace import TensorSpec
from tests.compute.passes.steps import adam_step


@pytest.mark.parametrize(
    ("model", "x", "labels", "classes", "seconds"),
    [
        (nn.zoo.fedavg_cnn(), TensorSpec((32, 1, 28, 28)), (32,), 10, 0.5),
        (nn.zoo.transformer(), TensorSpec((16, 32), "int32"), (16, 32), 128, 2.0),
    ],
    ids=["fedavg_cnn", "transformer"],
)
def test_a_step_is_compiled_within_its_budget(
    model: Module, x: TensorSpec, labels: tuple[int, ...], classes: int, seconds: float
) -> None:
    best = seconds + 1.0
    for _ in range(3):
        start = time.process_time()
        Executable(to_onnx(adam_step(model, x, labels, classes), name="step"))
        best = min(best, time.process_time() - start)
        if best <= seconds:
            break
    assert best <= seconds
