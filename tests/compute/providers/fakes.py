"""Providers of packages that are made up: right, wrong, slow, and such that fail in their n-th run."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, cast

import numpy as np

from coterie.compute.ir import NDArray
from coterie.compute.onnx.providers import ProviderClass
from coterie.compute.runtime.devices import Provider, Runner
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.session import Session
from coterie.compute.runtime.slots import HostSlot, Slot
from coterie.compute.runtime.tensors import TensorInfo

Change = Callable[[Mapping[str, NDArray]], Mapping[str, NDArray]]


def made(
    name: str,
    change: Change = lambda results: results,
    *,
    driver: str = "1",
    sleep: float = 0.0,
    kind: ProviderClass | None = None,
    loaded: Callable[[bytes], object] = lambda data: None,
) -> Provider:
    """A provider that computes on the CPU and then changes the results.

    loaded: told the bytes of every graph that it loads; what it raises refuses the graph.
    """

    def load(data: bytes) -> Runner:
        loaded(data)
        run = Executable(data).run

        def changed(feeds: Mapping[str, NDArray]) -> Mapping[str, NDArray]:
            time.sleep(sleep)
            return change(run(feeds))

        return changed

    return Provider(name, "1.0", load, driver, kind)


def failing(name: str, at: int) -> Provider:
    """A provider that is right until a run of its own, the number ``at`` from 0, and fails from then on."""
    runs = count()

    def fail(results: Mapping[str, NDArray]) -> Mapping[str, NDArray]:
        if next(runs) >= at:
            raise OSError("the device is lost")
        return results

    return made(name, fail)


def rounding(name: str, seed: int) -> Provider:
    """A provider that sums in an order of its own: each number that it is given is a rounding off."""

    def load(data: bytes) -> Runner:
        run, rng = Executable(data).run, np.random.default_rng(seed)

        def rounded(feeds: Mapping[str, NDArray]) -> Mapping[str, NDArray]:
            given = {
                each: value * (1 + 2.0**-23 * rng.choice((-1.0, 1.0), value.shape))
                if value.dtype.kind == "f"
                else value
                for each, value in feeds.items()
            }
            return run({each: value.astype(feeds[each].dtype) for each, value in given.items()})

        return rounded

    return Provider(name, "1.0", load, "1")


def stale(name: str) -> Provider:
    """A provider that keeps copies of what it was given first, as some do when inputs are bound."""

    def load(data: bytes) -> Runner:
        run, kept = Executable(data).run, dict[str, NDArray]()

        def ran(feeds: Mapping[str, NDArray]) -> Mapping[str, NDArray]:
            for each, value in feeds.items():
                kept.setdefault(each, value.copy())
            return run(kept)

        return ran

    return Provider(name, "1.0", load, "1")


def off(results: Mapping[str, NDArray]) -> Mapping[str, NDArray]:
    """Every number of a result one per cent too large."""
    return {name: value * value.dtype.type(1.01) for name, value in results.items()}


@dataclass
class Copies:
    """What was copied to a device, and from it: how often each tensor. bound: how often tensors were bound."""

    sent: Counter[str] = field(default_factory=Counter[str])
    fetched: Counter[str] = field(default_factory=Counter[str])
    bound: int = 0


@dataclass(frozen=True)
class RecordedSlot:
    """Memory of the host that stands for a device's. lost: asked before each copy, raises where the device is lost."""

    host: HostSlot
    copies: Copies
    lost: Callable[[], None]

    @property
    def info(self) -> TensorInfo:
        """Of the tensor."""
        return self.host.info

    @property
    def value(self) -> Any:
        """What is bound."""
        return self.host.value

    def write(self, array: NDArray) -> None:
        """Counts one copy to the device."""
        self.lost()
        self.copies.sent[self.info.name] += 1
        self.host.write(array)

    def read(self) -> NDArray:
        """Counts one copy from the device."""
        self.lost()
        self.copies.fetched[self.info.name] += 1
        return self.host.read()


class _RecordedBinding:
    def __init__(self, binding: Any, copies: Copies) -> None:
        self.binding, self._copies = binding, copies

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        self._copies.bound += 1
        self.binding.bind_ortvalue_input(name, value)

    def bind_ortvalue_output(self, name: str, value: Any) -> None:
        self.binding.bind_ortvalue_output(name, value)


class _RecordedSession:
    """A session of the CPU whose runs are lost from the number ``at`` on."""

    def __init__(self, session: Session, copies: Copies, run: Callable[[], None]) -> None:
        self._session, self._copies, self._run = session, copies, run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def io_binding(self) -> _RecordedBinding:
        return _RecordedBinding(self._session.io_binding(), self._copies)

    def run_with_iobinding(self, binding: _RecordedBinding) -> None:
        self._run()
        self._session.run_with_iobinding(binding.binding)


@dataclass(frozen=True)
class Recorded(Provider):
    """A provider with memory of its own that records every copy; it computes on the CPU.

    fails_at: the number of the step, from 0, that fails, and every one after it. forgets: whether what its memory holds
    is lost then too.
    """

    copies: Copies = field(default_factory=Copies, compare=False)
    fails_at: int | None = None
    forgets: bool = False
    steps: "count[int]" = field(default_factory=lambda: count(), compare=False)
    failed: list[str] = field(default_factory=list[str], compare=False)

    def executable(self, data: bytes, *, threads: int = 1, fallback: bool = True) -> Executable:
        """A graph whose loops live in recorded memory."""
        session = _RecordedSession(Executable(data, threads=threads).session, self.copies, self._run)
        return Executable(data, provider=self.name, session=cast(Session, session), memory=self._slot)

    def _slot(self, info: TensorInfo) -> Slot:
        return RecordedSlot(HostSlot.make(info), self.copies, self._remembered)

    def _run(self) -> None:
        if self.fails_at is not None and next(self.steps) >= self.fails_at:
            self.failed.append("lost")
            raise OSError("the device is lost")

    def _remembered(self) -> None:
        if self.failed and self.forgets:
            raise OSError("its memory is lost")
