"""Which provider makes a step soonest: measured on the graph itself, with the numbers that it will be trained on."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf

from coterie.compute.ir import NDArray
from coterie.compute.onnx.hybrid import split
from coterie.compute.runtime.devices import Provider, provider_named
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.hybrid_loop import HybridLoop
from coterie.compute.runtime.reference import distance
from coterie.compute.runtime.session import CPU
from coterie.compute.runtime.steady import Fallback, SteadyLoop, Told
from coterie.errors import CoterieError

# Sums of a whole step in another order than the CPU's.
STEP_TOLERANCE = 1e-3
# Of the CPU's time that another provider may need at most: a draw is not worth other bits.
ADVANTAGE = 0.9
WARM_UP, STEPS, LONGEST_S = 2, 20, 1.0


@dataclass(frozen=True, kw_only=True)
class StepCase:
    """A training step to be timed: the graph, and the arguments of a ``StepLoop`` and of its ``step``. frozen, batch:
    which of the constants nobody trains, and which of the feeds are rows; with both, the frozen front may be cut off.
    """

    data: bytes
    carry: Mapping[str, str]
    constants: Mapping[str, NDArray]
    state: Mapping[str, NDArray]
    feeds: Mapping[str, NDArray]
    frozen: frozenset[str] = frozenset()
    batch: frozenset[str] = frozenset()

    def whole(self, executable: Executable, *, told: Told = lambda fallback: None) -> SteadyLoop:
        """A loop over the whole step, which ``executable`` has loaded."""
        return SteadyLoop(
            executable, carry=self.carry, constants=self.constants, state=self.state, in_place=True, told=told
        )

    def parted(self, provider: Provider, *, threads: int, told: Told = lambda fallback: None) -> HybridLoop:
        """A loop whose frozen front runs on the provider and the rest on the CPU. Raises GraphRefused without one."""
        frozen = {name: self.constants[name] for name in self.frozen}
        parts = split(self.data, frozen=frozen, batch=self.batch)
        trunk, head = provider.executable(parts.trunk, threads=threads), Executable(parts.head, threads=threads)
        return HybridLoop(trunk, head, carry=self.carry, constants=self.constants, state=self.state, told=told)


@dataclass(frozen=True)
class Timing:
    """seconds: of the quickest of some steps; infinite where a fault says why there is none. wrong: whether the fault
    lies in what it computed, or in a run, so that it deserves no trust. trunk: whether only the frozen front ran there.
    """

    provider: Provider
    seconds: float
    fault: str = ""
    wrong: bool = False
    trunk: bool = False

    @property
    def name(self) -> str:
        """The provider's name, and whether it is about the frozen front alone."""
        return f"{self.provider.name} (frozen front)" if self.trunk else self.provider.name


def timings(
    case: StepCase, providers: Iterable[Provider], *, threads: int = 1, clock: Callable[[], float] = time.perf_counter
) -> tuple[Timing, ...]:
    """The CPU's timing, then those of the other providers in their order; each with the whole step and, where the step
    has a frozen front, with that alone.

    Each starts from the same state. Its first step must agree with the CPU's; a provider whose step differs, fails or
    does not load has a fault. Takes at most about a second for each, and the time to load.
    """
    cpu = provider_named(CPU)
    first, expected = _timed(case, cpu, threads, clock, None)
    ways = (False, True) if case.frozen and case.batch else (False,)
    others = [(each, trunk) for each in providers if each.name != CPU for trunk in ways]
    return (first, *(_timed(case, each, threads, clock, expected, trunk=trunk)[0] for each, trunk in others))


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
    *,
    trunk: bool = False,
) -> tuple[Timing, dict[str, NDArray]]:
    failures: list[Fallback] = []
    try:
        loop = (
            case.parted(provider, threads=threads, told=failures.append)
            if trunk
            else case.whole(provider.executable(case.data, threads=threads), told=failures.append)
        )
    except CoterieError as error:
        return Timing(provider, inf, error.message, trunk=trunk), {}
    try:
        loop.step(case.feeds)
        after = loop.state()
        apart = max((distance(after[name], value) for name, value in (expected or {}).items()), default=0.0)
        if apart > STEP_TOLERANCE:
            return Timing(provider, inf, f"its step is {apart:.2g} from the CPU's", wrong=True, trunk=trunk), after
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
        return Timing(provider, inf, error.message, wrong=True, trunk=trunk), {}
    if failures:
        return Timing(provider, inf, failures[0].reason, wrong=True, trunk=trunk), {}
    return Timing(provider, best, trunk=trunk), after
