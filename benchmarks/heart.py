"""Four hospitals that really differ: FedAvg and SCAFFOLD on the heart disease data of FLamby, beside its table.

    COTERIE_DATA=DIR python benchmarks/heart.py [--json] [--quick] [--methods fedavg scaffold] [--seeds 5]

DIR/heart holds cleveland.csv, hungarian.csv, switzerland.csv and va.csv: the UCI heart disease data with missing cells
empty. The recipe is that of FLamby (du Terrail et al., 2022, flamby/datasets/fed_heart_disease at f1e05644): the
columns slope, ca and thal are dropped, then rows with gaps (303, 261, 46 and 130 remain); cp and restecg become
indicators without their first level; each hospital keeps a stratified 34 % for testing, by one fixed split, and
standardises its columns by its training rows; a logistic regression is trained by SGD in batches of 4 at a rate of
0.001, 100 steps a round, 15 rounds, all four hospitals in each. Hospitals' test rows are standardised as their training
rows are; the pooled test rows by the mean and deviation of all training rows, which is FLamby's "Pooled Test" and why
it is not the mean of the hospitals.

Printed are means over seeds of the first weights and of the order of rows, with the means that FLamby publishes for its
five seeds, a line each (see lines.py); the gap, the difference on the pooled test rows in points to either side, is to
be at most two. scikit-learn makes the split.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lines import Line, at_most, show
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal import Algorithm, FedAvg, Scaffold
from coterie.compute.nn import Linear
from coterie.compute.nn.losses import binary_cross_entropy_with_logits
from coterie.compute.nn.metrics import binary_accuracy
from coterie.compute.optim import sgd
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import simulate_full

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
REMAIN = (303, 261, 46, 130)
DROPPED = ("slope", "ca", "thal")
INDICATORS = ("cp", "restecg")
TRAIN_SHARE, SPLIT = 0.66, 43
# Accuracy on the pooled test rows, then on each hospital's: means over five seeds in FLamby's result files.
PUBLISHED = {
    "fedavg": (0.7480, (0.731, 0.719, 0.650, 0.640)),
    "scaffold": (0.7480, (0.727, 0.719, 0.650, 0.640)),
}
GAP_BUDGET = at_most(2.0)
METHODS: dict[str, Algorithm] = {"fedavg": FedAvg(), "scaffold": Scaffold(clients=len(HOSPITALS))}
FEATURES = 13
SCHEMA = DataSchema((Feature(name="x", shape=(FEATURES,)),), Label(name="disease", dtype="float32", low=0, high=1))

Rows = dict[str, NDArray[Any]]


def hospitals(folder: Path) -> list[Rows]:
    """The rows of each hospital, not yet standardised."""
    raw = [_complete(folder / f"{name}.csv") for name in HOSPITALS]
    counts = tuple(len(rows["num"]) for rows in raw)
    if counts != REMAIN:
        sys.exit(f"{folder}: {counts} rows remain after dropping gaps, not {REMAIN}; is this the UCI data?")
    levels = {name: np.unique(np.concatenate([rows[name] for rows in raw]))[1:] for name in INDICATORS}
    made: list[Rows] = []
    for rows in raw:
        plain = [rows[name] for name in rows if name not in (*INDICATORS, "num")]
        indicators = [rows[name] == level for name in INDICATORS for level in levels[name]]
        made.append(
            {
                "x": np.stack([*plain, *indicators], axis=1).astype(np.float32),
                "disease": (rows["num"] > 0).astype(np.float32),
            }
        )
    return made


def divided(rows: Rows) -> tuple[Rows, Rows]:
    """A hospital's training and test rows, as measured."""
    # Too few of a class cannot be stratified: among the Swiss rows one patient is healthy.
    labels = rows["disease"] if np.bincount(rows["disease"].astype(int)).min() > 2 else None
    places = train_test_split(
        np.arange(len(rows["disease"])),
        train_size=TRAIN_SHARE,
        test_size=1 - TRAIN_SHARE,
        random_state=SPLIT,
        stratify=labels,
    )
    train, test = ({name: array[part] for name, array in rows.items()} for part in places)
    return train, test


def standardised(rows: Rows, by: Rows) -> Rows:
    """The rows by the mean and deviation of others; a column that does not vary there stays centred."""
    mean, deviation = by["x"].mean(axis=0), by["x"].std(axis=0, ddof=1)
    return {**rows, "x": ((rows["x"] - mean) / np.where(deviation > 0, deviation, 1)).astype(np.float32)}


def together(parts: Sequence[Rows]) -> Rows:
    """All rows."""
    return {name: np.concatenate([rows[name] for rows in parts]) for name in parts[0]}


def experiment(method: Algorithm, test: Rows, *, seed: int, rounds: int) -> Experiment:
    """All hospitals in every round; the coordinator measures every version on the pooled test rows."""
    return Experiment(
        name="heart",
        model=Linear(FEATURES, 1),
        schema=SCHEMA,
        loss=binary_cross_entropy_with_logits,
        metrics={"accuracy": binary_accuracy},
        optimizer=sgd(0.001),
        algorithm=method,
        batch_size=4,
        epochs=1000,
        max_steps=100,
        holdout=0.0,
        rounds=RoundPolicy(rounds=rounds, cohort=len(HOSPITALS), evaluate_every=0),
        evaluation=test,
        seed=seed,
    )


def measure(method: str, data: list[Rows], *, seed: int, rounds: int) -> tuple[float, list[float]]:
    """The last version's accuracy on the pooled test rows and on each hospital's."""
    trains, tests = zip(*(divided(rows) for rows in data), strict=True)
    pooled = standardised(together(tests), together(trains))
    own = [standardised(test, train) for test, train in zip(tests, trains, strict=True)]
    clients = [standardised(train, train) for train in trains]
    result = simulate_full(experiment(METHODS[method], pooled, seed=seed, rounds=rounds), clients)
    weight, bias = (np.asarray(result.weights[name]) for name in ("weight", "bias"))

    def right(rows: Rows) -> float:
        return float(((rows["x"] @ weight[0] + bias[0] > 0) == (rows["disease"] > 0.5)).mean())

    return right(pooled), [right(rows) for rows in own]


def _complete(path: Path) -> dict[str, NDArray[np.float64]]:
    if not path.is_file():
        sys.exit(f"There is no {path}. Set COTERIE_DATA to the folder that holds heart/.")
    table = np.genfromtxt(path, delimiter=",", names=True)
    kept = [name for name in table.dtype.names or () if name not in DROPPED]
    whole = np.all([np.isfinite(table[name]) for name in kept], axis=0)
    return {name: table[name][whole] for name in kept}


def main() -> None:
    """Print the lines of each method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("COTERIE_DATA", "."), help="folder that holds heart/")
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="one seed, three rounds: only that it runs")
    parser.add_argument("--json", action="store_true", help="JSON lines")
    chosen = parser.parse_args()
    seeds, rounds = (1, 3) if chosen.quick else (chosen.seeds, chosen.rounds)
    data = hospitals(Path(chosen.data) / "heart")
    for method in chosen.methods:
        begun = time.monotonic()
        runs = [measure(method, data, seed=seed, rounds=rounds) for seed in range(seeds)]
        found = float(np.mean([pooled for pooled, _ in runs]))
        each = np.mean([own for _, own in runs], axis=0).tolist()
        published, theirs = PUBLISHED[method]
        details = {
            "published": published,
            "deviation": round(float(np.std([pooled for pooled, _ in runs])), 4),
            "seeds": seeds,
            "rounds": rounds,
            "seconds": round(time.monotonic() - begun, 1),
        }
        show(Line(f"{method}, pooled", found, "of the test rows", details=details), as_json=chosen.json)
        gap = 100 * (found - published)
        show(Line(f"{method}, gap", abs(gap), "points", None, GAP_BUDGET, {"signed": gap}), as_json=chosen.json)
        for name, value, given in zip(HOSPITALS, each, theirs, strict=True):
            own = Line(f"{method}, {name}", value, "of the test rows", details={"published": given})
            show(own, as_json=chosen.json)


if __name__ == "__main__":
    main()
