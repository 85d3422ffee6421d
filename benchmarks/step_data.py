"""The workloads of benchmarks/train_step.py and their batches. Needs NumPy alone: every peer's process imports it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

BATCHES = 64
LENGTH, VOCABULARY, WIDTH, HEADS, LAYERS = 32, 128, 64, 4, 2
SGD_RATE, ADAM_RATE = 0.05, 1e-3


@dataclass(frozen=True)
class Workload:
    """kind: mlp, lenet, cnn, transformer or gru. sizes: of an MLP. optimizer: sgd or adam. budget: the wanted ratio to
    the faster peer.
    """

    name: str
    kind: str
    batch: int
    optimizer: str
    budget: float
    sizes: tuple[int, ...] = ()

    @property
    def rate(self) -> float:
        """The learning rate."""
        return ADAM_RATE if self.optimizer == "adam" else SGD_RATE

    @property
    def tokens(self) -> bool:
        """Whether an example is a sequence of ids, and its label the sequence that follows."""
        return self.kind in ("transformer", "gru")

    @property
    def example(self) -> tuple[int, ...]:
        """Shape of one example."""
        return {"mlp": self.sizes[:1], "transformer": (LENGTH,), "gru": (LENGTH,)}.get(self.kind, (1, 28, 28))

    @property
    def classes(self) -> int:
        """Number of logits."""
        return VOCABULARY if self.tokens else (self.sizes or (10,))[-1]


WORKLOADS = (
    Workload("tiny_mlp_b16_sgd", "mlp", 16, "sgd", 0.8, (20, 16, 2)),
    Workload("mlp200_b32_sgd", "mlp", 32, "sgd", 1.0, (784, 200, 200, 10)),
    Workload("mlp512_b32_sgd", "mlp", 32, "sgd", 1.0, (784, 512, 512, 10)),
    Workload("mlp512_b32_adam", "mlp", 32, "adam", 1.2, (784, 512, 512, 10)),
    Workload("lenet_b16_sgd", "lenet", 16, "sgd", 0.7),
    Workload("fedavg_cnn_b32_sgd", "cnn", 32, "sgd", 1.0),
    Workload("transformer_b16_adam", "transformer", 16, "adam", 1.0),
    Workload("gru_b16_sgd", "gru", 16, "sgd", 1.0),
)
BY_NAME = {workload.name: workload for workload in WORKLOADS}


def batches(workload: Workload) -> list[tuple[Any, Any]]:
    """Different batches (x, y), the same on every side, so that none works on data that it has just seen."""
    rng = np.random.default_rng(0)

    def one() -> tuple[Any, Any]:
        if workload.tokens:
            text = rng.integers(0, VOCABULARY, (workload.batch, LENGTH + 1)).astype(np.int32)
            return np.ascontiguousarray(text[:, :-1]), np.ascontiguousarray(text[:, 1:])
        x = rng.normal(size=(workload.batch, *workload.example)).astype(np.float32)
        return x, rng.integers(0, workload.classes, workload.batch).astype(np.int32)

    return [one() for _ in range(BATCHES)]
