"""The workloads of benchmarks/train_step.py and their batches. Needs NumPy alone: every peer's process imports it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

BATCHES, FEW = 64, 4
LENGTH, VOCABULARY, WIDTH, HEADS, LAYERS = 32, 128, 64, 4, 2
SGD_RATE, ADAM_RATE = 0.05, 1e-3


@dataclass(frozen=True)
class Workload:
    """kind: mlp, lenet, cnn, transformer, gru, resnet18, mobilenet_v3, bert or gpt2. optimizer: sgd or adam. budget:
    the wanted ratio to the faster peer. sizes: of an MLP; of another network the classes. length, vocabulary: of a
    sequence of ids. width, layers: of a transformer.
    """

    name: str
    kind: str
    batch: int
    optimizer: str
    budget: float
    sizes: tuple[int, ...] = ()
    length: int = LENGTH
    vocabulary: int = VOCABULARY
    width: int = WIDTH
    layers: int = LAYERS

    @property
    def rate(self) -> float:
        """The learning rate."""
        return ADAM_RATE if self.optimizer == "adam" else SGD_RATE

    @property
    def large(self) -> bool:
        """Whether a batch, or a step, is so large that a few batches are enough to leave no data in the caches."""
        return self.kind in ("resnet18", "mobilenet_v3", "bert", "gpt2")

    @property
    def tokens(self) -> bool:
        """Whether an example is a sequence of ids, and its label the sequence that follows."""
        return self.kind in ("transformer", "gru", "gpt2")

    @property
    def example(self) -> tuple[int, ...]:
        """Shape of one example."""
        image = (3, 224, 224) if self.large else (1, 28, 28)
        ids = self.tokens or self.kind == "bert"
        return self.sizes[:1] if self.kind == "mlp" else (self.length,) if ids else image

    @property
    def classes(self) -> int:
        """Number of logits."""
        return self.vocabulary if self.tokens else (self.sizes or (10,))[-1]


WORKLOADS = (
    Workload("tiny_mlp_b16_sgd", "mlp", 16, "sgd", 0.8, (20, 16, 2)),
    Workload("mlp200_b32_sgd", "mlp", 32, "sgd", 1.0, (784, 200, 200, 10)),
    Workload("mlp512_b32_sgd", "mlp", 32, "sgd", 1.0, (784, 512, 512, 10)),
    Workload("mlp512_b32_adam", "mlp", 32, "adam", 1.2, (784, 512, 512, 10)),
    Workload("lenet_b16_sgd", "lenet", 16, "sgd", 0.7),
    Workload("fedavg_cnn_b32_sgd", "cnn", 32, "sgd", 1.0),
    Workload("transformer_b16_adam", "transformer", 16, "adam", 1.0),
    Workload("gru_b16_sgd", "gru", 16, "sgd", 1.0),
    Workload("resnet18_b16", "resnet18", 16, "sgd", 1.0, (1000,)),
    Workload("bert_tiny_b16", "bert", 16, "adam", 1.0, (2,), 128, 30522, 256, 4),
)
# Of benchmarks/models.py alone.
MODELS = (
    *(workload for workload in WORKLOADS if workload.large),
    Workload("mobilenet_v3_b16", "mobilenet_v3", 16, "sgd", 1.0, (1000,)),
    Workload("transformer6_b16", "transformer", 16, "adam", 1.0, (), 128, 86, 256, 6),
    Workload("gpt2_b1", "gpt2", 1, "sgd", 1.0, (), 64, 50257, 768, 12),
)
BY_NAME = {workload.name: workload for workload in WORKLOADS + MODELS}


def batches(workload: Workload) -> list[tuple[Any, Any]]:
    """Different batches (x, y), the same on every side, so that none works on data that it has just seen."""
    rng = np.random.default_rng(0)

    def one() -> tuple[Any, Any]:
        if workload.tokens:
            text = rng.integers(0, workload.vocabulary, (workload.batch, workload.length + 1)).astype(np.int32)
            return np.ascontiguousarray(text[:, :-1]), np.ascontiguousarray(text[:, 1:])
        if workload.kind == "bert":
            ids = rng.integers(1, workload.vocabulary, (workload.batch, workload.length)).astype(np.int32)
            return ids, rng.integers(0, workload.classes, workload.batch).astype(np.int32)
        x = rng.normal(size=(workload.batch, *workload.example)).astype(np.float32)
        return x, rng.integers(0, workload.classes, workload.batch).astype(np.int32)

    return [one() for _ in range(FEW if workload.large else BATCHES)]
