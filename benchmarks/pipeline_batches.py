"""The case of batches of benchmarks/pipeline.py: batches of rows in memory against a NumPy loop.

Nine features as one float32 vector a row and a label, 1000 rows to a batch: the rate of one pass, shuffled, against
that of a loop of NumPy that draws a permutation and takes the same rows out of the two arrays. Each is the best of all
rounds, in which the sides take turns.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from lines import Line, Peer, at_least

from coterie.compute.data import ArraySource, Dataset

FEATURES, BATCH = 9, 1000
BUDGET = at_least(0.5, "ratio")


def batches(rows: int, rounds: int) -> Line:
    """The line of the case."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((rows, FEATURES)).astype(np.float32), rng.integers(0, 10, rows)
    source = ArraySource({"x": x, "y": y})

    def numpy_loop() -> None:
        order = rng.permutation(rows)
        for first in range(0, rows, BATCH):
            chosen = order[first : first + BATCH]
            _use(x[chosen], y[chosen])

    def pipeline() -> None:
        for batch in Dataset.of(source).shuffle(0).batch(BATCH):
            _use(batch["x"], batch["y"])

    least: dict[str, float] = {}
    for _ in range(rounds):
        for name, work in (("pipeline", pipeline), ("loop", numpy_loop)):
            least[name] = min(_seconds(work), least.get(name, float("inf")))
    details = {"rows": rows, "columns": FEATURES + 1}
    loop = Peer("NumPy loop", rows / least["loop"])
    return Line("batches", rows / least["pipeline"], "rows/s", loop, BUDGET, details)


def _seconds(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _use(x: Any, y: Any) -> None:
    """A batch has been made; what is done with it is not measured."""
