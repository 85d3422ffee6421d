"""Which provider makes a step soonest: measured on the graph itself, with the numbers that it will be trained on."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, isfinite

import numpy as np

from coterie.compute.ir import NDArray
from coterie.compute.onnx.grouped import grouped
from coterie.compute.onnx.hybrid import split
from coterie.compute.onnx.providers import ProviderClass
from coterie.compute.runtime.devices import Provider, provider_named
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.grouped_loop import GroupedLoop
from coterie.compute.runtime.hybrid_loop import HybridLoop
from coterie.compute.runtime.loop import Loop
from coterie.compute.runtime.reference import distance
from coterie.compute.runtime.session import CPU
from coterie.compute.runtime.steady import Fallback, SteadyLoop, Told
from coterie.errors import CoterieError

# Sums of a whole step in another order than the CPU's.
STEP_TOLERANCE = 1e-3
# Rounding alone may turn a step around: Adam divides a gradient by its own size, also one that is zero but for rounding
# (of a bias before a normalisation, of an attention's keys). So the CPU's own step is made once more from weights that
# are a few roundings off, and a provider may be apart by this many times what that changes.
# A sum of thousands of products differs by some sixteen roundings: with four, a GPU's steps of ResNet-18 were refused.
ROUNDINGS, FREEDOM = 2.0**-20, 4.0
# Of the CPU's time that another provider may need at most: a draw is not worth other bits.
ADVANTAGE = 0.9
STEPS, LONGEST_S = 20, 1.0
# Steps before those that are timed, whose state is compared: a loop has two sets of memory, and the third step reads
# again what the first one read. Drivers make their plans and kernels in them.
COMPARED = 3


@dataclass(frozen=True, kw_only=True)
class StepCase:
    """A training step to be timed: the graph, and the arguments of a ``StepLoop`` and of its ``step``. frozen, batch:
    which of the constants nobody trains, and which of the feeds are rows; with both, the frozen front may be cut off.
    variants: the same step as it was written for classes of providers.
    """

    data: bytes
    carry: Mapping[str, str]
    constants: Mapping[str, NDArray]
    state: Mapping[str, NDArray]
    feeds: Mapping[str, NDArray]
    frozen: frozenset[str] = frozenset()
    batch: frozenset[str] = frozenset()
    variants: Mapping[ProviderClass, bytes] = field(default_factory=dict[ProviderClass, bytes])

    def whole(self, executable: Executable, *, told: Told = lambda fallback: None) -> SteadyLoop:
        """A loop over the whole step, which ``executable`` has loaded."""
        return SteadyLoop(
            executable, carry=self.carry, constants=self.constants, state=self.state, in_place=True, told=told
        )

    def grouped(
        self, step: Executable, steps: int, provider: Provider, *, told: Told = lambda fallback: None
    ) -> GroupedLoop:
        """A loop that takes ``steps`` steps in one call; ``step`` takes what is left. Raises GraphRefused."""
        data = grouped(self.data, steps, carry=self.carry, constants=self.constants)
        group = provider.executable(data, threads=step.threads)
        return GroupedLoop(step, group, steps, carry=self.carry, constants=self.constants, state=self.state, told=told)

    def parted(self, provider: Provider, *, threads: int, told: Told = lambda fallback: None) -> HybridLoop:
        """A loop whose frozen front runs on the provider and the rest on the CPU. Raises GraphRefused without one."""
        frozen = {name: self.constants[name] for name in self.frozen}
        parts = split(self.data, frozen=frozen, batch=self.batch)
        trunk, head = provider.executable(parts.trunk, threads=threads), Executable(parts.head, threads=threads)
        return HybridLoop(trunk, head, carry=self.carry, constants=self.constants, state=self.state, told=told)


@dataclass(frozen=True)
class _Right:
    """What the first steps must give: the CPU's state after them, and how far each tensor of it may be from that."""

    state: Mapping[str, NDArray]
    freedom: Mapping[str, float]

    def fault(self, after: Mapping[str, NDArray]) -> str:
        """What is wrong with a state; "" when nothing is."""
        apart = {name: distance(after[name], value) for name, value in self.state.items()}
        wrong = [name for name, far in apart.items() if far > self.freedom[name]]
        return f"its steps are {apart[wrong[0]]:.2g} from the CPU's in {wrong[0]!r}" if wrong else ""


@dataclass(frozen=True)
class Timing:
    """seconds: of the quickest of some steps; infinite where a fault says why there is none. wrong: whether the fault
    lies in what it computed, or in a run, so that it deserves no trust. trunk: whether only the frozen front ran there.
    variant: the class whose variant of the step ran; its faults are the file's, and say nothing of the provider.
    """

    provider: Provider
    seconds: float
    fault: str = ""
    wrong: bool = False
    trunk: bool = False
    variant: ProviderClass | None = None

    @property
    def name(self) -> str:
        """The provider's name, and whether it is about the frozen front alone, or about a variant."""
        if self.variant is not None:
            return f"{self.provider.name} ({self.variant} variant)"
        return f"{self.provider.name} (frozen front)" if self.trunk else self.provider.name


def timings(
    case: StepCase, providers: Iterable[Provider], *, threads: int = 1, clock: Callable[[], float] = time.perf_counter
) -> tuple[Timing, ...]:
    """The CPU's timing, then those of the other providers in their order; each with the whole step, with the variant of
    its class where there is one and, where the step has a frozen front, with that alone.

    providers: asked for one after another, each when those before it are done. Each starts from the same state. Its
    first steps must agree with the CPU's, up to what rounding alone may change; a provider whose steps differ, which
    fails or does not load has a fault. Takes at most about a second for each, and the time to load.
    """
    cpu = provider_named(CPU)
    on_cpu = cpu.executable(case.data, threads=threads)
    right = _right(case, on_cpu)
    first = _timed(cpu, lambda told: case.whole(on_cpu, told=told), case, right, clock)

    def timed(each: Provider, own: StepCase, *, trunk: bool = False) -> Timing:
        return replace(_timed(each, partial(_loop, own, each, threads, trunk), case, right, clock), trunk=trunk)

    def varied(each: Provider) -> list[Timing]:
        kind = each.variant
        data = None if kind is None else case.variants.get(kind)
        return [] if data is None else [replace(timed(each, replace(case, data=data)), variant=kind)]

    found = [first, *varied(cpu)]
    for each in (each for each in providers if each.name != CPU):
        whole = timed(each, case)
        # A provider that is wrong about the step itself would be believed in nothing else.
        found += [whole, *([] if whole.wrong else varied(each))]
        if case.frozen and case.batch:
            found.append(timed(each, case, trunk=True))
    return tuple(found)


def disagreement(case: StepCase, data: bytes) -> str:
    """How the first steps of another file are apart from those of the case, both on the CPU, in words; "" when they
    agree up to what rounding may change.
    """
    cpu = provider_named(CPU)
    right, loop = _right(case, cpu.executable(case.data)), case.whole(cpu.executable(data))
    for _ in range(COMPARED):
        loop.step(case.feeds)
    return right.fault(loop.state())


def fastest(found: Iterable[Timing]) -> Timing:
    """The CPU's timing of the step itself, unless another needs less than ``ADVANTAGE`` of its time; then the least."""
    listed = list(found)
    cpu = next(timing for timing in listed if timing.provider.name == CPU and timing.variant is None)
    return quickest([cpu, *listed])


def quickest(found: Sequence[Timing]) -> Timing:
    """The first, unless another needs less than ``ADVANTAGE`` of its time; then the least."""
    best = min(found, key=lambda timing: timing.seconds)
    return best if best.seconds < ADVANTAGE * found[0].seconds else found[0]


def _right(case: StepCase, on_cpu: Executable) -> _Right:
    """What the CPU makes of the first steps, and of the same from weights that are a few roundings off."""
    rng = np.random.default_rng(0)

    def off(value: NDArray) -> NDArray:
        if value.dtype.kind != "f":
            return value
        return (value * (1 + ROUNDINGS * rng.choice((-1.0, 1.0), value.shape))).astype(value.dtype)

    def after(state: Mapping[str, NDArray]) -> dict[str, NDArray]:
        loop = replace(case, state=state).whole(on_cpu)
        for _ in range(COMPARED):
            loop.step(case.feeds)
        return loop.state()

    state = after(case.state)
    moved = after({name: off(value) for name, value in case.state.items()})
    apart = {name: distance(moved[name], value) for name, value in state.items()}
    return _Right(
        state, {name: STEP_TOLERANCE + (FREEDOM * far if isfinite(far) else 0) for name, far in apart.items()}
    )


def _loop(case: StepCase, provider: Provider, threads: int, trunk: bool, told: Told) -> Loop:
    if trunk:
        return case.parted(provider, threads=threads, told=told)
    return case.whole(provider.executable(case.data, threads=threads), told=told)


def _timed(
    provider: Provider,
    load: Callable[[Told], Loop],
    case: StepCase,
    right: _Right,
    clock: Callable[[], float],
) -> Timing:
    failures: list[Fallback] = []
    try:
        loop = load(failures.append)
    except CoterieError as error:
        return Timing(provider, inf, error.message)
    try:
        for _ in range(COMPARED):
            loop.step(case.feeds)
        if fault := right.fault(loop.state()):
            return Timing(provider, inf, fault, wrong=True)
        best, begun = inf, clock()
        for _ in range(STEPS):
            before = clock()
            loop.step(case.feeds)
            best = min(best, clock() - before)
            if clock() - begun > LONGEST_S:
                break
    except CoterieError as error:
        return Timing(provider, inf, error.message, wrong=True)
    if failures:
        return Timing(provider, inf, failures[0].reason, wrong=True)
    return Timing(provider, best)
