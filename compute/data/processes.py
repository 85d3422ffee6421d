"""Worker processes, which leave what they make in shared memory."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue

import numpy as np

from coterie.compute.data.slots import HELD, NO_SLOT, Lender, Room, Slot, Slots, pack, unpack, unpack_copies
from coterie.compute.data.workers import Made, Making, Piece, Workers
from coterie.errors import ArgumentValueError, DataError

# The largest size that glibc's allocator learns from (DEFAULT_MMAP_THRESHOLD_MAX, 32 MiB), less its own header.
_LARGEST = (32 << 20) - (64 << 10)
_END = b""


class Processes(Workers):
    """``count`` processes, started by ``spawn``, of which each ends with its parent, however that ends.

    ahead: how many pieces will be begun and not taken at a time. Pieces go to the processes in turn. Arrays of a piece
    are views of shared memory, which is used again when the last of them is gone; who keeps many of them gets copies.
    Raises ArgumentValueError for a pipeline that cannot be sent to a process.
    """

    def __init__(self, making: Making, count: int, ahead: int) -> None:
        self._lender = Lender(ahead + HELD)
        self._turn = 0
        try:
            self._workers = [_Worker(making, self._lender.slots) for _ in range(count)]
        except Exception as error:  # multiprocessing raises many kinds for what it cannot send
            raise _unsent(error) from error

    def submit(self, piece: Piece) -> Callable[[], Made]:
        worker = self._workers[self._turn]
        self._turn = (self._turn + 1) % len(self._workers)
        asked = worker.ask(piece, self._lender.lend())
        return lambda: self._result(worker.answer(asked), asked.slot)

    def _result(self, answer: bytes, slot: Slot) -> Made:
        made: Made | _Raised = (unpack if self._lender.free else unpack_copies)(answer, slot.bytes)
        if isinstance(made, _Raised):
            made.error.add_note(made.trace)
            raise made.error
        return made

    def close(self) -> None:
        for worker in self._workers:
            worker.tell_to_end()
        for worker in self._workers:
            worker.wait_for_end()


@dataclass(eq=False, slots=True)
class _Asked:
    """A piece that a process was given. slot: nobody else may have it before the answer is here."""

    slot: Slot
    answer: bytes | None = None


class _Worker:
    """One process as its parent sees it. It answers in order, and ends when nobody can ask any more."""

    def __init__(self, making: Making, slots: Slots | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, making, slots), daemon=True)
        self._asked: deque[_Asked] = deque()
        with theirs:
            self._process.start()

    def ask(self, piece: Piece, slot: Slot) -> _Asked:
        """Give a piece to the process. Raises ArgumentValueError for one that cannot be sent."""
        try:
            message = pickle.dumps((piece, slot.number))
        except Exception as error:  # whatever the values of sync points raise
            raise _unsent(error) from error
        try:
            self._connection.send_bytes(message)
        except OSError as error:
            raise _lost() from error
        self._asked.append(_Asked(slot))
        return self._asked[-1]

    def answer(self, asked: _Asked) -> bytes:
        """Wait for the answer. Raises DataError where the process has ended."""
        while asked.answer is None:
            try:
                self._asked[0].answer = self._connection.recv_bytes()
            except (EOFError, OSError) as error:
                raise _lost() from error
            self._asked.popleft()
        return asked.answer

    def tell_to_end(self) -> None:
        """Let it finish the piece that it is at, and no other."""
        try:
            self._connection.send_bytes(_END)
        except OSError:  # it has ended already
            pass

    def wait_for_end(self) -> None:
        """Until the process is gone. It may want to be rid of an answer first."""
        try:
            while True:
                self._connection.recv_bytes()
        except (EOFError, OSError):
            self._process.join()
            self._connection.close()


@dataclass(frozen=True)
class _Raised:
    """What the work raised, and where."""

    error: Exception
    trace: str

    @staticmethod
    def of(error: Exception) -> _Raised:
        """Of what is being raised; in words, if it cannot be sent."""
        trace = traceback.format_exc()
        try:
            return pickle.loads(pickle.dumps(_Raised(error, trace)))
        except Exception:  # an exception's own code may do anything
            return _Raised(DataError(f"{type(error).__name__}: {error}", code="data_step"), trace)


def _work(connection: Connection, making: Making, slots: Slots | None) -> None:
    """What a process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent hears it, too, and decides
    _keep_memory()
    asked: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(connection, asked), daemon=True).start()
    while message := asked.get():
        piece, number = pickle.loads(message)
        room = Room(NO_SLOT.bytes if slots is None or number is None else slots.bytes(number))
        try:
            answer = pack(making(piece, room.empty), room)
        except Exception as error:  # the parent raises it
            answer = pack(_Raised.of(error), room)
        connection.send_bytes(answer)


def _listen(connection: Connection, asked: SimpleQueue[bytes]) -> None:
    """Take what comes at once, so that a parent never waits for a busy process; and see the parent's end."""
    try:
        while message := connection.recv_bytes():
            asked.put(message)
        while not asked.empty():
            asked.get()
        asked.put(_END)
        connection.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


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
