"""The case of images of benchmarks/pipeline.py: is a device kept busy while its images are decoded and augmented?

JPEG files of 256 × 256 pixels are decoded, cropped to 224 × 224 at a random place, mirrored and brightened by chance,
normalised and turned to [3, 224, 224], 32 to a batch. What one worker takes for a batch is measured first; the device
is a sleep of half of that, so one worker alone would let it work for half of the time.
"""

import os
import time
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from coterie.compute.data import ArraySource, Batched, Dataset
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
CREWS: tuple[Crew, ...] = ("threads", "processes")


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


def busy(pipeline: Batched, step: float, steps: int) -> float:
    """The share of the time in which a device with this step is at work, once the workers have begun."""
    with pipeline.stream() as stream:
        for _ in range(2 + pipeline.count):
            next(stream)
        begun = time.perf_counter()
        worked = 0.0
        for _ in range(steps):
            next(stream)
            asleep = time.perf_counter()
            time.sleep(step)
            worked += time.perf_counter() - asleep
        return worked / (time.perf_counter() - begun)


def images(steps: int = 30, workers: int | None = None) -> dict[str, Any]:
    """busy: for each crew, and for one thread alone. profile: the verdict with one worker."""
    # One more than there are cores: where a thread waits for the interpreter, another has a core's work to do.
    pipeline, crew_size = batches(), workers or (os.cpu_count() or 1) + 1
    alone = pipeline.workers(1)
    with pipeline.dict_iterator() as stream:
        next(stream)
        begun = time.perf_counter()
        for _ in range(8):
            next(stream)
        step = (time.perf_counter() - begun) / 8 / 2
    found = {crew: busy(pipeline.workers(crew_size, crew), step, steps) for crew in CREWS}
    return {
        "case": "images",
        "batch": BATCH,
        "device_step_ms": round(step * 1e3, 2),
        "workers": crew_size,
        "cores": os.cpu_count(),
        "busy_one_worker": round(busy(alone, step, steps), 3),
        **{f"busy_{crew}": round(value, 3) for crew, value in found.items()},
        "busy": round(max(found.values()), 3),
        "budget": 0.9,
        "profile_one_worker": alone.profile(lambda batch: time.sleep(step), 10).verdict,
    }


if __name__ == "__main__":
    import json

    print(json.dumps(images()))
