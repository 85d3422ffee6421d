"""Providers of packages that are made up: right, wrong, slow, and such that fail in their n-th run."""

import time
from collections.abc import Callable, Mapping
from itertools import count

import numpy as np

from coterie.compute.ir import NDArray
from coterie.compute.onnx.providers import ProviderClass
from coterie.compute.runtime.devices import Provider, Runner
from coterie.compute.runtime.executable import Executable

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
