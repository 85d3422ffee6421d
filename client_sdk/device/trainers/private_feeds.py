"""What the steps of a plan with example-level privacy are fed: batches that the device draws by itself, and noise.

Everything random here, dropout masks included, comes from a key that the device draws for this training alone and then
forgets. A mask that others knew would show which rows a batch held: rows move up where another is absent.
"""

import math
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.plan.manifest import SAMPLE_WEIGHT
from coterie.client_sdk.device.trainers.base import LocalWork, require_arrays
from coterie.compute.data.supply import Arrays
from coterie.errors import InternalError
from coterie.privacy.dp import poisson
from coterie.privacy.dp.noise import discrete_gaussian
from coterie.privacy.dp.noise.source import NoiseSource
from coterie.protocol.arrays import ArrayDict


def private_feeds(work: LocalWork) -> Iterator[ArrayDict]:
    """For each of the plan's steps, or of fewer where the device asks for that: a Poisson batch, padded to the graph's
    shape with rows of weight 0, and fresh noise. The number of steps depends on no row.

    A batch that holds more rows than the graph has room for counts as empty: see `coterie.privacy.dp.poisson`. A
    device without rows has empty batches only, and noise like any other.
    """
    options, manifest = work.options, work.plan.manifest
    rows = require_arrays(work.rows, "Example-level privacy, which draws single rows,")
    training, stage = manifest.training, manifest.stepped
    private, steps = training.private, training.max_steps
    if private is None or steps is None or stage is None:
        raise InternalError("Only plans with example-level privacy draw private batches.")
    count = len(next(iter(rows.values())))
    # Of rows with a class nobody knows how many there are: a rate that followed from their number would show one more.
    source, rate = NoiseSource.fresh(options.entropy), private.rate(max(count, work.read))
    noise = stage.from_source("noise")
    ends = list(accumulate(math.prod(tensor.shape) for tensor in noise))
    variance = private.noise(batch=training.batch_size, length=ends[-1], round=work.task.round).variance
    for _ in range(steps if options.max_steps is None else min(steps, options.max_steps)):
        chosen = poisson.draw_rows(count, rate, source)
        if len(chosen) > training.batch_size:
            chosen = chosen[:0]
        feeds: ArrayDict = dict(_batch(rows, chosen, training.batch_size))
        feeds = {tensor.name: feeds[tensor.key] for tensor in stage.from_source("batch")}
        feeds |= {tensor.name: _uniform(source, tensor.shape) for tensor in stage.from_source("random")}
        drawn = discrete_gaussian.draw(ends[-1], variance, source).astype(np.int32)
        parts = np.split(drawn, ends[:-1])
        yield feeds | {t.name: part.reshape(t.shape) for t, part in zip(noise, parts, strict=True)}


def _batch(rows: Arrays, chosen: NDArray[np.int64], size: int) -> ArrayDict:
    """The rows chosen, then rows of zeros, which count for nothing."""
    weight = np.zeros(size, np.float32)
    weight[: len(chosen)] = 1
    batch: dict[str, NDArray[Any]] = {SAMPLE_WEIGHT: weight}
    for name, array in rows.items():
        batch[name] = np.zeros((size, *array.shape[1:]), array.dtype)
        batch[name][: len(chosen)] = array[chosen]
    return batch


def _uniform(source: NoiseSource, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Multiples of 2**-24 in [0, 1)."""
    raw = source.words32(math.prod(shape))
    return ((raw >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)).reshape(shape)
