"""The threads of a run: clients work in them, and what becomes of their updates is computed in them. NumPy and ONNX
Runtime release the interpreter's lock while they compute.

There is one pool for both, so that no more threads compute than were asked for: they would take each other's cores and
caches.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass


@dataclass(frozen=True)
class PendingWork:
    """Work that threads are at, in parts."""

    parts: "Sequence[Future[None]]" = ()

    def wait(self) -> None:
        """Wait until all of it has ended. Raises what it raises."""
        failed = [part.exception() for part in self.parts]
        for error in filter(None, failed):
            raise error


class WorkShares:
    """So many threads, started when there is work for them. pool: None for a single one, which is the caller's."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.pool = ThreadPoolExecutor(threads, "coterie-simulation") if threads > 1 else None

    def begin(self, work: Callable[[range], None], places: range, threads: int) -> PendingWork:
        """Let so many threads, but no more than there are cores, do the work at all places, in shares that lie
        together, after what they have been given before. Without threads, and for a single place, it is done when this
        returns.
        """
        if self.pool is None or len(places) < 2:
            work(places)
            return PendingWork()
        count = min(threads, self.threads, os.cpu_count() or 1, len(places))
        cuts = [len(places) * share // count for share in range(count + 1)]
        shares = (places[low:high] for low, high in zip(cuts, cuts[1:], strict=False))
        return PendingWork([self.pool.submit(work, share) for share in shares])

    def close(self) -> None:
        """End the threads, after what they are at. Safe to call twice."""
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)
