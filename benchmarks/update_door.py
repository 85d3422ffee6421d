"""What one update costs from its bytes to the sum, by codec and size: its hash, the check at the door, the job's read.

    python benchmarks/update_door.py [--json] [--quick] [--rounds N] [--threads 1]

The sizes are those of the update in float32; a codec's file holds the same elements. ``door`` is what `acceptance`
does before an update is accepted: header, every number decoded in chunks and looked at. ``job`` is what the worker
does again: the bytes read and held to their digest, decoded and looked at, kept until they are added. Each figure is
the least of all rounds, in milliseconds, on a line of its own (see lines.py).
"""

import argparse
import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from lines import Line, show

CODECS = ("float32", "int8", "topk:0.01", "eden:4")
MEGABYTES = (1, 100)


def main() -> None:
    """Read the options, fix the number of threads before NumPy is loaded, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="JSON lines")
    parser.add_argument("--quick", action="store_true", help="the small size only, to see that it runs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of NumPy's linear algebra")
    options = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = str(options.threads)
    for megabytes in MEGABYTES[:1] if options.quick else MEGABYTES:
        for codec in CODECS:
            for line in measure(codec, megabytes, 2 if options.quick else options.rounds):
                show(line, as_json=options.json)


def measure(codec: str, megabytes: int, rounds: int) -> list[Line]:
    """The figures of one update."""
    import numpy as np

    from coterie.aggregation.fold.usable import CountTerms, usable
    from coterie.protocol.sections import SectionSpec
    from coterie.protocol.update import encode_update, read_update

    elements = megabytes * 1_000_000 // 4
    specs = (SectionSpec(name="delta", length=elements, slices=((0, elements),)),)
    vector = np.random.default_rng(0).standard_normal(elements).astype(np.float32)
    data = encode_update(
        task="task_1", plan="plan-1", base="base-1", weight=1, steps=1, specs=specs, sections={"delta": vector},
        codecs={"delta": codec},
    ).data  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "update"
        path.write_bytes(data)

        def hashing() -> None:
            hashlib.sha256(data)

        def door() -> None:
            usable(read_update(path, specs), CountTerms(keep=False))

        def job() -> None:
            kept = path.read_bytes()
            hashlib.sha256(kept)
            usable(read_update(kept, specs), CountTerms(keep=True))

        ways = {"hash": hashing, "door": door, "job": job}
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(rounds):
            for name, work in ways.items():
                best[name] = min(best[name], milliseconds(work))
    details = {"file_mb": len(data) / 1e6}
    return [Line(f"{codec}, {megabytes} MB, {name}", least, "ms", details=details) for name, least in best.items()]


def milliseconds(work: Callable[[], None]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - started)


if __name__ == "__main__":
    main()
