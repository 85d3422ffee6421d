"""Where a training waits: for rows to be loaded, for rows to be mapped, or for the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Literal

from coterie.compute.data.batch_plan import BatchPlan
from coterie.compute.data.batches import WEIGHT
from coterie.compute.data.batching import Batch
from coterie.compute.data.stream import BatchStream
from coterie.errors import DataError

Bottleneck = Literal["loading", "mapping", "training"]

# A stage that leaves the processor for more than half of its time waits for something else.
_WAITS = 0.5
# A consumer that works for less of its time could be faster by having its rows made ahead.
_BUSY = 0.9


@dataclass(frozen=True, kw_only=True)
class DataProfile:
    """Rows a second that each part of a training could do if nothing else held it up.

    loading: reading rows from the source, by all workers together. mapping: the steps of the chain, stacking and
    ``per_batch_map``, by all workers together. training: the consumer. pipeline: loading and mapping one after the
    other in the same workers, ``1 / (1 / loading + 1 / mapping)``. bottleneck: what makes the whole slow. busy: the
    share of the time in which the consumer worked, as measured. waits: whether the slower part of the pipeline spends
    most of its time off the processor (files, networks, the interpreter that another thread holds, a core that another
    program uses). rows: how many were looked at.
    """

    loading: float
    mapping: float
    training: float
    busy: float
    waits: bool
    rows: int
    workers: int

    @property
    def pipeline(self) -> float:
        return 1 / (1 / self.loading + 1 / self.mapping)

    @property
    def bottleneck(self) -> Bottleneck:
        if self.training <= self.pipeline:
            return "training"
        return "loading" if self.loading < self.mapping else "mapping"

    @property
    def verdict(self) -> str:
        """The bottleneck in a sentence, and what to do about it."""
        rates = f"loading {self.loading:,.0f}, mapping {self.mapping:,.0f}, training {self.training:,.0f} rows a second"
        if self.bottleneck == "training" and (self.workers or self.busy >= _BUSY):
            return f"Training is the bottleneck, as it should be: {rates}."
        if self.bottleneck == "training":
            return (
                f"Training is the bottleneck: {rates}. But it works only {self.busy:.0%} of the time, since it makes "
                "its own rows: give it a worker, or prefetch."
            )
        if self.waits:
            advice = "It mostly waits: give it more workers, or processes if threads wait for each other"
        elif self.workers:
            advice = "It computes: give it more workers up to the number of cores, or do less for each row"
        else:
            advice = "It computes while the device waits: give it workers"
        return f"{self.bottleneck.capitalize()} is the bottleneck: {rates}. {advice}."

    def __str__(self) -> str:
        return self.verdict


def profile(batched: BatchPlan, consume: Callable[[Batch], Any], batches: int) -> DataProfile:
    """Let ``consume`` have so many batches, and time everything. Raises DataError where there is no batch."""
    rows, consumed, waited = 0, 0.0, 0.0
    never = tuple(replace(point, every=1 << 62) for point in batched.points)
    with BatchStream(replace(batched, passes=None, points=never)) as stream:
        for _ in range(batches):
            begun = perf_counter()
            batch = next(stream, None)
            if batch is None:
                break
            given = perf_counter()
            consume(batch)
            ended = perf_counter()
            # The first batch waits for workers to start.
            waited += given - begun if rows else 0.0
            consumed += ended - given
            rows += int((batch[WEIGHT] > 0).sum())
        spent, made = stream.spent
    if not rows:
        raise DataError(f"There is no batch to profile of {batched.describe()}.", code="data_empty")
    crew = max(1, batched.count)
    slower = max(spent.values(), key=lambda part: part.seconds)
    return DataProfile(
        loading=_rate(made * crew, spent["load"].seconds),
        mapping=_rate(made * crew, spent["map"].seconds),
        training=_rate(rows, consumed),
        busy=consumed / max(consumed + waited, 1e-9),
        waits=slower.cpu < _WAITS * slower.seconds,
        rows=rows,
        workers=batched.count,
    )


def _rate(rows: int, seconds: float) -> float:
    return rows / max(seconds, 1e-9)
