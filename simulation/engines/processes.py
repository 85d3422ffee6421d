"""Clients in worker processes: started anew, never forked, and sharing nothing but memory that is mapped by name.

A worker is a plain ``python -m`` (so a script needs no main guard), told of jobs by lines of JSON. Weights, rows and
updates lie in tensor files on a memory file system: written once, mapped by whoever reads them, folded into the
aggregate without another copy.
"""

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar, cast

from coterie.compute.data.streamed_rows import StreamedRows
from coterie.errors import RemoteError
from coterie.protocol.arrays import ArraysByName, FloatArrays
from coterie.protocol.conversion import to_json
from coterie.protocol.device import TaskKind
from coterie.simulation.assignment import Assignment
from coterie.simulation.engines import shared
from coterie.simulation.engines.engine import HELD, Setting
from coterie.simulation.engines.job import JsonObject, measured_of, perform, raise_reported, trained_of
from coterie.simulation.engines.naming import required_name, resolve_trainer
from coterie.simulation.population import CACHED, Client
from coterie.simulation.work import ClientEvaluation, Trained, Workplace

Result = TypeVar("Result")

PROGRAM = (sys.executable, "-m", "coterie.simulation.engines.worker")
"""What a worker process runs; its folder and its trainer's name follow."""

_ATTEMPTS = 2
_PATIENCE_S = 10.0


class Processes:
    """``workers`` processes. One that dies is replaced and its job done again, which gives the same bits.

    A client whose rows are a data set of this process works here, in a thread: rows that are made for each batch are
    no copy that could be sent.
    Raises ConfigurationError for a trainer that is a value of this process; RemoteError (``worker_lost``) when the same
    job ends two workers.
    """

    def __init__(self, setting: Setting) -> None:
        self._trainer = required_name(setting.trainer, setting.name)
        self._here = Workplace(setting.plan, setting.frozen, resolve_trainer(self._trainer))
        self._folder = shared.make_folder()
        self._rows = _SharedRows(self._folder)
        self._weights: deque[str] = deque()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(setting.workers, "coterie-simulation")
        self._closed = False
        self._running: list[_Worker] = []
        self._end = weakref.finalize(self, _clear, self._running, self._folder)
        try:
            setting.plan.save(self._folder / "plan")
            if setting.frozen:
                shared.write(self._folder / "frozen", setting.frozen)
            self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
            started = [self._start() for _ in range(setting.workers)]
            for worker in started:
                worker.await_ready()
                self._idle.put(worker)
        except BaseException:
            self.close()
            raise
        # One for each worker to write, one for each to wait in turn, and those that are being read.
        self._waiting = setting.workers
        self._slots: queue.SimpleQueue[str] = queue.SimpleQueue()
        for number in range(2 * setting.workers + HELD + 1):
            self._slots.put(f"out-{number}")

    def train(self, clients: Sequence[Client], weights: FloatArrays, assignment: Assignment) -> Iterator[Trained]:
        """See `Engine`."""
        return self._each("train", clients, weights, assignment, trained_of)

    def evaluate(
        self, clients: Sequence[Client], weights: FloatArrays, assignment: Assignment
    ) -> Iterator[ClientEvaluation]:
        """See `Engine`."""
        return self._each("evaluate", clients, weights, assignment, measured_of)

    def close(self) -> None:
        """End the workers and clear the shared memory away. Workers that are still at work are given some seconds."""
        with self._lock:
            self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._end()
        self._pool.shutdown()

    def _each(
        self,
        kind: TaskKind,
        clients: Sequence[Client],
        weights: FloatArrays,
        assignment: Assignment,
        read: Callable[[JsonObject, ArraysByName], Result],
    ) -> Iterator[Result]:
        name = self._share_weights(weights, assignment.base)
        waiting: deque[Future[tuple[JsonObject, str]]] = deque()
        taken: deque[str] = deque()

        def next_result() -> Result:
            answer, slot = waiting.popleft().result()
            taken.append(slot)
            if len(taken) > HELD:
                self._slots.put(taken.popleft())
            raise_reported(answer)
            return read(answer, shared.read(self._folder / slot))

        try:
            for client in clients:
                waiting.append(self._pool.submit(self._job, kind, client, name, assignment))
                if len(waiting) > self._waiting:
                    yield next_result()
            while waiting:
                yield next_result()
        finally:
            for future in waiting:
                if not future.cancel():
                    future.add_done_callback(self._give_back)
            for slot in taken:
                self._slots.put(slot)

    def _give_back(self, future: "Future[tuple[JsonObject, str]]") -> None:
        """The slot of an answer that nobody takes any more."""
        if not future.cancelled() and future.exception() is None:
            self._slots.put(future.result()[1])

    def _job(self, kind: TaskKind, client: Client, weights: str, assignment: Assignment) -> tuple[JsonObject, str]:
        slot = self._slots.get()
        try:
            rows = None if client.source else self._rows.share(client, kind)
            if isinstance(rows, StreamedRows):
                held = shared.read(self._folder / weights)
                answer, tensors = perform(self._here, kind, client.number, rows, client.state, held, assignment)
                shared.write(self._folder / slot, tensors)
                return answer, slot
            state = f"state-{slot}" if client.state else None
            if state is not None:
                shared.write(self._folder / state, client.state)
            job: JsonObject = {
                "kind": kind,
                "number": client.number,
                "rows": rows,
                "source": client.source,
                "state": state,
                "weights": weights,
                "assignment": to_json(assignment),
                "out": slot,
            }
            return self._ask_worker(job), slot
        except BaseException:
            self._slots.put(slot)
            raise

    def _ask_worker(self, job: JsonObject) -> JsonObject:
        """A worker's answer. A job that is lost with its worker is asked of another one."""
        for _ in range(_ATTEMPTS):
            worker = self._idle.get()
            try:
                return worker.ask(job)
            except (OSError, ValueError):
                if self._closed:
                    break
                worker = self._replacement(worker)
            finally:
                # Where no other can be started the one that ended stays, so nobody waits for a worker that never comes.
                self._idle.put(worker)
        raise RemoteError(
            f"{_ATTEMPTS} worker processes in a row ended while client {job['number']} was at work.",
            hint="Their last output is on standard error. Often memory ran out: use fewer workers.",
            code="worker_lost",
        )

    def _replacement(self, ended: "_Worker") -> "_Worker":
        ended.end(time.monotonic() + _PATIENCE_S)
        with self._lock:
            self._running.remove(ended)
        started = self._start()
        started.await_ready()
        return started

    def _start(self) -> "_Worker":
        # Under the lock, so that no worker is started that closing does not see.
        with self._lock:
            if self._closed:
                raise RemoteError("The worker processes are being ended.", code="worker_lost")
            worker = _Worker.start(self._folder, self._trainer)
            self._running.append(worker)
        return worker

    def _share_weights(self, weights: FloatArrays, base: str) -> str:
        name = f"weights-{base}"
        if name not in self._weights:
            shared.write(self._folder / name, weights)
            self._weights.append(name)
            while len(self._weights) > 2:
                (self._folder / self._weights.popleft()).unlink()
        return name


@dataclass(frozen=True)
class _Worker:
    """A process and the two ends of its pipes."""

    process: "subprocess.Popen[str]"

    @staticmethod
    def start(folder: Path, trainer: str) -> "_Worker":
        """A fresh interpreter that finds the modules which this one finds."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
        # A session of its own: Ctrl-C is for the process that asked, which ends its workers in order.
        process = subprocess.Popen(
            [*PROGRAM, str(folder), trainer],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            encoding="utf-8",
            start_new_session=True,
        )
        return _Worker(process)

    def await_ready(self) -> None:
        """Wait until it can work. Raises what it says instead; RemoteError (``worker_lost``) if nothing."""
        try:
            raise_reported(self._read())
        except ValueError as error:
            raise RemoteError(
                "A worker process ended before it could work.",
                hint="Its last output is on standard error.",
                code="worker_lost",
            ) from error

    def ask(self, job: JsonObject) -> JsonObject:
        """The answer to a job. Raises OSError or ValueError when the process is gone."""
        pipe = cast(IO[str], self.process.stdin)
        pipe.write(json.dumps(job) + "\n")
        pipe.flush()
        return self._read()

    def _read(self) -> JsonObject:
        return json.loads(cast(IO[str], self.process.stdout).readline())

    def let_end(self) -> None:
        """Tell it that nothing more will come."""
        with suppress(OSError, ValueError):
            pipe = cast(IO[str], self.process.stdin)
            pipe.write('{"kind": "end"}\n')
            pipe.close()

    def end(self, until: float) -> None:
        """Let it finish by this moment of the monotonic clock, and end it if it does not."""
        self.let_end()
        try:
            self.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        cast(IO[str], self.process.stdout).close()


class _SharedRows:
    """Rows in shared memory, those used last, up to a bound."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, int] = OrderedDict()

    def share(self, client: Client, kind: TaskKind) -> str | StreamedRows:
        """The file with a client's rows, which outlives the job that it is for: more than a worker's number are kept.
        Rows that are made for each batch as they are: nothing of them is shared.
        """
        name = f"rows-{kind}-{client.number}"
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
                return name
        rows = client.rows(kind)
        if isinstance(rows, StreamedRows):
            return rows
        shared.write(self._folder / name, rows)
        with self._lock:
            self._kept[name] = sum(array.nbytes for array in rows.values())
            while sum(self._kept.values()) > CACHED and len(self._kept) > 64:
                (self._folder / self._kept.popitem(last=False)[0]).unlink()
        return name


def _clear(running: Sequence[_Worker], folder: Path) -> None:
    workers, until = tuple(running), time.monotonic() + _PATIENCE_S
    for worker in workers:
        worker.let_end()
    for worker in workers:
        worker.end(until)
    shutil.rmtree(folder, ignore_errors=True)
