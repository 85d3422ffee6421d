"""What aggregation costs, each case as a ratio to a plain NumPy operation over the same updates, in one run.

    python benchmarks/aggregate.py [--json] [--quick]

mean_float32: bytes a second of the weighted mean, streaming, over those of ``np.add(acc64, x32, out=acc64)``; at least
0.6. mean_int8: bytes of float32 a second of decoding int8 and adding, over those of the float32 mean; at least 0.5.
krum, nnm, geometric_median: seconds over those of ``X @ X.T``; at most 1.2, 3, 3. trimmed_mean: over those of
``np.sort(X, axis=0)``; at most 1.1. memory: peak with 100 times as many clients over that with 100; at most 1.1.
Everything runs on one thread; times are processor time. Each case prints one line (see lines.py).
"""

import os

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import argparse
import platform
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from lines import Budget, Line, Peer, at_least, at_most, show

from coterie.aggregation.reducers import InMemory, aggregate, reducer
from coterie.aggregation.reducers.source import gram
from coterie.aggregation.reducers.steps import nnm
from coterie.protocol.codecs import parse
from coterie.protocol.codecs.codec import Keys, Shape

BUDGETS: dict[str, Budget] = {
    "mean_float32": at_least(0.6, "ratio"),
    "mean_int8": at_least(0.5, "ratio"),
    "krum": at_most(1.2, "ratio"),
    "nnm": at_most(3.0, "ratio"),
    "geometric_median": at_most(3.0, "ratio"),
    "trimmed_mean": at_most(1.1, "ratio"),
    "memory": at_most(1.1, "ratio"),
}


def seconds(*works: Callable[[], Any], repeats: int) -> list[float]:
    """The least processor time of each, taken in turns so that a busy moment of the machine meets all of them."""
    times: list[list[float]] = [[] for _ in works]
    for work in works:
        work()
    for _ in range(repeats):
        for work, found in zip(works, times, strict=True):
            begun = time.process_time()
            work()
            found.append(time.process_time() - begun)
    return [min(found) for found in times]


def means(length: int, repeats: int) -> Iterator[Line]:
    """The streaming mean of float32 and of int8 updates."""
    rule, count = reducer("mean"), 8
    generator = np.random.default_rng(0)
    updates = generator.normal(size=(count, length)).astype(np.float32)
    codec, keys, shape = parse("int8"), Keys(bytes(32), bytes(32)), Shape((length,), (1,))
    payloads = [codec.encode(update, keys, shape, {})[0] for update in updates]
    total, chunk = np.zeros(length, np.float64), 1 << 18

    def plain() -> None:
        for update in updates:
            np.add(total, update, out=total)

    def mean() -> None:
        acc = rule.init(length)
        for update in updates:
            acc = rule.add(acc, ((start, update[start : start + chunk]) for start in range(0, length, chunk)), 3.0)

    def decoded(payload: bytes) -> Any:
        for start in range(0, length, chunk):
            stop = min(start + chunk, length)
            yield start, codec.decode(lambda low, high: payload[low:high], keys, shape, start, stop)

    def int8() -> None:
        acc = rule.init(length)
        for payload in payloads:
            acc = rule.add(acc, decoded(payload), 3.0)

    base, own, small = seconds(plain, mean, int8, repeats=repeats)
    size = updates.nbytes
    yield case("mean_float32", size / own / 1e9, "GB/s", Peer("np.add", size / base / 1e9))
    yield case("mean_int8", size / small / 1e9, "GB/s", Peer("mean_float32", size / own / 1e9))


def robust(count: int, length: int, attackers: int, repeats: int) -> Iterator[Line]:
    """Rules that see every update."""
    updates = np.random.default_rng(1).normal(size=(count, length)).astype(np.float32)
    step, mix = nnm(attackers), np.empty_like(updates)

    def mixed() -> Any:
        # Into memory that is there already, as a pipeline does, which mixes strip after strip.
        return np.matmul(step.mix(gram(InMemory(updates)), np.random.default_rng).astype(np.float32), updates, out=mix)

    works: dict[str, Callable[[], Any]] = {
        "krum": lambda: aggregate(f"krum({attackers})", updates),
        "nnm": mixed,
        "geometric_median": lambda: aggregate("geometric_median", updates),
    }
    for name, work in works.items():
        base, own = seconds(lambda: updates @ updates.T, work, repeats=repeats)
        yield case(name, own * 1e3, "ms", Peer("X @ X.T", base * 1e3))
    base, own = seconds(
        lambda: np.sort(updates, axis=0), lambda: aggregate(f"trimmed_mean({attackers})", updates), repeats=repeats
    )
    yield case("trimmed_mean", own * 1e3, "ms", Peer("np.sort", base * 1e3))


def memory(length: int, few: int, many: int) -> Line:
    """Peak memory of a mean of many and of few updates that come one after another."""
    rule = reducer("mean")

    def peak(count: int) -> int:
        tracemalloc.start()
        acc = rule.init(length)
        for place in range(count):
            acc = rule.add(acc, ((0, np.full(length, place, np.float32)),), 1.0)
        rule.result(acc)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(2)
    low, high = peak(few), peak(many)
    return case("memory", high / 2**20, "MiB", Peer(f"{few} clients", low / 2**20))


def case(name: str, figure: float, unit: str, peer: Peer) -> Line:
    """A figure beside its peer's, which its budget bounds."""
    machine = {"processor": platform.processor() or platform.machine(), "numpy": np.__version__}
    return Line(name, figure, unit, peer, BUDGETS[name], details=machine)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON line for each case")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs; ratios mean little")
    options = parser.parse_args()
    repeats, length = (2, 1 << 16) if options.quick else (7, 1 << 18)
    for line in means(length * (1 if options.quick else 16), repeats):
        show(line, as_json=options.json)
    for line in robust(20 if options.quick else 100, length, 2 if options.quick else 10, repeats):
        show(line, as_json=options.json)
    show(memory(1 << 16, 10 if options.quick else 100, 100 if options.quick else 10_000), as_json=options.json)


if __name__ == "__main__":
    main()
