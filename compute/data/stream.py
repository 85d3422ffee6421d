"""Batches in order, made ahead by workers, from any step on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np

from coterie.compute.data.batch_plan import BatchPlan
from coterie.compute.data.batching import Batch
from coterie.compute.data.mapping import emptied, located
from coterie.compute.data.pending import Pending
from coterie.compute.data.processes import Processes
from coterie.compute.data.remaining import PATIENCE, nothing_left
from coterie.compute.data.stage import Address, Kind, Memory, Spent
from coterie.compute.data.sync import Signals
from coterie.compute.data.workers import Alone, Made, Making, Piece, Threads, Workers
from coterie.errors import DataError, InputError


@dataclass(frozen=True)
class Cursor:
    """Where a stream stands. epoch, position: the pass, and the first of its rows that no batch has had; batch: batches
    of that pass; step: of all passes.
    """

    epoch: int = 0
    position: int = 0
    batch: int = 0
    step: int = 0


@dataclass(frozen=True)
class _Begun:
    """The rows [start, stop) of a pass, which are being made; ``made`` waits for them."""

    epoch: int
    start: int
    stop: int
    made: Callable[[], Made]


class BatchStream:
    """An iterator over the batches of a plan, which workers make ahead of the consumer.

    Guarantees: the same batches, bit for bit, whatever the number and speed of the workers, and after ``restore`` of a
    ``state`` that another stream of the same pipeline gave, in this process or another. What a step raises is raised
    where its batch would have come; the stream has ended then, as it has after the last batch. ``close`` ends its
    workers, as does leaving a ``with`` block. One thread at a time may use a stream.
    """

    def __init__(self, batched: BatchPlan) -> None:
        self._batched = batched
        self._pipeline = batched.describe()
        self._cursor = Cursor()
        self._signals = Signals.first(batched.points)
        self._made = 0
        self._spent: dict[Kind, Spent] = {"load": Spent(), "map": Spent()}
        self._memory = Memory()
        # Made when the first batch is asked for, so that a stream that is only asked for its state starts nothing.
        self._workers: Workers | None = None
        self._running: Generator[tuple[Batch, Cursor]] | None = None
        self._closed = False

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._closed:
            raise StopIteration
        try:
            if due := self._signals.due(self._cursor.step):
                self._signals = self._signals.passed(due, self._cursor.step)
                self._stop_running()
            if self._running is None:
                self._running = self._run()
            batch, self._cursor = next(self._running)
        except BaseException as error:
            self.close()
            if isinstance(error, DataError):
                located(error, self._batched.stage)
            raise
        return batch

    def state(self) -> dict[str, Any]:
        """The position behind the last batch, as JSON values (if those of the sync points are)."""
        cursor, signals = self._cursor, self._signals
        return {
            "epoch": cursor.epoch,
            "position": cursor.position,
            "batch": cursor.batch,
            "step": cursor.step,
            "signals": dict(signals.values),
            "updates": dict(signals.updates),
            "pipeline": self._pipeline,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state. Raises InputError for the state of another pipeline, or for none."""
        here = self.state()
        if not isinstance(cast(object, state), Mapping) or state.keys() != here.keys():
            raise _no_state()
        if state["pipeline"] != here["pipeline"]:
            raise InputError(
                f"The state is of another pipeline: {state['pipeline']}; this one is {here['pipeline']}.",
                hint="Build the same pipeline, over the same data, or start from the beginning.",
            )
        numbers = [state[name] for name in ("epoch", "position", "batch", "step")]
        length, points = self._batched.stage.length, self._signals.values.keys()
        whole = all(type(number) is int and number >= 0 for number in numbers)
        if not whole or (length is not None and numbers[1] > length):
            raise InputError(f"{numbers} is no position of a stream of batches.")
        if not all(isinstance(state[name], Mapping) for name in ("signals", "updates")):
            raise _no_state()
        values, updates = dict(state["signals"]), dict(state["updates"])
        if values.keys() != points or not updates.keys() <= points:
            raise InputError("The state has the values of other sync points.", hint="Give what state() returned.")
        self._stop_running()
        self._cursor = Cursor(*numbers)
        self._signals = replace(self._signals, values=values, updates=updates)

    def sync_update(self, name: str, value: Any) -> None:
        """Give the value that a sync point takes the next time that it is due. Raises ArgumentValueError for a name
        that there is not.
        """
        self._signals = self._signals.updated(name, value)

    @property
    def spent(self) -> tuple[Mapping[Kind, Spent], int]:
        """What the workers' time went into, and for how many rows, as far as their work has been taken over."""
        return self._spent, self._made

    def close(self) -> None:
        """End the workers, after the rows that they are at. The stream has no more batches, and keeps its state."""
        self._closed = True
        self._stop_running()
        if self._workers is not None:
            self._workers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stop_running(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None

    def _run(self) -> Generator[tuple[Batch, Cursor]]:
        """Batches from the cursor on, each with the cursor behind it."""
        batching, length = self._batched.batching, self._batched.stage.length
        cursor, pending, barren = self._cursor, Pending(), 0
        for piece in self._collected(pending):
            made = piece.made()
            self._made += piece.stop - piece.start
            for kind, spent in made.spent.items():
                self._spent[kind].add(spent)
            if piece.epoch != cursor.epoch:
                cursor = Cursor(epoch=piece.epoch, step=cursor.step)
            barren += max(1, piece.stop - piece.start)
            if made.batch is not None:
                barren, cursor = 0, self._behind(cursor, piece.stop - 1)
                yield made.batch, cursor
                continue
            pending.add(made.block, np.arange(piece.start, piece.stop))
            last = piece.stop == length
            while pending.count >= batching.size or (last and pending.count and not batching.drop_remainder):
                rows, row = pending.take(min(batching.size, pending.count))
                batch = batching.batch(rows, cursor.epoch, cursor.batch, self._signals.values)
                barren, cursor = 0, self._behind(cursor, row)
                yield batch, cursor
            if last:
                pending.clear()
            self._require_rows(barren)
        if self._batched.passes is not None:
            self._cursor = Cursor(epoch=self._batched.passes, step=cursor.step)

    def _behind(self, cursor: Cursor, row: int) -> Cursor:
        """The cursor behind a batch whose last row has this position: in the next pass where no other batch can be."""
        length, batching = self._batched.stage.length, self._batched.batching
        least = batching.size if batching.drop_remainder else 1
        if length is not None and length - (row + 1) < least:
            return Cursor(epoch=cursor.epoch + 1, step=cursor.step + 1)
        return Cursor(cursor.epoch, row + 1, cursor.batch + 1, cursor.step + 1)

    def _require_rows(self, barren: int) -> None:
        length = self._batched.stage.length
        if length is not None and self._batched.passes is not None:
            return
        if barren <= (PATIENCE if length is None else max(2 * length, 1_000)):
            return
        if self._batched.stage.sparse:
            raise nothing_left(self._batched.stage)
        raise emptied(
            self._batched.stage,
            f"No row is left: a pass over {self._batched.stage.describe()} has {length}, of which no batch of "
            f"{self._batched.size} is made.",
        )

    def _collected(self, pending: Pending) -> Iterator[_Begun]:
        """Pieces in order; others are begun while one is used."""
        batched, queue, waiting = self._batched, deque[_Begun](), 0
        epoch, start, length = self._cursor.epoch, self._cursor.position, self._batched.stage.length
        while True:
            while len(queue) <= batched.pieces_ahead and (batched.passes is None or epoch < batched.passes):
                # A sync point holds back the rows behind it. Where a filter leaves fewer rows than there were
                # positions, more are begun when those are used up.
                room, held = self._signals.room(self._cursor.step), pending.count + waiting
                span = batched.piece if room is None else min(batched.piece, room * batched.batching.size - held)
                if span <= 0:
                    break
                stop = start + span if length is None else min(start + span, length)
                queue.append(_Begun(epoch, start, stop, self._begun(epoch, start, stop)))
                waiting += stop - start
                epoch, start = (epoch + 1, 0) if stop == length else (epoch, stop)
            if not queue:
                return
            piece = queue.popleft()
            waiting -= piece.stop - piece.start
            yield piece

    def _begun(self, epoch: int, start: int, stop: int) -> Callable[[], Made]:
        batched, size = self._batched, self._batched.batching.size
        if self._workers is None:
            self._workers = _workers(batched)
        full = stop - start == size or (stop == batched.stage.length and not batched.batching.drop_remainder)
        whole = not batched.stage.sparse and start % size == 0 and stop - start <= size and full and stop > start
        located = batched.stage.locate(Address.span(epoch, start, stop), self._memory)
        return self._workers.submit(Piece(located, self._signals.values, (epoch, start // size) if whole else None))


def _workers(batched: BatchPlan) -> Workers:
    making = Making(batched.stage, batched.batching)
    if not batched.count:
        return Alone(making)
    if batched.crew == "threads":
        return Threads(making, batched.count, batched.pieces_ahead + 1)
    return Processes(making, batched.count, batched.pieces_ahead + 1)


def _no_state() -> InputError:
    return InputError("This is no state of a stream of batches.", hint="Give what state() returned.")
