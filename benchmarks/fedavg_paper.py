"""MNIST as in the paper that named FedAvg: rounds to 99 % test accuracy, and the pathological two-class split.

    COTERIE_DATA=DIR python benchmarks/fedavg_paper.py [--json] [--quick] [--splits iid shards] [--rounds N] [--rate R]
    [--out DIR]

McMahan et al. (2017, "Communication-efficient learning of deep networks from decentralized data"), section 3: the CNN
of 1 663 370 parameters, 100 clients of 600 images, a tenth of them in a round (C = 0.1), five local epochs (E = 5) in
batches of 10 (B = 10). ``iid``: images shuffled; stops when test accuracy reaches 99 % (table 2: 20 rounds, where
FedSGD takes 626). ``shards``: images sorted by digit and cut into 200 shards, two to a client; the curve of 100 rounds
(the same table: 229 rounds to 99 %, so the curve ends before). The paper tunes the rate for every cell and does not
print it; 0.2 for iid and 0.05 for shards are ours.

Per round one line (see lines.py), and one at the end: the rounds to the goal, counted as the paper does, by the best
accuracy so far, interpolated linearly between rounds; none when it never got there. With --out the curves as well
(rounds.jsonl, rounds.csv, rounds.svg).
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from lines import Line, show
from numpy.typing import NDArray

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.history import History
from coterie.aggregation.run_files import write_run
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.nn.zoo import fedavg_cnn
from coterie.compute.optim import sgd
from coterie.protocol.rounds import RoundPolicy, Target
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import simulate_full
from coterie.simulation.partition import Partition, iid, shards, split

CLIENTS, COHORT, EPOCHS, BATCH = 100, 10, 5, 10
GOAL = 0.99
PUBLISHED = {"iid": 20, "shards": 229}
ROUNDS = {"iid": 60, "shards": 100}
RATES = {"iid": 0.2, "shards": 0.05}
SCHEMA = DataSchema(
    (Feature(name="image", dtype="uint8", shape=(1, 28, 28), scale=1 / 255),), Label(name="digit", low=0, high=9)
)

Rows = dict[str, NDArray[Any]]


def mnist(folder: Path) -> tuple[Rows, Rows]:
    """All 60 000 training rows and 10 000 test rows."""
    path = folder / "mnist.npz"
    if not path.is_file():
        sys.exit(f"There is no {path}. Set COTERIE_DATA to the folder that holds mnist.npz.")
    with np.load(path, allow_pickle=False) as file:
        train, test = (
            {"image": file[f"x_{part}"].reshape(-1, 1, 28, 28), "digit": file[f"y_{part}"].astype(np.int32)}
            for part in ("train", "test")
        )
    return train, test


def divided(name: str, labels: NDArray[np.int32], seed: int) -> Partition:
    """The split of that name."""
    return iid(len(labels), CLIENTS, seed=seed) if name == "iid" else shards(labels, CLIENTS, seed=seed, per_client=2)


def experiment(name: str, test: Rows, *, rounds: int, rate: float, seed: int) -> Experiment:
    """The paper's setting; every version is measured on all test rows."""
    return Experiment(
        name=f"mnist-{name}",
        model=fedavg_cnn(),
        schema=SCHEMA,
        loss=softmax_cross_entropy,
        metrics={"accuracy": accuracy},
        optimizer=sgd(rate),
        batch_size=BATCH,
        epochs=EPOCHS,
        holdout=0.0,
        rounds=RoundPolicy(
            rounds=rounds,
            cohort=COHORT,
            evaluate_every=0,
            target=Target(metric="accuracy", value=GOAL, mode="max") if name == "iid" else None,
        ),
        evaluation=test,
        seed=seed,
        secure_aggregation=False,
    )


def rounds_to(history: History, goal: float) -> float | None:
    """Rounds until the best accuracy so far crosses the goal, interpolated; None when it never does."""
    best, before = 0.0, 0
    for round, value in history.curve("accuracy"):
        if value >= goal:
            return before + (round - before) * (goal - best) / (value - best)
        best, before = max(best, value), round
    return None


def main() -> None:
    """Run the splits asked for, and print what each reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("COTERIE_DATA", "."), help="folder with mnist.npz")
    parser.add_argument("--splits", nargs="+", choices=tuple(PUBLISHED), default=list(PUBLISHED))
    parser.add_argument("--rounds", type=int, help="instead of 60 (iid) and 100 (shards)")
    parser.add_argument("--rate", type=float, help="instead of 0.2 (iid) and 0.05 (shards)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--engine", default="threads")
    parser.add_argument("--out", type=Path, help="folder for the curves of each split")
    parser.add_argument("--quick", action="store_true", help="two rounds on a twentieth of the rows: only that it runs")
    parser.add_argument("--json", action="store_true", help="JSON lines")
    chosen = parser.parse_args()
    train, test = mnist(Path(chosen.data))
    if chosen.quick:
        train, test = (
            {name: array[:count] for name, array in part.items()} for part, count in ((train, 3000), (test, 1000))
        )
    for name in chosen.splits:
        rounds = chosen.rounds or (2 if chosen.quick else ROUNDS[name])
        wanted = experiment(name, test, rounds=rounds, rate=chosen.rate or RATES[name], seed=chosen.seed)
        parts = divided(name, train["digit"], chosen.seed).labelled(train["digit"])

        def tell(event: Any, name: str = name) -> None:
            if event["event"] == "round":
                case, more = f"{name}, round {event['round']}", {key: event[key] for key in ("loss", "seconds")}
                show(Line(case, event["accuracy"], "of the test rows", details=more), as_json=chosen.json)

        begun = time.monotonic()
        history = simulate_full(
            wanted, split(train, parts), workers=chosen.workers, engine=chosen.engine, on_event=tell
        ).history
        curve = [value for _, value in history.curve("accuracy")]
        details = {
            "published": PUBLISHED[name],
            "emd": round(parts.skew.mean_emd, 3),
            "rounds": len(history),
            "best": max(curve),
            "last": curve[-1],
            "seconds": round(time.monotonic() - begun, 1),
            "seconds_per_round": round((time.monotonic() - begun) / len(history), 2),
        }
        if chosen.out:
            write_run(chosen.out / name, wanted.name, history)
        show(Line(name, rounds_to(history, GOAL), f"rounds to {GOAL}", details=details), as_json=chosen.json)


if __name__ == "__main__":
    main()
