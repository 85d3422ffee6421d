"""Who makes rows: the caller, threads, or processes that are started anew."""

from __future__ import annotations

import multiprocessing
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any, Literal

from coterie.compute.data.batching import Batch, Batching
from coterie.compute.data.block import Block
from coterie.compute.data.stage import Job, Kind, Located, Spent, Stage
from coterie.errors import ArgumentValueError, DataError

Crew = Literal["threads", "processes"]


@dataclass(frozen=True)
class Piece:
    """Rows to make. whole: (pass, number of the batch) where they are exactly one batch, which is then finished too."""

    located: Located
    signals: Mapping[str, Any] = field(default_factory=dict[str, Any])
    whole: tuple[int, int] | None = None


@dataclass(frozen=True)
class Made:
    """What was made of a piece: its rows, as columns, or its batch; and how long it took."""

    block: Block
    batch: Batch | None
    spent: Mapping[Kind, Spent]


@dataclass(frozen=True)
class Making:
    """All that a worker has to know: the pipeline and its batches. Sent once to every process."""

    stage: Stage
    batching: Batching

    def __call__(self, piece: Piece) -> Made:
        job = Job(piece.signals)
        block = self.stage.make(piece.located, job)
        with job.timed("map"):
            # Stacking rows is work, too: it belongs here and not to whoever waits for the batch.
            rows = Block(columns=block.as_columns(), index=block.index)
            if piece.whole is None:
                return Made(rows, None, job.spent)
            batch = self.batching.batch(rows.as_columns(), *piece.whole, piece.signals)
        return Made(Block(columns={}), batch, job.spent)


class Workers(ABC):
    """Pieces are handed in in order; what was made of each can be waited for."""

    @abstractmethod
    def submit(self, piece: Piece) -> Callable[[], Made]:
        """Begin a piece. The function that it returns waits for the result, and raises what the work raised."""

    @abstractmethod
    def close(self) -> None:
        """Forget what is not begun, and wait for the rest."""


class Alone(Workers):
    """The caller makes each piece when it wants it."""

    def __init__(self, making: Making) -> None:
        self._making = making

    def submit(self, piece: Piece) -> Callable[[], Made]:
        return lambda: self._making(piece)

    def close(self) -> None:
        pass


class Pool(Workers):
    """``count`` threads, or processes started by ``spawn``. Processes end with their parent, however it ends.

    Raises ArgumentValueError for a pipeline that cannot be sent to a process.
    """

    def __init__(self, making: Making, count: int, crew: Crew) -> None:
        self._crew = crew
        if crew == "threads":
            self._pool: Executor = ThreadPoolExecutor(count, "coterie-data")
            self._make: Callable[[Piece], Made] = making
        else:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(count, context, _begin, (making,))
            self._make = _make_in_process
        self._end = weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)

    def submit(self, piece: Piece) -> Callable[[], Made]:
        try:
            future = self._pool.submit(self._make, piece)
        except BrokenProcessPool as error:
            raise _lost() from error
        except Exception as error:  # multiprocessing raises many kinds for what it cannot send
            raise ArgumentValueError(
                f"The pipeline cannot be sent to worker processes: {error}",
                hint="Use functions of a module, not lambdas or functions inside functions; or workers(n, 'threads').",
            ) from error
        return lambda: self._result(future)

    def _result(self, future: Future[Made]) -> Made:
        try:
            return future.result()
        except BrokenProcessPool as error:
            raise _lost() from error

    def close(self) -> None:
        if self._end.detach() is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def workers(making: Making, count: int, crew: Crew) -> Workers:
    """``count`` workers; the caller itself for 0."""
    return Pool(making, count, crew) if count else Alone(making)


# What a worker process was told when it began.
_making: Making | None = None


def _begin(making: Making) -> None:
    global _making
    _making = making
    # Its queue would keep a worker waiting for ever once the parent was killed.
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _make_in_process(piece: Piece) -> Made:
    if _making is None:
        raise _lost()
    return _making(piece)


def _lost() -> DataError:
    return DataError(
        "A worker process ended before its rows were made.",
        hint=(
            "It may have been killed for want of memory, or the script starts work outside of "
            "`if __name__ == '__main__':`, which a new process runs again. workers(n, 'threads') needs neither."
        ),
        code="data_worker_lost",
    )
