"""Where the steps of a plan run on a device, who chooses that, and what its owner is told of it."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Literal, Protocol, TypeAlias

from coterie.compute.onnx.providers import ProviderClass
from coterie.compute.runtime.choice import StepCase, Timing, fastest, timings
from coterie.compute.runtime.devices import ON_CPU, Provider
from coterie.compute.runtime.steady import Fallback
from coterie.compute.runtime.verdict import Verdict

ProviderState: TypeAlias = Literal["trusted", "quarantined", "absent", "chosen", "refused", "failed"]


@dataclass(frozen=True, kw_only=True)
class ProviderNews:
    """Something that the owner of the device is told, and, with a verdict, something to be remembered.

    seconds: of one step, by provider, where a choice was measured.
    steps: how many a provider had made when it failed.
    """

    provider: str
    state: ProviderState
    reason: str = ""
    seconds: Mapping[str, float] | None = None
    steps: int | None = None
    verdict: Verdict | None = None

    @staticmethod
    def of_choice(best: Timing, timed: Iterable[Timing]) -> "ProviderNews":
        """What was chosen, and the seconds of all that could have been."""
        seconds = {timing.name: timing.seconds for timing in timed if not timing.fault}
        return ProviderNews(provider=best.name, state="chosen", seconds=seconds)


def refusals(timed: Iterable[Timing]) -> list[ProviderNews]:
    """News of variants that do not load, or do not give the steps of the plan's own file."""
    wrong = (timing for timing in timed if timing.fault and timing.variant is not None)
    return [
        ProviderNews(provider=each.provider.name, state="refused", reason=f"the {each.variant} variant: {each.fault}")
        for each in wrong
    ]


@dataclass(frozen=True)
class Seat:
    """Where the steps of a plan run.

    trunk: only the frozen front of the model does, the rest on the CPU.
    variant: the class whose variant of the steps runs; None for the plan's own file.
    """

    provider: Provider = ON_CPU
    trunk: bool = False
    variant: ProviderClass | None = None


class Seats(Protocol):
    """Who chooses where the steps of plans run; may be asked from several threads."""

    def kinds(self) -> frozenset[ProviderClass]:
        """The classes whose variants of a plan may be of use here."""
        ...

    def choose(self, plan: str, case: Callable[[], StepCase], threads: int) -> Seat:
        """Where the steps of a plan run. The first time it is measured, on the plan's own first step."""
        ...

    def chosen(self, plan: str) -> Seat:
        """What was chosen for a plan; the CPU before there was a choice. It computes until ``rest``."""
        ...

    def failed(self, fallback: Fallback) -> None:
        """A provider failed in a run."""
        ...

    def refused(self, provider: str, reason: str) -> None:
        """A provider does not load a graph of a plan that it computes otherwise; the CPU runs that one."""
        ...

    def news(self) -> list[ProviderNews]:
        """What has happened since this was asked last."""
        ...

    def rest(self) -> None:
        """A task is done: whatever computed in it was outlived."""
        ...


class CpuSeats:
    """The CPU, and nothing else: a plan's own file, or its variant for it where that agrees and is quicker."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._chosen: dict[str, Seat] = {}
        self._news: deque[ProviderNews] = deque()

    def kinds(self) -> frozenset[ProviderClass]:
        return frozenset(("cpu",))

    def choose(self, plan: str, case: Callable[[], StepCase], threads: int) -> Seat:
        with self._lock:
            if plan not in self._chosen:
                self._chosen[plan] = self._measure(case(), threads)
            return self._chosen[plan]

    def chosen(self, plan: str) -> Seat:
        return self._chosen.get(plan, Seat())

    def failed(self, fallback: Fallback) -> None:
        self._news.append(ProviderNews(provider=fallback.provider, state="failed", reason=fallback.reason))

    def refused(self, provider: str, reason: str) -> None:
        self._news.append(ProviderNews(provider=provider, state="refused", reason=reason))

    def news(self) -> list[ProviderNews]:
        return [self._news.popleft() for _ in range(len(self._news))]

    def rest(self) -> None:
        """Nothing is watched."""

    def _measure(self, step: StepCase, threads: int) -> Seat:
        if ON_CPU.variant not in step.variants:
            return Seat()
        timed = timings(step, (), threads=threads)
        best = fastest(timed)
        self._news.extend([*refusals(timed), ProviderNews.of_choice(best, timed)])
        return Seat(best.provider, variant=best.variant)
