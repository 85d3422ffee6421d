"""Providers of packages that are made up: right, wrong, slow, and such that fail in their n-th run."""

import time
from collections.abc import Callable, Mapping
from itertools import count

from coterie.compute.ir import NDArray
from coterie.compute.runtime.devices import Provider, Runner
from coterie.compute.runtime.executable import Executable

Change = Callable[[Mapping[str, NDArray]], Mapping[str, NDArray]]


def made(name: str, change: Change = lambda results: results, *, driver: str = "1", sleep: float = 0.0) -> Provider:
    """A provider that computes on the CPU and then changes the results."""

    def load(data: bytes) -> Runner:
        run = Executable(data).run

        def changed(feeds: Mapping[str, NDArray]) -> Mapping[str, NDArray]:
            time.sleep(sleep)
            return change(run(feeds))

        return changed

    return Provider(name, "1.0", load, driver)


def failing(name: str, at: int) -> Provider:
    """A provider that is right until a run of its own, the number ``at`` from 0, and fails from then on."""
    runs = count()

    def fail(results: Mapping[str, NDArray]) -> Mapping[str, NDArray]:
        if next(runs) >= at:
            raise OSError("the device is lost")
        return results

    return made(name, fail)


def off(results: Mapping[str, NDArray]) -> Mapping[str, NDArray]:
    """Every number of a result one per cent too large."""
    return {name: value * value.dtype.type(1.01) for name, value in results.items()}
