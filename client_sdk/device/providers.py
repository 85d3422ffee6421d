"""The execution providers of a device: each tried once and remembered, and one chosen for each plan.

What a device wishes is ``"cpu"``, ``"auto"`` (whichever makes a step soonest) or the name of one provider. Whatever it
wishes, a provider computes only after every recipe and the first step of the plan itself agreed; until then, and where
it fails, the CPU does. A plan's variant for the class of a provider is tried beside the plan's own file, and taken
where it agrees with it and is quicker.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Lock
from typing import Any

from coterie.client_sdk.device.seats import ProviderNews, ProviderState, Seat, refusals
from coterie.client_sdk.device.watch import Watch
from coterie.compute.extension.providers import load_providers
from coterie.compute.extension.trial import tried
from coterie.compute.onnx.providers import PROVIDERS, ProviderClass
from coterie.compute.runtime.choice import StepCase, Timing, fastest, quickest, timings
from coterie.compute.runtime.conformance import ConformanceReport
from coterie.compute.runtime.devices import ON_CPU, Provider, discover
from coterie.compute.runtime.quarantine import failure, identity_of, verdicts
from coterie.compute.runtime.session import CPU
from coterie.compute.runtime.steady import Fallback
from coterie.compute.runtime.verdict import Identity, Verdict
from coterie.errors import CoterieError

AUTO = "auto"


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
        self._found: list[Provider] | None = None
        self._trusted: list[Provider] | None = None
        self._chosen: dict[str, Seat] = {}
        # Read without the lock, which a trial holds for long.
        self._news: deque[ProviderNews] = deque()
        self._suspects = {verdict.identity: verdict for verdict in self._watch.suspects()}
        self._remembered |= self._suspects
        for verdict in self._suspects.values():
            self._add_news(verdict.identity.provider, "quarantined", verdict.reason, verdict=verdict)

    def kinds(self) -> frozenset[ProviderClass]:
        """The classes whose variants of a plan may be of use here: those of the providers that the device wishes."""
        with self._lock:
            wished = [*self._others(), *([ON_CPU] if self._wish in (AUTO, CPU) else [])]
        return frozenset(each.variant for each in wished if each.variant is not None)

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
        candidates, step = self._candidates(), case()
        if not candidates and (self._wish not in (AUTO, CPU) or ON_CPU.variant not in step.variants):
            return Seat()
        timed = timings(step, self._watched(candidates), threads=threads)
        self._news.extend(refusals(timed))
        for timing in timed:
            if timing.wrong and timing.variant is None:
                self._quarantine(timing.provider.name, timing.fault)
        best = self._best(timed)
        self._watch.rests(but=identity_of(best.provider))
        self._news.append(ProviderNews.of_choice(best, timed))
        return Seat(best.provider, best.trunk, best.variant)

    def _best(self, timed: tuple[Timing, ...]) -> Timing:
        if self._wish == AUTO:
            return fastest(timed)
        wished = [timing for timing in timed if timing.provider.name == self._wish and not timing.fault]
        # The whole step where it computes that, whatever it costs; else the frozen front.
        whole = [timing for timing in wished if not timing.trunk]
        return quickest(whole) if whole else next(iter(wished), timed[0])

    def _others(self) -> list[Provider]:
        """Those that the device wishes beside the CPU; found the first time."""
        if self._found is None:
            self._found, absent = [], "it is not on this machine; `coterie doctor` lists what is"
            if self._wish == CPU:
                return self._found
            try:
                self._found = [e for e in self._discovery() if e.name != CPU and self._wish in (AUTO, e.name)]
            except CoterieError as error:
                absent = error.message
            if not self._found and self._wish != AUTO:
                self._add_news(self._wish, "absent", absent)
        return self._found

    def _candidates(self) -> list[Provider]:
        """The trusted ones among those that the device wishes; found and tried the first time."""
        if self._trusted is None:
            known = verdicts(self._others(), self._remembered, trial=self._trial)
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
