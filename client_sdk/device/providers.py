"""The execution providers of a device: each tried once and remembered, and one chosen for each plan.

What a device wishes is ``"cpu"``, ``"auto"`` (whichever makes a step soonest) or the name of one provider. Whatever it
wishes, a provider computes only after every recipe and the first step of the plan itself agreed; until then, and where
it fails, the CPU does.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal, TypeAlias

from coterie.client_sdk.device.watch import Watch
from coterie.compute.extension.providers import load_providers
from coterie.compute.extension.trial import tried
from coterie.compute.onnx.providers import PROVIDERS
from coterie.compute.runtime.choice import StepCase, Timing, fastest, timings
from coterie.compute.runtime.conformance import ConformanceReport
from coterie.compute.runtime.devices import ON_CPU, Provider, discover
from coterie.compute.runtime.quarantine import failure, identity_of, verdicts
from coterie.compute.runtime.session import CPU
from coterie.compute.runtime.steady import Fallback
from coterie.compute.runtime.verdict import Identity, Verdict
from coterie.errors import CoterieError

AUTO = "auto"
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


@dataclass(frozen=True)
class Seat:
    """Where the steps of a plan run.

    trunk: only the frozen front of the model does, the rest on the CPU.
    """

    provider: Provider = ON_CPU
    trunk: bool = False


class DeviceProviders:
    """What a plan trainer asks for its providers. May be used from several threads.

    remembered: earlier verdicts.
    discovery: of all providers of this machine, asked for once.
    trial: of one of them, in another process where it is left to itself.
    watch: is told who computes. Verdicts and what happened are collected; ``news`` hands them over, for the thread that
        owns the store.
    """

    def __init__(
        self,
        wish: str,
        remembered: Mapping[Identity, Verdict],
        *,
        discovery: Callable[[], Iterable[Provider]] = lambda: discover(load_providers()),
        trial: Callable[[Provider], ConformanceReport] = lambda provider: tried(provider),
        watch: Watch | None = None,
    ) -> None:
        self._wish = runtime_name(wish)
        self._remembered, self._discovery, self._trial = dict(remembered), discovery, trial
        self._watch = watch or Watch()
        self._lock = Lock()
        self._trusted: list[Provider] | None = None
        self._chosen: dict[str, Seat] = {}
        # Read without the lock, which a trial holds for long.
        self._news: deque[ProviderNews] = deque()
        self._suspects = {verdict.identity: verdict for verdict in self._watch.suspects()}
        self._remembered |= self._suspects
        for verdict in self._suspects.values():
            self._add_news(verdict.identity.provider, "quarantined", verdict.reason, verdict=verdict)

    def news(self) -> list[ProviderNews]:
        """What has happened since this was asked last."""
        return [self._news.popleft() for _ in range(len(self._news))]

    def rest(self) -> None:
        """A task is done: whatever computed in it was outlived."""
        self._watch.rests()

    def chosen(self, plan: str) -> Seat:
        """What was chosen for a plan; the CPU before there was a choice. It computes until ``rest``."""
        seat = self._chosen.get(plan, Seat())
        self._computes(seat.provider)
        return seat

    def choose(self, plan: str, case: Callable[[], StepCase], threads: int) -> Seat:
        """Where the steps of a plan run. The first time it is measured, on the plan's own first step."""
        with self._lock:
            if plan not in self._chosen:
                self._chosen[plan] = self._measure(case, threads)
            return self.chosen(plan)

    def failed(self, fallback: Fallback) -> None:
        """A provider failed in a run: it is in quarantine from here on, and no plan runs on it."""
        with self._lock:
            self._quarantine(fallback.provider, fallback.reason, steps=fallback.steps)

    def refused(self, provider: str, reason: str) -> None:
        """A provider does not load a graph of a plan that it computes otherwise; the CPU runs that one."""
        self._add_news(provider, "refused", reason)

    def _add_news(self, provider: str, state: ProviderState, reason: str, **more: Any) -> None:
        self._news.append(ProviderNews(provider=provider, state=state, reason=reason, **more))

    def _computes(self, provider: Provider) -> None:
        if provider.name != CPU:
            self._watch.computes(identity_of(provider))

    def _watched(self, providers: Iterable[Provider]) -> Iterator[Provider]:
        """The same providers, each from the moment on when it is asked for one that computes."""
        for provider in providers:
            self._computes(provider)
            yield provider

    def _measure(self, case: Callable[[], StepCase], threads: int) -> Seat:
        candidates = self._candidates()
        if not candidates:
            return Seat()
        timed = timings(case(), self._watched(candidates), threads=threads)
        for timing in timed:
            if timing.wrong:
                self._quarantine(timing.provider.name, timing.fault)
        best = self._best(timed)
        self._watch.rests(but=identity_of(best.provider))
        seconds = {timing.name: timing.seconds for timing in timed if not timing.fault}
        self._news.append(ProviderNews(provider=best.name, state="chosen", seconds=seconds))
        return Seat(best.provider, best.trunk)

    def _best(self, timed: tuple[Timing, ...]) -> Timing:
        if self._wish == AUTO:
            return fastest(timed)
        wished = [timing for timing in timed if timing.provider.name == self._wish and not timing.fault]
        # The whole step where it computes that, whatever it costs; else the frozen front.
        return next(iter(wished), timed[0])

    def _candidates(self) -> list[Provider]:
        """The trusted ones among those that the device wishes; found and tried the first time."""
        if self._trusted is None:
            others: list[Provider] = []
            absent = "it is not on this machine; `coterie doctor` lists what is"
            try:
                others = [each for each in self._discovery() if each.name != CPU and self._wish in (AUTO, each.name)]
            except CoterieError as error:
                absent = error.message
            if not others and self._wish not in (AUTO, CPU):
                self._add_news(self._wish, "absent", absent)
            known = verdicts(others, self._remembered, trial=self._trial)
            for provider, verdict in known.items():
                state: ProviderState = "trusted" if verdict.trusted else "quarantined"
                fresh = None if verdict.identity in self._remembered else verdict
                if verdict.identity not in self._suspects:  # who was told of already
                    self._add_news(provider.name, state, verdict.reason, verdict=fresh)
                self._remembered[verdict.identity] = verdict
            self._trusted = [provider for provider, verdict in known.items() if verdict.trusted]
        return self._trusted

    def _quarantine(self, name: str, reason: str, *, steps: int | None = None) -> None:
        """Only of a provider that is trusted: several loops may tell the same failure."""
        lost = [each for each in self._trusted or () if each.name == name]
        for provider in lost:
            verdict = failure(provider, reason)
            self._remembered[verdict.identity] = verdict
            self._add_news(name, "failed", reason, steps=steps, verdict=verdict)
        self._trusted = [each for each in self._trusted or () if each.name != name]
        self._chosen = {plan: Seat() if seat.provider.name == name else seat for plan, seat in self._chosen.items()}


def runtime_name(wish: str) -> str:
    """ONNX Runtime's name for a provider's short one (``openvino``); any other wish as it is."""
    return PROVIDERS[wish].runtime if wish in PROVIDERS else wish
