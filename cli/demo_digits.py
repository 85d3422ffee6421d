"""The demo's experiment: handwritten digits, split unevenly, and rows that no client holds."""

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coterie.errors import ConfigurationError
from coterie.protocol.arrays import ArrayDict

if TYPE_CHECKING:
    from coterie.aggregation.experiment import Experiment

HELD_OUT = 360
SKEW = 0.5
PIXELS = 64
LARGEST = 16.0


@dataclass(frozen=True)
class Digits:
    """One dictionary {"x": float32 [n, 64], "y": int32 [n]} for each client, and the rows held out from all of them."""

    clients: tuple[ArrayDict, ...]
    held_out: ArrayDict


def load(*, clients: int, seed: int) -> Digits:
    """Scikit-learn's 1797 handwritten digits (8 × 8, UCI Optical Recognition), split by Dirichlet(0.5) over labels.

    The file is read without importing scikit-learn, which would cost more time than a round of training.
    """
    from coterie.simulation import dirichlet

    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise ConfigurationError(
            "The demo trains on scikit-learn's digits, and scikit-learn is not installed.",
            hint='Run: pip install "coterie[demo]"',
            code="extra_missing",
        )
    with gzip.open(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", "rb") as file:
        table = np.array(file.read().replace(b"\n", b",").rstrip(b",").split(b","), dtype=np.float32)
    table = table.reshape(-1, PIXELS + 1)
    table = table[np.random.default_rng(seed).permutation(len(table))]
    x, y = np.ascontiguousarray(table[:, :PIXELS]), table[:, PIXELS].astype(np.int32)
    held_out: ArrayDict = {"x": x[:HELD_OUT], "y": y[:HELD_OUT]}
    x, y = x[HELD_OUT:], y[HELD_OUT:]
    parts = dirichlet(y, clients, alpha=SKEW, seed=seed, minimum=16)
    return Digits(clients=tuple({"x": x[part], "y": y[part]} for part in parts), held_out=held_out)


def experiment(digits: Digits, *, rounds: int, seed: int) -> "Experiment":
    """A small perceptron, federated averaging, and central evaluation on the held-out rows after every round."""
    from coterie.aggregation.experiment import Experiment
    from coterie.compute import nn, optim
    from coterie.protocol.rounds import RoundPolicy
    from coterie.protocol.schema import DataSchema, Feature, Label

    clients = len(digits.clients)
    return Experiment(
        name="digits",
        model=nn.zoo.mlp((PIXELS, 64, 10)),
        loss=nn.losses.softmax_cross_entropy,
        metrics={"accuracy": nn.metrics.accuracy},
        schema=DataSchema(
            features=(Feature(name="x", shape=(PIXELS,), low=0.0, high=LARGEST, scale=1 / LARGEST),),
            label=Label(name="y", low=0, high=9),
        ),
        optimizer=optim.sgd(0.1, momentum=0.9),
        rounds=RoundPolicy(
            rounds=rounds,
            cohort=clients,
            min_updates=max(1, clients * 8 // 10),
            deadline_s=30.0,
            lease_s=15.0,
            evaluate_every=0,
        ),
        batch_size=16,
        epochs=4,
        holdout=0.0,
        evaluation=digits.held_out,
        seed=seed,
    )


def accuracy(model: Path, rows: Mapping[str, npt.NDArray[Any]]) -> float:
    """The share of rows that infer.onnx gets right in a bare onnxruntime session."""
    onnxruntime: Any = import_module("onnxruntime")  # it brings no types
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    batch = int(entry.shape[0])
    right = 0
    for start in range(0, len(rows["y"]), batch):
        x, y = rows["x"][start : start + batch], rows["y"][start : start + batch]
        padded = np.zeros((batch, *x.shape[1:]), np.float32)
        padded[: len(x)] = x
        (output,) = session.run(None, {entry.name: padded})
        right += int((np.argmax(output[: len(x)], axis=1) == y).sum())
    return right / len(rows["y"])
