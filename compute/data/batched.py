"""Batches of a data set: how many passes, who makes them, how far ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from coterie.compute.data.batch_plan import BatchPlan
from coterie.compute.data.batching import Batch
from coterie.compute.data.checks import check_name, check_whole
from coterie.compute.data.mapping import emptied
from coterie.compute.data.profiling import DataProfile, profile
from coterie.compute.data.stream import BatchStream
from coterie.compute.data.sync import SyncPoint
from coterie.compute.data.workers import Crew
from coterie.errors import ArgumentTypeError, ArgumentValueError


@dataclass(frozen=True, kw_only=True)
class Batched(BatchPlan):
    """What :meth:`Dataset.batch` gives. Every method gives a new one; iterating begins a stream of its batches.

    Guarantees: equal pipelines give equal batches, bit for bit, whoever makes them and however far ahead.
    """

    def epochs(self, count: int | None) -> Batched:
        """So many passes over the rows, each in an order of its own; None for no end. No batch has rows of two passes.

        Raises ArgumentValueError for a count below one.
        """
        if count is not None:
            check_whole("epochs", count=count)
        return replace(self, passes=count)

    def workers(self, count: int, crew: Crew = "threads") -> Batched:
        """Let so many threads, or processes, load and map rows; 0: whoever asks for a batch does.

        Threads suit work that waits for files or runs outside of Python (decoding images, NumPy on large arrays);
        processes suit work in Python. Processes are started anew, so functions must be found by import, and a script
        needs ``if __name__ == "__main__":``. Raises ArgumentValueError.
        """
        check_whole("workers", 0, count=count)
        if crew not in ("threads", "processes"):
            raise ArgumentValueError(f"workers: it must be 'threads' or 'processes', got {crew!r}.")
        return replace(self, count=count, crew=crew)

    def prefetch(self, batches: int) -> Batched:
        """Have so many batches made ahead of the consumer, by one thread if there are no workers.

        Raises ArgumentValueError for less than one.
        """
        check_whole("prefetch", batches=batches)
        return replace(self, ahead=batches, count=max(1, self.count))

    def sync_wait(self, name: str, *, every: int, initial: Any) -> Batched:
        """A sync point: after every ``every`` batches the stream waits for ``stream.sync_update(name, value)``.

        Operations read the value as ``context.signals[name]``; until the first update it is ``initial``. No row is made
        before the value that it is to see is known. So a curriculum can follow what the training shows. Values should
        be JSON values, for they are part of the stream's state. Raises ArgumentValueError.
        """
        check_name("sync_wait", name)
        check_whole("sync_wait", every=every)
        if any(point.name == name for point in self.points):
            raise ArgumentValueError(f"sync_wait: there is a sync point {name!r} already.")
        return replace(self, points=(*self.points, SyncPoint(name, every, initial)))

    def stream(self) -> BatchStream:
        """A stream from the first batch on, which can tell its state and be restored."""
        return BatchStream(self)

    def __iter__(self) -> Iterator[Batch]:
        """The batches of a stream that is closed as soon as nobody iterates any more."""
        with self.stream() as stream:
            yield from stream

    def dict_iterator(self) -> BatchStream:
        """The stream, each batch made when it is asked for, by the caller."""
        return replace(self, count=0, ahead=0).stream()

    def device_queue(self, depth: int = 2) -> BatchStream:
        """The same stream, at least ``depth`` batches of it ready or being made while a device works."""
        return self.prefetch(max(depth, self.ahead)).stream()

    def first(self) -> Batch:
        """The first batch, made by the caller. Raises DataError where there is none."""
        found = next(self.dict_iterator(), None)
        if found is None:
            raise emptied(self.stage, f"There is no batch: no row is left of {self.stage.describe()}.")
        return found

    def profile(self, consume: Callable[[Batch], Any], batches: int = 50) -> DataProfile:
        """What holds up a training whose step is ``consume(batch)``: loading, mapping or itself, with the rates of all
        three. Goes over so many batches, pass after pass, with the workers as they are set.
        """
        check_whole("profile", batches=batches)
        return profile(self, consume, batches)

    def __len__(self) -> int:
        """Batches of all passes. Raises ArgumentTypeError where that is not known beforehand."""
        if self.per_epoch is None or self.passes is None:
            raise ArgumentTypeError("The number of batches is not known before they are made.")
        return self.per_epoch * self.passes
