"""Starts programs fast: one process imports what they need, and every program is a fork of it.

To start `coterie` costs one to two seconds of processor time, nearly all of it imports, and the tests start it, and
scripts that run parts of it, hundreds of times. A program that is started here is a process of its own all the same:
its arguments, folder, environment, streams and signals are its own. Elsewhere than on Linux a new Python is started.

Worker processes are forks too, of coordinators that are started here, and of those and of simulations in a test's own
process that get `worker_program`: a small script that has a fork made, lends it its streams, and ends with it.
"""

import atexit
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final

SIMULATION: Final = "coterie.simulation.engines.worker"
IMPORTED: Final = (
    *("coterie.cli.main", "coterie.server.serve", "coterie.simulation", "coterie.client_sdk.device.agent"),
    *("coterie.server.worker.rounds", "coterie.server.worker.secure", "coterie.server.worker.delta"),
    *("coterie.compute.nn", "coterie.compute.runtime.session", "tests.held_clock", "tests.lock_order"),
    SIMULATION,
)
"""The command line, and what commands and the tests' own programs import when they need it."""
COTERIE: Final = "coterie.cli.main"
DOOR: Final = "COTERIE_TESTS_FORKS"
"""The variable that names the socket at which programs have forks made for them."""
WORKER: Final = "coterie.server.worker.process"
LAUNCHER: Final = Path(__file__).with_name("launch.py")
Streams = tuple[int, ...]
Place = str | os.PathLike[str]


class Errors(Enum):
    """What becomes of a program's standard error."""

    READ = subprocess.PIPE
    DROPPED = subprocess.DEVNULL
    SHARED = None
    """It is that of this process."""


@dataclass(frozen=True)
class Done:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


def run(words: Sequence[str], *, cwd: Place, env: Mapping[str, str], timeout: float) -> Done:
    """Run ``coterie`` with these words to its end. Raises subprocess.TimeoutExpired."""
    program = start(words, cwd=cwd, env=env)
    out, err = program.communicate(timeout=timeout)
    return Done(program.wait(), out, err)


def start(
    words: Sequence[str],
    *,
    cwd: Place,
    env: Mapping[str, str],
    stderr: Errors = Errors.READ,
    program: str | Path = COTERIE,
) -> "Program":
    """Start ``coterie``, or another program, with these words, without standard input.

    env: with settings of Python's own (``PYTHONPATH``) that differ from this process's, a new Python is started.
    program: a module, as ``python -m`` names it, or a script's file.
    """
    if sys.platform == "linux" and _of_python(env) == _of_python(os.environ):
        return _prepared().start(words, cwd=cwd, env=env, stderr=stderr, program=program)
    return subprocess.Popen(
        [sys.executable, *(("-m", program) if isinstance(program, str) else (str(program),)), *words],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr.value,
        text=True,
    )


def worker_program(module: str = WORKER) -> tuple[str, ...]:
    """What starts a worker process, a coordinator's unless told otherwise, without the second that its imports take."""
    if sys.platform != "linux":
        return (sys.executable, "-m", module)
    if DOOR not in os.environ:
        _prepared()
    return _launched(os.environ[DOOR], module)


def _launched(door: str, module: str) -> tuple[str, ...]:
    # Without site and the environment's variables of Python: it only passes on its streams.
    return (sys.executable, "-I", "-S", str(LAUNCHER), door, module)


class Fork:
    """A process that `Prepared` started: the part of `subprocess.Popen` that tests use, with errors of its kinds."""

    def __init__(self, pid: int, ended: socket.socket, stdout: IO[str], stderr: IO[str] | None) -> None:
        """ended: brings the exit code."""
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | None = None
        self._ended = ended

    def poll(self) -> int | None:
        """The exit code, minus the signal's number where one ended it; None while it runs."""
        return self._wait(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, as soon as there is one. Raises subprocess.TimeoutExpired."""
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait until it has ended, and read what is left of its output. Raises subprocess.TimeoutExpired."""
        streams = [stream for stream in (self.stdout, self.stderr) if stream is not None]
        with ThreadPoolExecutor(len(streams)) as readers:
            texts = [readers.submit(stream.read) for stream in streams]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            read = [text.result() for text in texts]
        self.close()
        return read[0], read[1] if len(read) > 1 else ""

    def send_signal(self, number: int) -> None:
        """Send it a signal if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Close the streams."""
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self._ended.close()

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._ended.settimeout(timeout)
            with suppress(BlockingIOError, TimeoutError):
                self.returncode = int(self._ended.recv(16))
        return self.returncode


class Prepared:
    """The process that programs are forks of."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # As every program: threads of a library's own would be lost in a fork.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._folder = tempfile.TemporaryDirectory(prefix="forks")
        self.door = str(Path(self._folder.name) / "door")
        door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        door.bind(self.door)
        door.listen(64)
        with other, door:
            ends = (other.fileno(), door.fileno())
            words = [sys.executable, str(Path(__file__)), *map(str, ends)]
            self._process = subprocess.Popen(words, env=environment, pass_fds=ends)

    def start(
        self, words: Sequence[str], *, cwd: Place, env: Mapping[str, str], stderr: Errors, program: str | Path
    ) -> Fork:
        """As `start`."""
        out, out_end = os.pipe()
        err = None
        match stderr:
            case Errors.READ:
                err, err_end = os.pipe()
            case Errors.DROPPED:
                err_end = os.open(os.devnull, os.O_WRONLY)
            case Errors.SHARED:
                err_end = os.dup(2)
        ended, ended_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        run = {"module": program} if isinstance(program, str) else {"script": str(program)}
        told = {"words": list(words), "cwd": os.fspath(cwd), "env": dict(env), "door": self.door}
        order = json.dumps({**run, **told}).encode()
        with ended_end:
            socket.send_fds(self._socket, [order], [out_end, err_end, ended_end.fileno()])
        os.close(out_end)
        os.close(err_end)
        pid = int(ended.recv(16))
        return Fork(pid, ended, os.fdopen(out), None if err is None else os.fdopen(err))

    def close(self) -> None:
        """End the process. Programs that still run go on."""
        self._socket.close()
        self._process.wait()
        self._folder.cleanup()


Program = Fork | subprocess.Popen[str]
"""What `start` gives."""


def _of_python(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith("PYTHON")}


@cache
def _prepared() -> Prepared:
    """The one of this process."""
    made = Prepared()
    os.environ[DOOR] = made.door
    atexit.register(made.close)
    return made


def serve(orders: socket.socket, door: socket.socket) -> Callable[[], None] | None:
    """Fork for every order until there are no more: None then; in the fork, what the program does."""
    while True:
        ready, _, _ = select.select([orders, door], [], [])
        if orders in ready:
            order, streams, _, _ = socket.recv_fds(orders, 1 << 20, 3)
            if not order:
                return None
            *streams, ended = streams
            lent = False
        else:
            caller, _ = door.accept()
            order, streams, _, _ = socket.recv_fds(caller, 1 << 20, 3)
            ended, lent = caller.detach(), True
            if not order:
                os.close(ended)
                continue
        if os.fork() == 0:
            orders.close()
            door.close()
            return keep(socket.socket(fileno=ended), partial(become, json.loads(order), tuple(streams)), lent=lent)
        for stream in (*streams, ended):
            os.close(stream)


def keep(ended: socket.socket, program: Callable[[], None], *, lent: bool) -> Callable[[], None]:
    """Fork once more: the program's process gets ``program``, and this one tells how it ends.

    lent: whether it ends with whoever asked for it, whose streams it has.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        ended.close()
        if lent:
            os.setsid()
        return program
    # Ctrl-C is for the program.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Who asked may be gone already; then the program is killed below.
    with suppress(OSError):
        ended.send(str(pid).encode())
    os.closerange(0 if lent else 1, ended.fileno())
    if lent:
        program_ends = os.pidfd_open(pid)
        gone, _, _ = select.select([program_ends, ended], [], [])
        if ended in gone:
            os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with suppress(OSError):
        ended.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def become(order: Mapping[str, Any], streams: Streams) -> None:
    """Be the program that an order asks for. streams: output and errors, and input before them where there is one."""
    for stream, number in zip(reversed(streams), (2, 1, 0), strict=False):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    # What a program starts, if it is a coordinator. A worker, which came in by the door, starts nothing.
    if "door" in order:
        vars(import_module("coterie.server.worker.workers"))["PROGRAM"] = _launched(order["door"], WORKER)
    places = order["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [place for place in places if place and place not in sys.path]
    sys.argv[1:] = order["words"]
    code = 1
    try:
        if "script" in order:
            runpy.run_path(order["script"], run_name="__main__")
        else:
            sys.modules.pop(order["module"], None)
            runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        traceback.print_exc()
    # ONNX Runtime would wait at its end for a thread that stayed behind in the fork: leave as multiprocessing does.
    for ending in (vars(threading)["_shutdown"], vars(atexit)["_run_exitfuncs"]):
        ending()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def main() -> None:
    """Import, and serve whoever started this."""
    sys.path.append(str(Path(__file__).parents[1]))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    for module in IMPORTED:
        import_module(module)
    # Processes between this one and programs are nobody's to wait for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as orders, socket.socket(fileno=int(sys.argv[2])) as door:
        program = serve(orders, door)
    if program is not None:
        program()


if __name__ == "__main__":
    main()
