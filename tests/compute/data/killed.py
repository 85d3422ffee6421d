"""A process that reads a pipeline with worker processes, tells each batch, and waits to be killed:

python -m tests.compute.data.killed FILE
"""

import hashlib
import json
import multiprocessing
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from coterie.compute.data.batched import Batched
from tests.compute.data.pipelines import augmented


def pipeline() -> Batched:
    return augmented(64).batch(4).epochs(3)


def digest(batch: Mapping[str, Any]) -> str:
    """Of every bit of a batch."""
    told = hashlib.sha256()
    for name, values in batch.items():
        told.update(f"{name} {values.dtype} {values.shape}".encode() + np.ascontiguousarray(values).tobytes())
    return told.hexdigest()


def main(path: str) -> None:
    with open(path, "w", encoding="utf-8") as file, pipeline().workers(1, "processes").stream() as stream:
        for step, batch in enumerate(stream):
            workers = [child.pid for child in multiprocessing.active_children()]
            line = {"digest": digest(batch), "state": stream.state(), "workers": workers}
            print(json.dumps(line), file=file, flush=True)
            # Past some batches it waits, so that a late killer finds it in the middle, too.
            time.sleep(0.02 if step < 30 else 120)


if __name__ == "__main__":
    main(sys.argv[1])
