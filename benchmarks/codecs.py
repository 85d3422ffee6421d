"""Speed and size of every codec, beside NumPy's copy-and-add of the same vector in the same run.

    python benchmarks/codecs.py [--json] [--quick] [--elements N] [--only eden:4 ...] [--threads 1]

The yardstick is ``copy = x.copy(); copy += x`` on the float32 vector, and for decoding the same. Each round measures
the yardstick and then one codec, so that both see the same moment; each figure is the least of all rounds, in
nanoseconds an element. A codec's line (see lines.py) gives the time of encoding beside the yardstick's; ``bits`` is the
payload's bits an element, ``error`` the squared error over the vector's energy. The budget is that of ``eden:4``: a
ratio of at most 6.
"""

import argparse
import os
import time
from collections.abc import Callable

from lines import Line, Peer, at_most, show

CODECS = (
    "float32", "float16", "bfloat16", "int8", "int8:channel", "int8+rice", "topk:0.01", "topk:0.01+ef", "randk:0.1",
    "qsgd:4", "qsgd:4+rice", "terngrad", "round:1", "sign", "sign+ef", "eden:1", "eden:2", "eden:3", "eden:4", "drive",
    "rotate+grid:4", "rotate+grid:8", "powersgd:2+ef", "diff_sparse_quant",
)  # fmt: skip
BUDGETS = {"eden:4": at_most(6.0, "ratio")}


def main() -> None:
    """Read the options, fix the number of threads before NumPy is loaded, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON line for each codec")
    parser.add_argument("--quick", action="store_true", help="a short vector and few rounds, to see that it runs")
    parser.add_argument("--elements", type=int, default=1 << 24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of NumPy's linear algebra")
    parser.add_argument("--only", nargs="+", default=CODECS, metavar="CODEC")
    options = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = str(options.threads)
    elements, rounds = (1 << 18, 2) if options.quick else (options.elements, options.rounds)
    for name in options.only:
        show(measure(name, elements, rounds), as_json=options.json)


def measure(name: str, elements: int, rounds: int) -> Line:
    """The figures of one codec."""
    import numpy as np

    from coterie.protocol.codecs import NO_STATE, Keys, Shape, parse

    vector = np.random.default_rng(0).standard_normal(elements).astype(np.float32)
    width = 1024 if elements % 1024 == 0 else 1
    shape = Shape((elements,), (elements // width if width > 1 else 1,))
    keys = Keys.of(task="task_1", plan="plan-1", base="base-1", section="delta")
    codec = parse(name)
    payload, _ = codec.encode(vector, keys, shape, NO_STATE)
    decoded = codec.decode(payload, keys, shape, 0, elements)

    def copy_and_add() -> None:
        copy = vector.copy()
        copy += vector

    def encode() -> None:
        codec.encode(vector, keys, shape, NO_STATE)

    def decode() -> None:
        codec.decode(payload, keys, shape, 0, elements)

    best = {"yardstick": float("inf"), "encode": float("inf"), "decode": float("inf")}
    for _ in range(rounds):
        for side, work in (("yardstick", copy_and_add), ("encode", encode), ("decode", decode)):
            best[side] = min(best[side], seconds(work))
    exact = vector.astype(np.float64)
    lost = float(((decoded - exact) ** 2).sum() / (exact**2).sum())
    each = {side: least / elements * 1e9 for side, least in best.items()}
    details = {
        "elements": elements,
        "bits": round(8 * len(payload) / elements, 4),
        "error": float(f"{lost:.4g}"),
        "decode_ns": round(each["decode"], 3),
        "decode_ratio": round(each["decode"] / each["yardstick"], 2),
    }
    yardstick = Peer("copy-and-add", each["yardstick"])
    return Line(name, each["encode"], "ns an element", yardstick, BUDGETS.get(name), details)


def seconds(work: Callable[[], None]) -> float:
    """Wall-clock seconds of one call."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
