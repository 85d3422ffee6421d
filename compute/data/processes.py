"""Worker processes, which leave what they make in shared memory."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any

import numpy as np

from coterie.compute.data.slots import HELD, NO_SLOT, Lender, Room, Slot, Slots, pack, unpack, unpack_copies
from coterie.compute.data.workers import Made, Making, Piece, Workers
from coterie.errors import ArgumentValueError, CoterieError, DataError

# The largest size that glibc's allocator learns from (DEFAULT_MMAP_THRESHOLD_MAX, 32 MiB), less its own header.
_LARGEST = (32 << 20) - (64 << 10)


class Processes(Workers):
    """``count`` processes, started by ``spawn``, of which each ends with its parent, however that ends.

    ahead: how many pieces will be begun and not taken at a time. A piece goes to the process that has the fewest to
    make, so that a core with other things to do holds up nobody but itself. Arrays of a piece are views of shared
    memory, which is used again when the last of them is gone; who keeps many of them gets copies.
    Raises ArgumentValueError for a pipeline that cannot be sent to a process.
    """

    def __init__(self, making: Making, count: int, ahead: int) -> None:
        self._lender = Lender(ahead + HELD)
        try:
            self._workers = [_Worker(making, self._lender.slots) for _ in range(count)]
        except Exception as error:  # multiprocessing raises many kinds for what it cannot send
            raise _unsent(error) from error

    def submit(self, piece: Piece) -> Callable[[], Made]:
        self._take_answers()
        worker = min(self._workers, key=_Worker.load)
        asked = worker.ask(piece, self._lender.lend())
        return lambda: self._result(worker.answer(asked), asked.slot)

    def _take_answers(self) -> None:
        """Those that are here, so that it is known who has the fewest pieces to make."""
        while there := wait([worker.connection for worker in self._workers if worker.load()], 0):
            for worker in self._workers:
                if worker.connection in there:
                    worker.take_answer()

    def _result(self, answer: Made | _Raised, slot: Slot) -> Made:
        if isinstance(answer, _Raised):
            if answer.trace:
                answer.error.add_note(answer.trace)
            raise answer.error
        unpacked = unpack if self._lender.free else unpack_copies
        return _mapped(answer, lambda columns: unpacked(columns, slot.bytes))

    def close(self) -> None:
        for worker in self._workers:
            worker.tell_to_end()
        for worker in self._workers:
            worker.wait_for_end()


@dataclass(eq=False, slots=True)
class _Asked:
    """A piece that a process was given. slot: nobody else may have it before the answer is here."""

    slot: Slot
    answer: Made | _Raised | None = None


class _Worker:
    """One process as its parent sees it. It answers in order, and ends when nobody can ask any more."""

    def __init__(self, making: Making, slots: Slots | None) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, making, slots), daemon=True)
        self._asked: deque[_Asked] = deque()
        with theirs:
            self._process.start()

    def ask(self, piece: Piece, slot: Slot) -> _Asked:
        """Give a piece to the process. Raises ArgumentValueError for one that cannot be sent."""
        try:
            self.connection.send((piece, slot.number))
        except OSError as error:
            raise _lost() from error
        except Exception as error:  # whatever the values of sync points raise
            raise _unsent(error) from error
        self._asked.append(_Asked(slot))
        return self._asked[-1]

    def load(self) -> int:
        """Pieces that it was given and has not answered, as far as answers have been taken."""
        return len(self._asked)

    def answer(self, asked: _Asked) -> Made | _Raised:
        """Wait for the answer."""
        while asked.answer is None:
            self.take_answer()
        return asked.answer

    def take_answer(self) -> None:
        """Wait for the next answer. Where the process has ended, that is the answer to all that it was asked."""
        try:
            answer: Made | _Raised = self.connection.recv()
        except (EOFError, OSError):
            while self._asked:
                self._asked.popleft().answer = _Raised(_lost(), "")
        else:
            self._asked.popleft().answer = answer

    def tell_to_end(self) -> None:
        """Let it finish the piece that it is at, and no other."""
        try:
            self.connection.send(None)
        except OSError:  # it has ended already
            pass

    def wait_for_end(self) -> None:
        """Until the process is gone. It may want to be rid of an answer first."""
        try:
            while True:
                self.connection.recv_bytes()
        except (EOFError, OSError):
            self._process.join()
            self.connection.close()


@dataclass(frozen=True)
class _Raised:
    """What the work raised, and where, if that is known."""

    error: Exception
    trace: str

    @staticmethod
    def of(error: Exception) -> _Raised:
        """Of what is being raised: itself if it can be sent for certain, else in words."""
        known = isinstance(error, CoterieError) or type(error).__module__ == "builtins"
        told = error if known else DataError(f"{type(error).__name__}: {error}", code="data_step")
        return _Raised(told, traceback.format_exc())


def _mapped(made: Made, change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Made:
    block = replace(made.block, columns=change(made.block.columns or {}))
    return replace(made, block=block, batch=None if made.batch is None else change(made.batch))


def _work(connection: Connection, making: Making, slots: Slots | None) -> None:
    """What a process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent hears it, too, and decides
    _let_others_begin()
    _keep_memory()
    asked: SimpleQueue[tuple[Piece, int | None] | None] = SimpleQueue()
    threading.Thread(target=_listen, args=(connection, asked), daemon=True).start()
    while message := asked.get():
        piece, number = message
        room = Room(NO_SLOT.bytes if slots is None or number is None else slots.bytes(number))
        try:
            made = making(piece, room.empty)
            connection.send(_mapped(made, lambda columns, room=room: pack(columns, room)))
        except Exception as error:  # the parent raises it
            connection.send(_Raised.of(error))


def _listen(connection: Connection, asked: SimpleQueue[tuple[Piece, int | None] | None]) -> None:
    """Take what comes at once, so that a parent never waits for a busy process; and see the parent's end."""
    try:
        while message := connection.recv():
            asked.put(message)
        while not asked.empty():
            asked.get()
        asked.put(None)
        connection.recv()
    except (EOFError, OSError):
        os._exit(1)


def _let_others_begin() -> None:
    """Take no core from the parent, which gives this process its next piece and so wakes it: it would wait for some
    milliseconds to go on. The share of the processor stays that of any process.
    """
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # where a container forbids it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _keep_memory() -> None:
    """Let a row take the memory that the one before it had. glibc gives freed memory back to the system and asks for it
    again page by page, which takes a third of a worker's time, until it has seen a large array come and go.
    """
    np.empty(_LARGEST, np.uint8)


def _unsent(error: Exception) -> ArgumentValueError:
    return ArgumentValueError(
        f"The pipeline cannot be sent to worker processes: {error}",
        hint="Use functions of a module, not lambdas or functions inside functions; or workers(n, 'threads').",
    )


def _lost() -> DataError:
    return DataError(
        "A worker process ended before its rows were made.",
        hint=(
            "It may have been killed for want of memory, or the script starts work outside of "
            "`if __name__ == '__main__':`, which a new process runs again. workers(n, 'threads') needs neither."
        ),
        code="data_worker_lost",
    )
