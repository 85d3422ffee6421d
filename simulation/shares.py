"""One piece of numeric work, shared among threads: NumPy releases the interpreter's lock while it computes."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class Shares:
    """So many threads, the caller's among them, but no more than there are cores."""

    def __init__(self, threads: int) -> None:
        self._threads = min(threads, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(self._threads - 1) if self._threads > 1 else None

    def each(self, work: Callable[[range], None], places: range) -> None:
        """Do the work at all places, of which every thread gets a share that lies together. Raises what the work does,
        when all of it has ended.
        """
        count = min(self._threads, len(places))
        if self._pool is None or count < 2:
            work(places)
            return
        cuts = [len(places) * share // count for share in range(count + 1)]
        first, *others = (places[low:high] for low, high in zip(cuts, cuts[1:], strict=False))
        running = [self._pool.submit(work, share) for share in others]
        try:
            work(first)
        finally:
            failed = [future.exception() for future in running]
        for error in filter(None, failed):
            raise error

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
