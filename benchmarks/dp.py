"""Speed of noise and of its accounting.

    python benchmarks/dp.py [--json] [--quick] [--count N] [--rounds N] [--clock cpu]

Samplers: 2**20 draws of each, beside the AES-256-CTR key stream of just the bytes that they drew, measured in turn so
that both see the same moment; each figure is the least of all rounds. The budget is a ratio of 30. Bits of total
variation distance from the exact distribution come with each. Beside other jobs processor time (``--clock cpu``) says
more than the wall's.

Encoding: what a client does to a vector of so many coordinates under distributed noise (clip, rotate, round, noise).

Accounting: epsilon of one experiment, asked for the first time in a process (the import of dp-accounting apart in
``import_s``) and again (``again_s``). The budget is one second. All print one line each (see lines.py).
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from types import ModuleType

import numpy as np
import numpy.typing as npt
from lines import Line, Peer, at_most, show

from coterie.privacy.dp.accounting import total_cost
from coterie.privacy.dp.choosing import choose
from coterie.privacy.dp.distributed import encode
from coterie.privacy.dp.events import Approximate, PrivacyEvent, SampledGaussian
from coterie.privacy.dp.noise import discrete_gaussian, skellam
from coterie.privacy.dp.noise.source import NoiseSource
from coterie.privacy.dp.rounds import whole_cost
from coterie.protocol.privacy import UserLevel

Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
SAMPLER_BUDGET, ACCOUNTING_BUDGET = at_most(30.0, "ratio"), at_most(1.0)
SAMPLERS: tuple[tuple[str, ModuleType, float], ...] = (
    ("discrete_gaussian", discrete_gaussian, 3.0),
    ("discrete_gaussian", discrete_gaussian, 20.0),
    ("discrete_gaussian", discrete_gaussian, 200.0),
    ("discrete_gaussian", discrete_gaussian, 1000.0),
    ("discrete_gaussian", discrete_gaussian, 2.0**22),
    ("skellam", skellam, 3.0),
    ("skellam", skellam, 20.0),
    ("skellam", skellam, 200.0),
)
EXPERIMENTS: dict[str, Callable[[], tuple[PrivacyEvent, ...]]] = {
    "user-level gaussian, 1000 rounds": lambda: whole_cost(
        UserLevel(clip=1.0, delta=1e-5, noise_multiplier=20.0), 1000, cohort=100
    ),
    "user-level blt, 2048 rounds": lambda: whole_cost(
        UserLevel(clip=1.0, delta=1e-5, epsilon=8.0, mechanism="blt", min_separation=50), 2048, cohort=100
    ),
    "user-level discrete gaussian, 1000 rounds": lambda: whole_cost(
        UserLevel(clip=1.0, delta=1e-5, epsilon=8.0, mechanism="discrete_gaussian"), 1000, cohort=100
    ),
    "example-level, 14040 Poisson steps": lambda: (SampledGaussian(1.1, 256 / 60000, 14040),),
    "example-level with batches that may overflow": lambda: (
        SampledGaussian(0.8, 0.004, 3000),
        Approximate(0.0, 1e-7),
    ),
}
LENGTHS = (7850, 100_000, 1_000_000)


class Counting(NoiseSource):
    """A source that counts the bytes it gives."""

    given = 0

    def take(self, count: int) -> npt.NDArray[np.uint8]:
        """See Source.take."""
        self.given += count
        return super().take(count)


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON line for each figure")
    parser.add_argument("--quick", action="store_true", help="few draws and rounds, to see that it runs")
    parser.add_argument("--count", type=int, default=1 << 20)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall")
    options = parser.parse_args()
    count, rounds = (1 << 14, 2) if options.quick else (options.count, options.rounds)
    for found in measure(count, rounds, LENGTHS[:1] if options.quick else LENGTHS, CLOCKS[options.clock]):
        show(found, as_json=options.json)


def measure(count: int, rounds: int, lengths: tuple[int, ...], clock: Clock) -> Iterator[Line]:
    """All figures, one after the other."""
    for name, sampler, deviation in SAMPLERS:
        yield drawn(name, sampler, deviation, count, rounds, clock)
    for length in lengths:
        yield encoded(length, rounds, clock)
    begun = time.perf_counter()
    total_cost((SampledGaussian(1.0, 0.5, 1),), 1e-5)
    loading = time.perf_counter() - begun
    for name, events in EXPERIMENTS.items():
        yield accounted(name, events, clock, loading)


def drawn(name: str, sampler: ModuleType, deviation: float, count: int, rounds: int, clock: Clock) -> Line:
    """One sampler beside the key stream of its bytes."""
    variance, source = Fraction(deviation) ** 2, Counting(bytes(32))
    begun = time.perf_counter()
    sampler.draw(1, variance, source)
    table_s = time.perf_counter() - begun
    source.given = 0
    sampler.draw(count, variance, source)
    given, plain = source.given, NoiseSource(bytes(32))
    best = least(clock, rounds, lambda: plain.take(given), lambda: sampler.draw(count, variance, plain))
    details = {
        "draws": count,
        "bytes_per_draw": round(given / count, 3),
        "table_ms": round(table_s * 1e3, 1),
        "distance_bits": round(-math.log2(sampler.distance(variance)), 1),
    }
    stream = Peer("AES-256-CTR", best[0] * 1e3)
    return Line(f"{name}, deviation {deviation:g}", best[1] * 1e3, "ms", stream, SAMPLER_BUDGET, details)


def encoded(length: int, rounds: int, clock: Clock) -> Line:
    """A client's work on its vector: 1000 clients at a noise multiplier of 1."""
    terms = choose("discrete_gaussian", clip=1.0, noise_multiplier=1.0, length=length, clients=1000, contributors=900)
    source, shared = NoiseSource(bytes(32)), bytes(range(32))
    vector = np.sin(np.arange(length, dtype=np.float64))
    best = least(clock, rounds, lambda: encode(vector, terms, shared, source))
    details = {
        "bits": terms.bits,
        "inflation": round(terms.inflation, 5),
        "share_deviation": round(math.sqrt(terms.variance), 1),
    }
    return Line(f"encoding of {length} coordinates", best[0] * 1e3, "ms of a client", details=details)


def accounted(name: str, events: Callable[[], tuple[PrivacyEvent, ...]], clock: Clock, loading: float) -> Line:
    """Epsilon of one experiment at delta 1e-5, first and again."""
    begun = clock()
    found = total_cost(events(), 1e-5)
    first = clock() - begun
    begun = clock()
    total_cost(events(), 1e-5)
    again = clock() - begun
    details = {
        "epsilon": round(found.epsilon, 6),
        "epsilon_rdp": round(found.epsilon_rdp, 6),
        "method": found.method,
        "again_s": round(again, 6),
        "import_s": round(loading, 3),
    }
    return Line(f"accounting of {name}", first, "s", budget=ACCOUNTING_BUDGET, details=details)


def least(clock: Clock, rounds: int, *works: Callable[[], object]) -> list[float]:
    """The least seconds of each piece of work, done in turn."""
    best = [math.inf] * len(works)
    for _ in range(rounds):
        for index, work in enumerate(works):
            begun = clock()
            work()
            best[index] = min(best[index], clock() - begun)
    return best


if __name__ == "__main__":
    main()
