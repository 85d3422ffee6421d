"""Trained models and their files for the tests of quantisation."""

from functools import cache
from typing import Any

import numpy as np

from coterie.compute import TensorSpec, nn, optim, optimise, to_onnx, trace_named
from coterie.compute.ir import NDArray
from coterie.compute.onnx.weights import embed_weights
from coterie.compute.training import Trainer

CNN = nn.Sequential(
    nn.Conv2d(1, 6, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(6, 8, 3),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(32, 16),
    nn.ReLU(),
    nn.Linear(16, 4),
)


def stripes(count: int, seed: int) -> dict[str, NDArray]:
    """Images [count, 1, 8, 8] with a bright stripe: which of four ways it runs is the label."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, count).astype(np.int32)
    at = rng.integers(1, 7, count)
    x = rng.normal(0, 0.45, (count, 1, 8, 8)).astype(np.float32)
    for row, (way, place) in enumerate(zip(y, at, strict=True)):
        if way == 0:
            x[row, 0, place] += 1
        elif way == 1:
            x[row, 0, :, place] += 1
        else:
            turned = np.eye(8, k=int(place) - 4, dtype=np.float32)
            x[row, 0] += turned if way == 2 else turned[::-1]
    return {"x": x, "y": y}


def exported(model: nn.Module, params: dict[str, NDArray], shape: tuple[int, ...]) -> bytes:
    """The inference graph with its weights inside, from "x" to "output"."""

    def infer(inputs: Any) -> Any:
        return {"output": model({name: inputs[name] for name in params}, inputs["x"])}

    specs = {name: TensorSpec(value.shape) for name, value in params.items()}
    graph = optimise(trace_named(infer, {**specs, "x": TensorSpec(shape)}))
    return embed_weights(to_onnx(graph, name="infer"), params)


@cache
def trained_cnn() -> dict[str, NDArray]:
    """Parameters of the CNN after some epochs."""
    trainer = Trainer(CNN, nn.losses.softmax_cross_entropy, optim.adam(0.005), batch_size=32)
    trainer.fit(stripes(1600, 0), epochs=6)
    return trainer.params


@cache
def small_cnn(rows: int = 1) -> tuple[bytes, NDArray, NDArray]:
    """The trained file that takes so many rows, rows to calibrate with, and other rows with their labels."""
    test = stripes(600, 2)
    return exported(CNN, trained_cnn(), (rows, 1, 8, 8)), stripes(64, 1)["x"], np.array(test["y"])
