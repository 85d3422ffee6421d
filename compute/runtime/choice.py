"""Which provider makes a step soonest: measured on the graph itself, with the numbers that it will be trained on."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf

from coterie.compute.ir import NDArray
from coterie.compute.runtime.devices import Provider, provider_named
from coterie.compute.runtime.reference import distance
from coterie.compute.runtime.session import CPU
from coterie.compute.runtime.step_loop import StepLoop
from coterie.errors import CoterieError

# Sums of a whole step in another order than the CPU's.
STEP_TOLERANCE = 1e-3
# Of the CPU's time that another provider may need at most: a draw is not worth other bits.
ADVANTAGE = 0.9
WARM_UP, STEPS, LONGEST_S = 2, 20, 1.0


@dataclass(frozen=True, kw_only=True)
class StepCase:
    """A training step to be timed: the graph, and the arguments of a ``StepLoop`` and of its ``step``."""

    data: bytes
    carry: Mapping[str, str]
    constants: Mapping[str, NDArray]
    state: Mapping[str, NDArray]
    feeds: Mapping[str, NDArray]


@dataclass(frozen=True)
class Timing:
    """seconds: of the quickest of some steps; infinite where a fault says why there is none. wrong: whether the fault
    lies in what it computed, or in a run, so that it deserves no trust.
    """

    provider: Provider
    seconds: float
    fault: str = ""
    wrong: bool = False


def timings(
    case: StepCase, providers: Iterable[Provider], *, threads: int = 1, clock: Callable[[], float] = time.perf_counter
) -> tuple[Timing, ...]:
    """The CPU's timing, then those of the other providers in their order.

    Each starts from the same state. Its first step must agree with the CPU's; a provider whose step differs, fails or
    does not load has a fault. Takes at most about a second for each, and the time to load.
    """
    cpu = provider_named(CPU)
    first, expected = _timed(case, cpu, threads, clock, None)
    others = [each for each in providers if each.name != CPU]
    return (first, *(_timed(case, each, threads, clock, expected)[0] for each in others))


def fastest(found: Iterable[Timing]) -> Timing:
    """The CPU's timing, unless another provider needs less than ``ADVANTAGE`` of its time; then the least."""
    listed = list(found)
    cpu = next(timing for timing in listed if timing.provider.name == CPU)
    best = min(listed, key=lambda timing: timing.seconds)
    return best if best.seconds < ADVANTAGE * cpu.seconds else cpu


def _timed(
    case: StepCase,
    provider: Provider,
    threads: int,
    clock: Callable[[], float],
    expected: Mapping[str, NDArray] | None,
) -> tuple[Timing, dict[str, NDArray]]:
    try:
        executable = provider.executable(case.data, threads=threads)
    except CoterieError as error:
        return Timing(provider, inf, error.message), {}
    try:
        loop = StepLoop(executable, carry=case.carry, constants=case.constants, state=case.state, in_place=True)
        loop.step(case.feeds)
        after = loop.state()
        apart = max((distance(after[name], value) for name, value in (expected or {}).items()), default=0.0)
        if apart > STEP_TOLERANCE:
            return Timing(provider, inf, f"its step is {apart:.2g} from the CPU's", wrong=True), after
        for _ in range(WARM_UP):
            loop.step(case.feeds)
        best, begun = inf, clock()
        for _ in range(STEPS):
            before = clock()
            loop.step(case.feeds)
            best = min(best, clock() - before)
            if clock() - begun > LONGEST_S:
                break
    except CoterieError as error:
        return Timing(provider, inf, error.message, wrong=True), {}
    return Timing(provider, best), after
