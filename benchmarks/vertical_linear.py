"""Linear models of two organisations: how good on held-out rows, beside scikit-learn on the joined table and on the
label owner's own columns, and what a pass over the rows costs under encryption.

    COTERIE_DATA=DIR python benchmarks/vertical_linear.py [--json] [--quick] [--bits 3072]

`..._held_out_auc` is the mean of five folds, of the open run, whose coefficients are those of the encrypted one bit for
bit. `..._pass_seconds` is the processor time of both parties for one pass over the default_credit rows (all but a
fifth), worked out from `--rows` rows of it, without what is done once for a training.
"""

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from lines import Line, Peer, at_least, show
from numpy.typing import NDArray

from coterie.aggregation.vertical.linear.terms import LinearTerms
from coterie.aggregation.whole_metrics import auc
from coterie.simulation.linear import simulate_linear

FOLDS = 5
TASKS = {"breast": (0.99, {"epochs": 15, "l2": 0.01}), "default_credit": (0.72, {"epochs": 5})}
Tables = dict[str, dict[str, NDArray[np.float64]]]


def tables_of(folder: Path, name: str) -> Tables:
    """FATE's example files, the label owner's first."""
    found: Tables = {}
    for role, part in (("guest", "guest"), ("host", "host")):
        (path,) = folder.glob(f"{name}_hetero_{part}.csv*")
        rows = np.genfromtxt(path, delimiter=",", names=True)
        found[role] = {column: rows[column] for column in rows.dtype.names or () if column != "id"}
    return found


def terms_of(**changes: Any) -> LinearTerms:
    """The terms of one run."""
    return LinearTerms(label_owner="guest", feature_owners=("host",), **changes)


def quality(folder: Path, name: str) -> Iterator[Line]:
    """The areas of one data set."""
    limit, asked = TASKS[name]
    tables = tables_of(folder, name)
    columns = {role: tuple(column for column in table if column != "y") for role, table in tables.items()}
    labels = tables["guest"]["y"]
    fold = np.random.default_rng(0).permutation(len(labels)) % FOLDS
    areas = [
        simulate_linear(
            terms_of(**asked), tables, columns=columns, label="y", held_out=fold == number, encrypted=False
        ).report.held_out_auc
        for number in range(FOLDS)
    ]
    own, joined = (
        np.stack([tables[role][column] for role in roles for column in columns[role]], axis=1)
        for roles in (("guest",), ("guest", "host"))
    )
    yield Line(
        f"linear_{name}_held_out_auc",
        float(np.mean([area or 0.0 for area in areas])),
        "AUC",
        peer=alone(joined, labels, fold),
        budget=at_least(limit),
        details={"rows": len(labels), "folds": FOLDS},
    )
    lonely = alone(own, labels, fold)
    yield Line(f"linear_{name}_held_out_auc_label_owner_alone", None if lonely is None else lonely.figure, "AUC")


def alone(rows: NDArray[np.float64], labels: NDArray[np.float64], fold: NDArray[np.int64]) -> Peer | None:
    """The mean area of scikit-learn's logistic regression on one table."""
    if find_spec("sklearn") is None:
        return None
    library: Any = import_module("sklearn.linear_model")
    areas: list[float] = []
    for number in range(FOLDS):
        used = fold != number
        mean, deviation = rows[used].mean(axis=0), rows[used].std(axis=0)
        model = library.LogisticRegression(max_iter=1000).fit((rows[used] - mean) / deviation, labels[used])
        areas.append(auc(model.decision_function((rows[~used] - mean) / deviation), labels[~used]) or 0.0)
    return Peer("scikit-learn", float(np.mean(areas)))


def cost(folder: Path, bits: int, rows: int) -> Iterator[Line]:
    """What one pass takes."""
    tables = tables_of(folder, "default_credit")
    columns = {role: tuple(column for column in table if column != "y") for role, table in tables.items()}
    whole = len(tables["guest"]["y"]) * (FOLDS - 1) // FOLDS
    few = {role: {name: values[:rows] for name, values in table.items()} for role, table in tables.items()}
    seconds: list[float] = []
    sent: dict[str, int] = {}
    for epochs in (1, 2):
        start = time.process_time()
        sent = dict(simulate_linear(terms_of(epochs=epochs, key_bits=bits), few, columns=columns, label="y").sent)
        seconds.append(time.process_time() - start)
    megabytes = sum(sent.values()) / 2 / rows * whole / 1e6
    yield Line(
        f"linear_{bits}_pass_seconds",
        (seconds[1] - seconds[0]) / rows * whole,
        "s",
        details={"rows_measured": rows, "rows": whole, "megabytes_sent_in_a_pass": megabytes},
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Linear models of two organisations.")
    parser.add_argument("--bits", type=int, nargs="+", default=[2048, 3072])
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if not os.environ.get("COTERIE_DATA"):
        raise SystemExit("Set COTERIE_DATA to the folder of data.")
    folder = Path(os.environ["COTERIE_DATA"])
    for name in TASKS if not options.quick else ("breast",):
        for line in quality(folder, name):
            show(line, as_json=options.json)
    for bits in options.bits if not options.quick else (2048,):
        for line in cost(folder, bits, 140 if options.quick else options.rows):
            show(line, as_json=options.json)


if __name__ == "__main__":
    main()
