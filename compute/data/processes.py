"""Worker processes, which leave what they make in shared memory."""

from __future__ import annotations

import multiprocessing
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import numpy as np

from coterie.compute.data.slots import NO_SLOT, Lender, Room, Slot, Slots, pack, unpack, unpack_copies
from coterie.compute.data.workers import Made, Making, Piece, Workers
from coterie.errors import ArgumentValueError, DataError

# Batches that a consumer may hold on to before it gets copies: the one that it works on, the next, and a few more.
_HELD = 4
# The largest size that glibc's allocator learns from (DEFAULT_MMAP_THRESHOLD_MAX, 32 MiB), less its own header.
_LARGEST = (32 << 20) - (64 << 10)


class Processes(Workers):
    """``count`` processes, started by ``spawn``, of which each ends with its parent, however that ends.

    ahead: how many pieces will be begun and not taken at a time. Arrays of a piece are views of shared memory, which is
    used again when the last of them is gone; who keeps many of them gets copies. Raises ArgumentValueError for a
    pipeline that cannot be sent to a process.
    """

    def __init__(self, making: Making, count: int, ahead: int) -> None:
        self._lender = Lender(ahead + _HELD)
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(count, context, _begin, (making, self._lender.slots))
        # Nobody else may have these slots while a process writes to them, even if nobody waits for the result.
        self._written: dict[Future[bytes], Slot] = {}
        self._end = weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)

    def submit(self, piece: Piece) -> Callable[[], Made]:
        slot = self._lender.lend()
        try:
            future = self._pool.submit(_make, piece, slot.number)
        except BrokenProcessPool as error:
            raise _lost() from error
        except Exception as error:  # multiprocessing raises many kinds for what it cannot send
            raise ArgumentValueError(
                f"The pipeline cannot be sent to worker processes: {error}",
                hint="Use functions of a module, not lambdas or functions inside functions; or workers(n, 'threads').",
            ) from error
        self._written[future] = slot
        future.add_done_callback(self._written.pop)
        return lambda: self._result(future, slot)

    def _result(self, future: Future[bytes], slot: Slot) -> Made:
        try:
            packed = future.result()
        except BrokenProcessPool as error:
            raise _lost() from error
        return (unpack if self._lender.free else unpack_copies)(packed, slot.bytes)

    def close(self) -> None:
        if self._end.detach() is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


# What a worker process was told when it began.
_told: tuple[Making, Slots | None] | None = None


def _begin(making: Making, slots: Slots | None) -> None:
    global _told
    _told = making, slots
    _keep_memory()
    # Its queue would keep a worker waiting for ever once the parent was killed.
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _keep_memory() -> None:
    """Let a row take the memory that the one before it had. glibc gives freed memory back to the system and asks for it
    again page by page, which takes a third of a worker's time, until it has seen a large array come and go.
    """
    np.empty(_LARGEST, np.uint8)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _make(piece: Piece, number: int | None) -> bytes:
    if _told is None:
        raise _lost()
    making, slots = _told
    room = Room(NO_SLOT.bytes if slots is None or number is None else slots.bytes(number))
    return pack(making(piece, room.empty), room)


def _lost() -> DataError:
    return DataError(
        "A worker process ended before its rows were made.",
        hint=(
            "It may have been killed for want of memory, or the script starts work outside of "
            "`if __name__ == '__main__':`, which a new process runs again. workers(n, 'threads') needs neither."
        ),
        code="data_worker_lost",
    )
