"""Reducers that must see every single update: an accumulator that keeps them, and a pipeline for its result."""

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.reducers.pipeline import Pipeline
from coterie.aggregation.reducers.reducer import Accumulator, Chunks, Reducer, Vector, check_length
from coterie.aggregation.reducers.source import InMemory, canonical, check_finite


def single(pipeline: Pipeline) -> Reducer:
    """The reducer of a pipeline. Every update counts alike, whatever weight it claims, since a weight is a claim too;
    one of weight zero does not count at all.

    The accumulator keeps float32 updates, so its memory grows with their number; ``over`` reads them in blocks instead.
    """

    def add(acc: Accumulator, chunks: Chunks, weight: float) -> Accumulator:
        if not (math.isfinite(weight) and weight >= 0):
            raise errors.UpdateRefused(
                f"The weight of an update must be finite and not negative, not {weight}.", code="bad_weight"
            )
        row, covered = np.empty(acc.total.size, np.float32), 0
        for start, values in chunks:
            row[start : start + values.size] = values
            covered += values.size
        if covered != row.size:
            raise errors.InternalError(f"An update's chunks cover {covered} of {row.size} elements.")
        check_finite(row[None])
        rows = (*acc.rows, row) if weight else acc.rows
        return Accumulator(acc.total, acc.weight + weight, acc.count + 1, rows)

    def result(acc: Accumulator) -> Vector:
        if not acc.rows:
            raise errors.UpdateRefused(
                f"{acc.count} updates have a total weight of zero, so there is nothing to aggregate.",
                hint="Every client reported zero examples; check the clients' data.",
                code="zero_weight",
            )
        rows = np.stack(acc.rows)
        return pipeline.run(InMemory(rows, canonical(rows)))

    def beside(vector: npt.NDArray[np.float32]) -> Reducer:
        return single(replace(pipeline, vector=np.ascontiguousarray(vector, np.float32).reshape(-1)))

    return Reducer(
        name=pipeline.name,
        init=lambda length: Accumulator(np.broadcast_to(np.float64(0), (length,))),
        add=add,
        merge=_merge,
        result=result,
        needs="updates",
        fewest=pipeline.fewest,
        over=pipeline.run,
        reference=pipeline.reference,
        beside=beside if pipeline.reference else None,
        measures=pipeline.measures,
        because=pipeline.because,
        most=pipeline.most,
        beyond=pipeline.beyond,
    )


def _merge(left: Accumulator, right: Accumulator) -> Accumulator:
    check_length(left, right)
    return Accumulator(left.total, left.weight + right.weight, left.count + right.count, (*left.rows, *right.rows))
