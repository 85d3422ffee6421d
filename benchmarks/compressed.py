"""What compressed uploads cost in accuracy: the CNN of the first paper on federated averaging on MNIST, iid.

    python benchmarks/compressed.py --data DIR [--json] [--quick] [--codecs eden:4 ...] [--seeds 0 1 2] [--rounds 20]
        [--rows 1200] [--workers 1]

DIR holds mnist.npz. Ten clients with 1,200 rows each, drawn iid, all in every round, two local epochs in batches
of 20, 20 rounds; each seed draws the rows and the first weights anew. Each codec prints two lines (see lines.py), over
the seeds: the mean test accuracy after the last round less that of float32, in percentage points, and the bytes that it
uploads beside those of float32. Wanted: ``eden:4`` and ``topk:0.01+ef`` within 0.5 point at no more than 1/7.8 and 1/30
of the bytes.
"""

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lines import Line, Peer, at_least, at_most, show

from coterie.aggregation.experiment import Experiment
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.nn.zoo import fedavg_cnn, mlp
from coterie.compute.optim import sgd
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import simulate

CODECS = ("eden:4", "topk:0.01+ef")
YARDSTICK = "float32"
UPLOADS = {"eden:4": at_most(1 / 7.8, "ratio"), "topk:0.01+ef": at_most(1 / 30, "ratio")}
POINTS = dict.fromkeys(UPLOADS, at_least(-0.5))
CLIENTS = 10
Arrays = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """How much is trained."""

    rounds: int
    rows: int
    tests: int
    seeds: tuple[int, ...]
    quick: bool


@dataclass(frozen=True)
class Outcome:
    """One run: test accuracy after the last round, and the bytes that all clients uploaded."""

    accuracy: float
    bytes_up: int


def main() -> None:
    """Train with float32 and with every codec, for every seed, and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("COTERIE_DATA"), help="folder with mnist.npz")
    parser.add_argument("--json", action="store_true", help="JSON lines")
    parser.add_argument("--quick", action="store_true", help="a small model, few rows, one seed: to see that it runs")
    parser.add_argument("--codecs", nargs="+", default=CODECS, metavar="CODEC")
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rows", type=int, default=1200, help="of each client")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    path = Path(options.data or "") / "mnist.npz"
    if not options.data or not path.is_file():
        sys.exit("Give --data DIR, a folder that holds mnist.npz (x_train, y_train, x_test, y_test as uint8).")
    with np.load(path, allow_pickle=False) as file:
        digits = {name: file[name] for name in file.files}
    setting = Setting(options.rounds, options.rows, 10_000, tuple(options.seeds), False)
    if options.quick:
        setting = Setting(3, 60, 500, (options.seeds[0],), True)
    yardstick = [run(YARDSTICK, digits, setting, seed, options.workers) for seed in setting.seeds]
    tell(YARDSTICK, yardstick, yardstick, as_json=options.json)
    for codec in options.codecs:
        found = [run(codec, digits, setting, seed, options.workers) for seed in setting.seeds]
        tell(codec, found, yardstick, as_json=options.json)


def run(codec: str, digits: Arrays, setting: Setting, seed: int, workers: int) -> Outcome:
    """One training with one codec."""
    shape = (784,) if setting.quick else (1, 28, 28)
    experiment = Experiment(
        name="compressed",
        model=mlp((784, 32, 10)) if setting.quick else fedavg_cnn(),
        schema=DataSchema(
            features=(Feature(name="image", dtype="uint8", shape=shape, scale=1 / 255),),
            label=Label(name="digit", low=0, high=9),
        ),
        loss=softmax_cross_entropy,
        metrics={"accuracy": accuracy},
        optimizer=sgd(0.1),
        batch_size=20,
        epochs=2,
        holdout=0.0,
        codecs=(codec,),
        seed=seed,
        rounds=RoundPolicy(rounds=setting.rounds, cohort=CLIENTS, evaluate_every=0),
        secure_aggregation=False,
        evaluation=taken(digits, "test", np.arange(setting.tests), shape),
    )
    order = np.random.default_rng(seed).permutation(len(digits["y_train"]))
    clients = [
        taken(digits, "train", order[first * setting.rows : (first + 1) * setting.rows], shape)
        for first in range(CLIENTS)
    ]
    history = simulate(experiment, clients, workers=workers)
    return Outcome(history.rounds[-1].metrics["accuracy"], sum(record.bytes_up for record in history.rounds))


def taken(digits: Arrays, part: str, places: Any, shape: tuple[int, ...]) -> Arrays:
    """Some rows in the schema's shapes."""
    images, labels = digits[f"x_{part}"][places], digits[f"y_{part}"][places]
    return {"image": images.reshape(-1, *shape), "digit": labels.astype(np.int32)}


def tell(codec: str, outcomes: list[Outcome], yardstick: list[Outcome], *, as_json: bool) -> None:
    """Two lines for one codec: what it costs in accuracy, and what it saves in bytes."""
    mean = sum(outcome.accuracy for outcome in outcomes) / len(outcomes)
    plain = sum(outcome.accuracy for outcome in yardstick) / len(yardstick)
    sent, plain_sent = (sum(outcome.bytes_up for outcome in side) / 1e6 for side in (outcomes, yardstick))
    accuracies = {"accuracy": round(mean, 5), "accuracies": [round(outcome.accuracy, 5) for outcome in outcomes]}
    points = Line(codec, 100 * (mean - plain), f"points over {YARDSTICK}", None, POINTS.get(codec), accuracies)
    fewer = {"times_fewer_bytes": round(plain_sent / sent, 2)}
    up = Line(f"{codec}, uploads", sent, "MB", Peer(YARDSTICK, plain_sent), UPLOADS.get(codec), fewer)
    for line in (points, up):
        show(line, as_json=as_json)


if __name__ == "__main__":
    main()
