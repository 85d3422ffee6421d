"""The cases of CSV files of benchmarks/pipeline.py: parsing against `numpy.loadtxt`, batches against a NumPy loop.

A file of nine features and a label is written, in one of three notations; the pipeline makes the features one float32
vector a row, 1000 rows to a batch. `first_epoch` is from an unread file to the last batch of one pass in the order of
the file, against `numpy.loadtxt` of the same file alone. `later_epochs` is one more pass, shuffled, against a loop of
NumPy that draws a permutation and takes the same rows out of two loaded arrays. Each is the least of all rounds, in
which the sides take turns; `first_epoch_cpu` is the same ratio in processor time, where two threads count twice.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from coterie.compute.data import CsvSource, Dataset

FEATURES, BATCH = 9, 1000
BUDGETS = {"first_epoch": 3.0, "later_epochs": 0.5}
HEADER = ",".join([*(f"x{k}" for k in range(FEATURES)), "label"])


def decimals(rows: int) -> str:
    """Six digits after the point, as standardised features are often given."""
    return _lines(rows, lambda values: [f"{value:.6f}" for value in values])


def shortest(rows: int) -> str:
    """As many digits as float64 needs, as Python and pandas write: 16 to 17."""
    return _lines(rows, lambda values: [repr(value) for value in values])


def mixed(rows: int) -> str:
    """Whole numbers and numbers of one to three digits after the point, as clinical tables have."""
    forms = ("d", "d", "d", ".1f", ".2f", "d", ".1f", ".3f", "d")
    return _lines(
        rows,
        lambda values: [
            format(int(40 * x) if form == "d" else 10 * x, form) for x, form in zip(values, forms, strict=True)
        ],
    )


def _lines(rows: int, format_row: Callable[[list[float]], list[str]]) -> str:
    rng = np.random.default_rng(0)
    values, labels = rng.standard_normal((rows, FEATURES)), rng.integers(0, 10, rows)
    lines = (
        ",".join([*format_row(row), str(label)]) for row, label in zip(values.tolist(), labels.tolist(), strict=True)
    )
    return "\n".join([HEADER, *lines]) + "\n"


def csv_case(write: Callable[[int], str]) -> Callable[[int, int], dict[str, Any]]:
    """The case of files that ``write`` makes: rows, rounds → figures."""

    def measure(rows: int, rounds: int) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.csv"
            path.write_text(write(rows))
            return _measured(path, rows, rounds)

    return measure


def _measured(path: Path, rows: int, rounds: int) -> dict[str, Any]:
    names = HEADER.split(",")
    select = {"x": names[:FEATURES], "y": names[FEATURES]}

    def unread() -> CsvSource:
        return CsvSource(path, select, {"x": "float32", "y": "int64"})

    loaded = np.loadtxt(path, delimiter=",", skiprows=1)
    x, y = loaded[:, :FEATURES].astype(np.float32), loaded[:, FEATURES].astype(np.int64)
    read = unread().rows(np.arange(rows))
    if not (np.array_equal(np.asarray(read["x"]), x) and np.array_equal(np.asarray(read["y"]), y)):
        raise SystemExit("the CSV source reads other values than numpy.loadtxt")
    del loaded, read
    rng = np.random.default_rng(0)

    def numpy_loop() -> None:
        order = rng.permutation(rows)
        for first in range(0, rows, BATCH):
            chosen = order[first : first + BATCH]
            _use(x[chosen], y[chosen])

    least: dict[str, tuple[float, float]] = {}

    def clocked(name: str, work: Callable[[], object]) -> None:
        begun = time.perf_counter(), time.process_time()
        work()
        took = time.perf_counter() - begun[0], time.process_time() - begun[1]
        before = least.get(name, took)
        least[name] = min(before[0], took[0]), min(before[1], took[1])

    for _ in range(rounds):
        clocked("loadtxt", lambda: np.loadtxt(path, delimiter=",", skiprows=1))
        # A chain may read its source when it is made, so that is part of the first epoch.
        clocked("first", lambda: _drain(Dataset.of(unread()).batch(BATCH)))
        known = unread()
        len(known)
        clocked("later", lambda source=known: _drain(Dataset.of(source).shuffle(0).batch(BATCH)))
        clocked("loop", numpy_loop)
    first, later = (least["loadtxt"][0] / least["first"][0]), (least["loop"][0] / least["later"][0])
    return {
        "rows": rows,
        "columns": FEATURES + 1,
        "bytes": path.stat().st_size,
        **{f"{name}_s": round(wall, 3) for name, (wall, _) in least.items()},
        "first_epoch": round(first, 2),
        "first_epoch_cpu": round(least["loadtxt"][1] / least["first"][1], 2),
        "later_epochs": round(later, 2),
        "budget": BUDGETS,
        "within": first >= BUDGETS["first_epoch"] and later >= BUDGETS["later_epochs"],
    }


def _drain(batches: Any) -> None:
    for batch in batches:
        _use(batch["x"], batch["y"])


def _use(x: Any, y: Any) -> None:
    """A batch has been made; what is done with it is not measured."""
