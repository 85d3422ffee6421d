"""The next character of 155 roles of Shakespeare: one federated model against each role's own.

    COTERIE_DATA=DIR python benchmarks/shakespeare.py [--json] [--quick] [--rounds 30] [--epochs 5] [--seed 0]

DIR holds shakespeare.jsonl.gz: one record per (play, role). A client is a role with at least 20 lines, which is the
natural split of LEAF (Caldas et al., 2018): the first four fifths of its lines are for training, the rest for testing.
A row is a window of 20 characters and the character after it. The model is an embedding, a GRU of 64 and a linear
layer. Federated: FedAvg, 16 of the roles in a round, one epoch of SGD each, measured after the last round. Local only:
every role trains the same model from the same first weights at the same rate, for ``--epochs`` epochs or 200 steps if
that is more, which is more work in all than the federated rounds; it is measured after each fifth of them, and its best
fifth on the test rows counts, which no role could know.
Both are measured on the roles' test rows: over all rows, as a mean over roles, on the worst decile of roles, and as the
share of roles that the federated model serves better. Each prints one line (see lines.py).
"""

import argparse
import gzip
import json
import math
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lines import Line, Peer, show
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from coterie.aggregation.compiling.compile import CompiledPlan, compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.plan.manifest import DELTA
from coterie.client_sdk.device.trainers.base import LocalTask, LocalWork
from coterie.client_sdk.device.trainers.plan import PlanTrainer
from coterie.compute.array import Array
from coterie.compute.nn import GRU, Embedding, Linear, Module
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Parameters, ParameterSpec
from coterie.compute.nn.sequential import Sequential
from coterie.compute.optim import sgd
from coterie.protocol.metrics import MetricSums
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import simulate_full

WINDOW, STRIDE = 20, 3
LEAST_LINES, LEAST_STEPS = 20, 200
TRAIN_SHARE = 0.8
RATE, BATCH, COHORT, WIDTH = 0.8, 32, 16, 64
UNITS = {
    "accuracy": "of the test rows",
    "loss": "nats",
    "mean_over_roles": "of the test rows",
    "worst_decile": "of the test rows",
}

Rows = dict[str, NDArray[Any]]
Tensors = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Last(Module):
    """The last of a sequence's steps: [B, T, size] → [B, size]."""

    def specs(self) -> dict[str, ParameterSpec]:
        """It has no parameters."""
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        return x[:, -1, :]


def roles(path: Path) -> tuple[list[tuple[Rows, Rows]], int]:
    """Training and test rows of every role with enough lines, and the number of distinct characters."""
    if not path.is_file():
        sys.exit(f"There is no {path}. Set COTERIE_DATA to the folder that holds shakespeare.jsonl.gz.")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        records = [record for record in map(json.loads, file) if record["n_lines"] >= LEAST_LINES]
    characters = sorted({character for record in records for character in record["text"]})
    number = {character: at for at, character in enumerate(characters)}
    made: list[tuple[Rows, Rows]] = []
    for record in records:
        lines = record["text"].split("\n")
        cut = round(TRAIN_SHARE * len(lines))
        texts = ("\n".join(lines[:cut]), "\n".join(lines[cut:]))
        train, test = (windows(np.array([number[one] for one in text], np.int32)) for text in texts)
        if len(train["next"]) and len(test["next"]):
            made.append((train, test))
    return made, len(characters)


def windows(text: NDArray[np.int32]) -> Rows:
    """Every STRIDE-th window and the character that follows it."""
    if len(text) <= WINDOW:
        return {"text": np.zeros((0, WINDOW), np.int32), "next": np.zeros(0, np.int32)}
    taken = sliding_window_view(text, WINDOW + 1)[::STRIDE]
    return {"text": np.ascontiguousarray(taken[:, :-1]), "next": np.ascontiguousarray(taken[:, -1])}


def experiment(characters: int, *, rounds: int, cohort: int, seed: int) -> Experiment:
    """One epoch of SGD by each of a round's roles."""
    return Experiment(
        name="shakespeare",
        model=Sequential(Embedding(characters, 8), GRU(8, WIDTH), Last(), Linear(WIDTH, characters)),
        schema=DataSchema(
            (Feature(name="text", dtype="int32", shape=(WINDOW,), low=0, high=characters - 1),),
            Label(name="next", low=0, high=characters - 1),
        ),
        loss=softmax_cross_entropy,
        metrics={"accuracy": accuracy},
        optimizer=sgd(RATE),
        batch_size=BATCH,
        holdout=0.0,
        rounds=RoundPolicy(rounds=rounds, cohort=cohort, evaluate_every=0, weight_cap=1 << 20),
        secure_aggregation=False,
        seed=seed,
    )


def local_only(compiled: CompiledPlan, data: list[tuple[Rows, Rows]], epochs: int, seed: int) -> list[MetricSums]:
    """What each role's own model scores on the role's test rows."""
    trainer = PlanTrainer()
    layout = compiled.plan.manifest.layout
    first = layout.flatten(compiled.initial)
    found: list[MetricSums] = []
    for number, (train, test) in enumerate(data):
        weights, scores = first, list[MetricSums]()
        passes = max(epochs, math.ceil(LEAST_STEPS / math.ceil(len(train["next"]) / BATCH)))
        looks = {math.ceil(passes * fifth / 5) for fifth in range(1, 6)}
        for epoch in range(1, passes + 1):
            task = LocalTask(experiment="local", round=epoch, seed=seed * 1_000_003 + number * 1009 + epoch)
            work = LocalWork(plan=compiled.plan, task=task, weights=layout.unflatten(weights), rows=train)
            result = trainer.train(work)
            weights = weights + result.sections[DELTA]
            if epoch in looks:
                scores.append(measure(trainer, compiled, layout.unflatten(weights), test))
        found.append(max(scores, key=lambda sums: sums.means()["accuracy"]))
    return found


def measure(trainer: PlanTrainer, compiled: CompiledPlan, weights: Tensors, rows: Rows) -> MetricSums:
    """The sums of loss and accuracy over rows."""
    task = LocalTask(experiment="measure", round=0, seed=0)
    return trainer.evaluate(LocalWork(plan=compiled.plan, task=task, weights=weights, rows=rows))


def summary(each: list[MetricSums]) -> dict[str, float]:
    """Accuracy over all rows, over roles, and on the worst decile of roles."""
    together = MetricSums()
    for sums in each:
        together = together.merge(sums)
    own = np.sort([sums.means()["accuracy"] for sums in each])
    tenth = -(-len(own) // 10)
    return {
        "accuracy": round(together.means()["accuracy"], 4),
        "loss": round(together.means()["loss"], 4),
        "mean_over_roles": round(float(own.mean()), 4),
        "worst_decile": round(float(own[:tenth].mean()), 4),
    }


def main() -> None:
    """Train both ways and print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("COTERIE_DATA", "."), help="folder with shakespeare.jsonl.gz")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--epochs", type=int, default=5, help="of every role that trains alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--quick", action="store_true", help="twelve roles and three rounds: only that it runs")
    parser.add_argument("--json", action="store_true", help="JSON lines")
    chosen = parser.parse_args()
    data, characters = roles(Path(chosen.data) / "shakespeare.jsonl.gz")
    rounds, epochs, cohort = chosen.rounds, chosen.epochs, COHORT
    if chosen.quick:
        data, rounds, epochs, cohort = data[:12], 3, 1, 4
    wanted = experiment(characters, rounds=rounds, cohort=cohort, seed=chosen.seed)
    compiled = compile_plan(wanted)
    begun = time.monotonic()
    result = simulate_full(wanted, [train for train, _ in data], workers=chosen.workers)
    between = time.monotonic()
    trainer, weights = PlanTrainer(), {name: np.asarray(value) for name, value in result.weights.items()}
    federated = [measure(trainer, compiled, weights, test) for _, test in data]
    local = local_only(compiled, data, epochs, chosen.seed)
    better = [a.means()["accuracy"] > b.means()["accuracy"] for a, b in zip(federated, local, strict=True)]
    often = max(np.unique(np.concatenate([test["next"] for _, test in data]), return_counts=True)[1])
    together, alone = summary(federated), summary(local)
    details = {
        "roles": len(data),
        "train_rows": sum(len(train["next"]) for train, _ in data),
        "test_rows": sum(len(test["next"]) for _, test in data),
        "commonest_character": round(float(often) / sum(len(test["next"]) for _, test in data), 4),
        "rounds": rounds,
        "local_epochs": epochs,
        "seconds_federated": round(between - begun, 1),
        "seconds_local": round(time.monotonic() - between, 1),
    }
    for name, unit in UNITS.items():
        show(Line(name, together[name], unit, Peer("local only", alone[name])), as_json=chosen.json)
    show(Line("better federated", float(np.mean(better)), "of the roles", details=details), as_json=chosen.json)


if __name__ == "__main__":
    main()
