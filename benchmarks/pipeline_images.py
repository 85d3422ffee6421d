"""The case of images of benchmarks/pipeline.py: is a device kept busy while its images are decoded and augmented?

JPEG files of 256 × 256 pixels are decoded, cropped to 224 × 224 at a random place, mirrored and brightened by chance,
normalised and turned to [3, 224, 224], 32 to a batch. What a caller takes who makes a batch for himself is measured
first; the device is a sleep of half of that, so one worker alone would let it work for half of the time
(`busy_one_worker` and `busy_one_process` say whether that is so), and a machine of two cores has to do nothing else and
lose nothing if it is to work for all of it. What the machine can do at best, the bound, is told by as many bare
processes as there are cores, which make batches for nobody.

A device is busy while it sleeps (`busy`). Where all cores work, the system wakes it late, and a real device would have
been idle then: `on_time` counts of each sleep no more than was asked for.
"""

import multiprocessing
import os
import time
from collections.abc import Mapping
from io import BytesIO
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from lines import Line, Peer, at_least
from PIL import Image

from coterie.compute.data import ArraySource, BatchStream, Dataset
from coterie.compute.data.batched import Batched
from coterie.compute.data.transforms import (
    ChannelsFirst,
    DecodeImage,
    Normalise,
    RandomBrightness,
    RandomCrop,
    RandomFlip,
)
from coterie.compute.data.workers import Crew

FILES, SIDE, CROP, BATCH = 128, 256, 224, 32
BUDGET = at_least(0.9)
CORES = os.cpu_count() or 1
# One thread more than there are cores: where one waits for the interpreter, another has a core's work to do.
CREWS: Mapping[Crew, int] = {"threads": CORES + 1, "processes": CORES}


def jpeg(rng: np.random.Generator) -> bytes:
    """A picture of soft shapes, which takes a decoder about as long as a photograph."""
    coarse = Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    noise = rng.integers(-12, 13, (SIDE, SIDE, 3))
    file = BytesIO()
    Image.fromarray(np.clip(np.asarray(coarse) + noise, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def batches() -> Batched:
    """The pipeline, pass after pass."""
    rng = np.random.default_rng(0)
    files = ArraySource({"image": [jpeg(rng) for _ in range(FILES)], "label": np.arange(FILES) % 10})
    steps = [
        DecodeImage(), RandomCrop(CROP, CROP), RandomFlip(), RandomBrightness(0.2),
        Normalise((123.7, 116.3, 103.5), (58.4, 57.1, 57.4)), ChannelsFirst(),
    ]  # fmt: skip
    return Dataset.of(files).shuffle(0).map(steps, "image").batch(BATCH).epochs(None)


def alone(pipeline: Batched, steps: int) -> float:
    """Seconds a batch of whoever makes them for himself: the median of several stretches."""
    with pipeline.dict_iterator() as stream:
        next(stream)
        return median(timed(stream, max(1, steps // 6)) for _ in range(6))


def timed(stream: BatchStream, steps: int) -> float:
    """Seconds a batch, over some batches."""
    begun = time.perf_counter()
    for _ in range(steps):
        next(stream)
    return (time.perf_counter() - begun) / steps


class Share(NamedTuple):
    """Of the time: in which a device was at work; and in which it was, had it not been woken late."""

    busy: float
    on_time: float


def busy(pipeline: Batched, step: float, steps: int) -> Share:
    """How busy a device with this step is, once the workers and their memory are warm."""
    with pipeline.stream() as stream:
        for _ in range(8 + 16 * pipeline.count):
            next(stream)
        begun = time.perf_counter()
        worked = 0.0
        for _ in range(steps):
            next(stream)
            asleep = time.perf_counter()
            time.sleep(step)
            worked += time.perf_counter() - asleep
        passed = time.perf_counter() - begun
        return Share(worked / passed, steps * step / passed)


def bound(step: float, steps: int) -> float:
    """The share that would be worked if nothing but the machine's cores held batches up."""
    context = multiprocessing.get_context("spawn")
    barrier, found = context.Barrier(CORES), context.SimpleQueue()
    processes = [context.Process(target=_make, args=(barrier, found, steps)) for _ in range(CORES)]
    for process in processes:
        process.start()
    rate = sum(1 / found.get() for _ in processes)
    for process in processes:
        process.join()
    return min(1.0, step * rate)


def _make(barrier: Any, queue: Any, steps: int) -> None:
    with batches().dict_iterator() as stream:
        next(stream)
        barrier.wait()
        queue.put(timed(stream, steps))


def images(steps: int = 120, workers: int | None = None) -> tuple[Line, ...]:
    """The device of each crew, of one thread and of one process alone, and the bound. The best crew has the budget."""
    pipeline = batches()
    step = alone(pipeline, steps) / 2
    found = {crew: busy(pipeline.workers(workers or count, crew), step, steps) for crew, count in CREWS.items()}
    most = bound(step, steps)
    best = max(share.busy for share in found.values())
    one = pipeline.workers(1)
    whole = {
        "batch": BATCH,
        "device_step_ms": round(step * 1e3, 2),
        "workers": {crew: workers or count for crew, count in CREWS.items()},
        "cores": CORES,
        "busy_one_worker": round(busy(one, step, steps).busy, 3),
        "busy_one_process": round(busy(pipeline.workers(1, "processes"), step, steps).busy, 3),
        "profile_one_worker": one.profile(lambda batch: time.sleep(step), 10).verdict,
    }
    unit = "of the time busy"
    crews = [Line(f"images, {c}", share.busy, unit, details={"on_time": share.on_time}) for c, share in found.items()]
    return Line("images", best, unit, Peer("bound", most), BUDGET, whole), *crews
