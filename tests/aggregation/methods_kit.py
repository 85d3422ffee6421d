"""A federation in its plainest form: every client's graphs driven by hand, every round's job on real files.

Beside it, gradients of a small model in NumPy, from which a paper's algorithm can be written down independently.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.aggregation.aggregate import aggregate_updates
from coterie.aggregation.compiling.compile import CompiledPlan
from coterie.aggregation.experiment import Experiment
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.tensors import encode_tensors, read_file
from coterie.protocol.update import encode_update

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]
Batch = Mapping[str, Array]
Loss = Callable[[Vector, Array, Array], Vector]


@dataclass
class Federation:
    """An experiment under way over clients that are lists of batches. version: the model now; kept: the clients'
    states; answers: what each client of the last round sent.
    """

    experiment: Experiment
    compiled: CompiledPlan
    drive: Callable[..., Any]
    folder: Path
    version: dict[str, Array] = field(init=False)
    kept: dict[int, dict[str, Array]] = field(default_factory=dict[int, dict[str, Array]])
    answers: dict[int, Any] = field(default_factory=dict[int, Any])
    server_state: Path | None = None
    rounds: int = 0

    def __post_init__(self) -> None:
        self.version = {name: np.asarray(value) for name, value in self.compiled.initial.items()}

    def round(self, cohort: Mapping[int, Sequence[Batch]], *, names: Mapping[int, int] | None = None) -> None:
        """One round. names: what the clients are called, which sorts their updates."""
        self.rounds += 1
        manifest, folder = self.compiled.plan.manifest, self.folder / f"round{self.rounds}"
        folder.mkdir(parents=True)
        (folder / "base").write_bytes(encode_tensors(self.version))
        for number, batches in cohort.items():
            answer = self.drive(
                self.compiled.plan,
                self.version,
                batches,
                client_state=self.kept.get(number),
                weight=float(count(batches)),
            )
            name = number if names is None else names[number]
            (folder / f"update{name:04}").write_bytes(self._encode(name, batches, answer.upload, folder))
            self.answers[number] = answer
        result = aggregate_updates(
            manifest,
            base=folder / "base",
            updates=sorted(folder.glob("update*")),
            server=self.experiment.server_optimizer,
            server_state=self.server_state,
            out=folder / "out",
        )
        self.server_state = None if result.state is None else Path(result.state)
        self.version = {name: np.asarray(value) for name, value in read_file(Path(result.weights)).items()}
        self.kept |= {number: self.answers[number].client_state for number in cohort}

    def vector(self, prefix: str = "") -> Vector:
        """The tensors of the version whose names begin with the prefix, in the model's order, as one vector."""
        own = [name for name in self.compiled.plan.manifest.layout.names if name.startswith(prefix)]
        own = own if prefix else [name for name in own if "/" not in name]
        return np.concatenate([self.version[name].reshape(-1) for name in own]).astype(np.float64)

    def state(self, client: int, prefix: str = "") -> Vector:
        """A client's state likewise."""
        own = {name: value for name, value in self.kept[client].items() if name.startswith(prefix)}
        names = [f"{prefix}{name}" for name in self.compiled.plan.manifest.layout.names if f"{prefix}{name}" in own]
        return np.concatenate([own[name].reshape(-1) for name in names]).astype(np.float64)

    def _encode(self, name: int, batches: Sequence[Batch], upload: Mapping[str, Array], folder: Path) -> bytes:
        manifest = self.compiled.plan.manifest
        return encode_update(
            task=f"task-{name:04}",
            plan=manifest.id,
            base=sha256_hex((folder / "base").read_bytes()),
            weight=count(batches),
            steps=len(batches),
            specs=manifest.sections,
            sections=upload,
        ).data


def count(batches: Sequence[Batch]) -> int:
    """Rows that count."""
    return int(sum(batch["sample_weight"].sum() for batch in batches))


def softmax_regression(weights: Vector, x: Array, y: Array) -> Vector:
    """Cross entropy of each row under logits x Wᵀ + b, W ``[3, 4]`` then b ``[3]`` in one vector."""
    matrix, bias = weights[:12].reshape(3, 4), weights[12:]
    return cross_entropy(x.astype(np.float64) @ matrix.T + bias, y)


def cross_entropy(logits: Vector, y: Array) -> Vector:
    """Of each row."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(y)), y]


def gradient(objective: Callable[[Vector], float], weights: Vector, step: float = 1e-6) -> Vector:
    """By central differences."""
    slopes = np.empty_like(weights)
    for index in range(weights.size):
        ahead, behind = weights.copy(), weights.copy()
        ahead[index] += step
        behind[index] -= step
        slopes[index] = (objective(ahead) - objective(behind)) / (2 * step)
    return slopes


def mean_loss(loss: Loss, weights: Vector, batch: Batch) -> float:
    """Of the rows of a batch that count."""
    real = batch["sample_weight"] > 0
    return float(loss(weights, batch["x"][real], batch["y"][real]).mean())


def descend(
    weights: Vector,
    batches: Sequence[Batch],
    rate: float,
    *,
    loss: Loss = softmax_regression,
    correct: Callable[[Vector, Vector], Vector] = lambda slopes, weights: slopes,
    momentum: float = 0.0,
) -> Vector:
    """Local gradient descent over the batches; correct(gradient, weights) is what is stepped along."""
    velocity = np.zeros_like(weights)
    for batch in batches:
        slopes = gradient(lambda w, batch=batch: mean_loss(loss, w, batch), weights)
        velocity = momentum * velocity + correct(slopes, weights)
        weights = weights - rate * velocity
    return weights
