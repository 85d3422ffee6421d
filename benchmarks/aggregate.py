"""What aggregation costs, each case as a ratio to a plain NumPy operation over the same updates, in one run.

    python benchmarks/aggregate.py [--json] [--quick]

mean_float32: bytes a second of the weighted mean, streaming, over those of ``np.add(acc64, x32, out=acc64)``; at least
0.6. mean_int8: bytes of float32 a second of decoding int8 and adding, over those of the float32 mean; at least 0.5.
krum, nnm, geometric_median: seconds over those of ``X @ X.T``; at most 1.2, 3, 3. trimmed_mean: over those of
``np.sort(X, axis=0)``; at most 1.1. memory: peak with 100 times as many clients over that with 100; at most 1.1.
Everything runs on one thread; times are processor time.
"""

import os

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import argparse
import json
import platform
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from coterie.aggregation.reducers import InMemory, aggregate, reducer
from coterie.aggregation.reducers.source import gram
from coterie.aggregation.reducers.steps import nnm
from coterie.protocol.codecs import parse
from coterie.protocol.codecs.codec import Keys, Shape

AT_LEAST = {"mean_float32": 0.6, "mean_int8": 0.5}
AT_MOST = {"krum": 1.2, "nnm": 3.0, "geometric_median": 3.0, "trimmed_mean": 1.1, "memory": 1.1}


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


def means(length: int, repeats: int) -> dict[str, dict[str, float]]:
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
    return {
        "mean_float32": {"ratio": base / own, "gb_per_s": size / own / 1e9, "peer_gb_per_s": size / base / 1e9},
        "mean_int8": {"ratio": own / small, "gb_per_s": size / small / 1e9, "peer_gb_per_s": size / own / 1e9},
    }


def robust(count: int, length: int, attackers: int, repeats: int) -> dict[str, dict[str, float]]:
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
    found: dict[str, dict[str, float]] = {}
    for name, work in works.items():
        base, own = seconds(lambda: updates @ updates.T, work, repeats=repeats)
        found[name] = {"ratio": own / base, "ms": own * 1e3, "peer_ms": base * 1e3}
    base, own = seconds(
        lambda: np.sort(updates, axis=0), lambda: aggregate(f"trimmed_mean({attackers})", updates), repeats=repeats
    )
    return found | {"trimmed_mean": {"ratio": own / base, "ms": own * 1e3, "peer_ms": base * 1e3}}


def memory(length: int, few: int, many: int) -> dict[str, dict[str, float]]:
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
    return {"memory": {"ratio": high / low, "mib": high / 2**20, "peer_mib": low / 2**20}}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs; ratios mean little")
    options = parser.parse_args()
    repeats, length = (2, 1 << 16) if options.quick else (7, 1 << 18)
    results = means(length * (1 if options.quick else 16), repeats)
    results |= robust(20 if options.quick else 100, length, 2 if options.quick else 10, repeats)
    results |= memory(1 << 16, 10 if options.quick else 100, 100 if options.quick else 10_000)
    for name, case in results.items():
        case["budget"] = AT_LEAST.get(name, AT_MOST.get(name, 0.0))
        case["met"] = float(case["ratio"] >= AT_LEAST[name] if name in AT_LEAST else case["ratio"] <= AT_MOST[name])
    if options.json:
        machine = {"processor": platform.processor() or platform.machine(), "numpy": np.__version__}
        print(json.dumps({**results, "machine": machine, "quick": options.quick}))
        return
    for name, case in results.items():
        bound = "at least" if name in AT_LEAST else "at most"
        print(f"{name:18} {case['ratio']:6.2f}  ({bound} {case['budget']}){'' if case['met'] else '  MISSED'}")


if __name__ == "__main__":
    main()
