"""A real Ray cluster with a Ray Client server, as somebody else would have started it: on the loopback interface."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.patience import patience
from tests.ports import steady_port

NEEDS_RAY = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is in an extra of its own"),
    # Ray itself leaves sockets and processes to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""Marks of every test that starts Ray."""
_CLOSED = "Cannot monitor channel state: Channel closed"
_START_S = 60.0
_END_S = 10.0
_OTHERS_S = 250.0


@dataclass(frozen=True)
class Cluster:
    """address: for an engine. process: the one that holds all others of the cluster."""

    address: str
    process: "subprocess.Popen[bytes]"

    def end(self) -> None:
        """Ask it to end, with all of its processes, and see to it. Safe to call twice."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience(_END_S))
        self.lose()

    def lose(self) -> None:
        """All of its processes vanish at once."""
        for number in _of_session(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        self.process.wait(patience(_END_S))


@contextmanager
def closed_channels() -> Generator[None]:
    """Nobody hears of the thread in which gRPC watches a channel that Ray Client closes after it has lost its cluster:
    it may look once more, and then ends with an error that nobody can catch. Other errors of threads are told.
    """
    tell = threading.excepthook

    def hook(ended: threading.ExceptHookArgs) -> None:
        if not isinstance(ended.exc_value, ValueError) or _CLOSED not in str(ended.exc_value):
            tell(ended)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", hook)
        yield


@contextmanager
def nobody_else() -> Generator[None]:
    """Wait until no other process of the tests is here: clusters that start at once all take the lowest free port for
    their first client. Linux forgets the name with the process that bound it.
    """
    until = time.monotonic() + patience(_OTHERS_S)
    with socket.socket(socket.AF_UNIX) as name:
        while True:
            try:
                name.bind("\0coterie-tests-ray")
                break
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
        yield


@contextmanager
def cluster(cpus: int) -> Generator[Cluster]:
    """A cluster of its own with so many CPUs. It knows nothing of the test's folders: it works in one of its own, which
    goes with it, as do all of its processes.
    """
    # Sockets lie in it, whose paths are short.
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    port = steady_port()
    words = [
        "start",
        "--head",
        "--block",
        "--port",
        "0",
        "--ray-client-server-port",
        str(port),
        "--num-cpus",
        str(cpus),
    ]
    words += ["--include-dashboard", "false", "--disable-usage-stats", "--temp-dir", str(folder)]
    words += ["--object-store-memory", str(100 << 20)]
    # Any ports: otherwise from a range in which the one above may lie.
    words += ["--min-worker-port", "0", "--max-worker-port", "0"]
    environment = {
        **os.environ,
        # On the loopback interface, as on a desktop.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # Whether there is a token in somebody's home decides otherwise.
        "RAY_AUTH_MODE": "disabled",
        # The head starts a process for each client by fork, beside threads of gRPC, whose handlers of forks sometimes
        # hang: then it gives that client up after half a minute.
        "GRPC_ENABLE_FORK_SUPPORT": "0",
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder),
    }
    log = folder / "said.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", *words],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    found = Cluster(f"ray://127.0.0.1:{port}", process)
    try:
        _await(found, port, log)
        yield found
    finally:
        found.end()
        shutil.rmtree(folder)


def _await(cluster: Cluster, port: int, log: Path) -> None:
    """Its port may answer before all of it is there, and all may be there before its port answers."""
    until = time.monotonic() + patience(_START_S)
    while time.monotonic() < until and cluster.process.poll() is None:
        with socket.socket() as probe:
            answers = probe.connect_ex(("127.0.0.1", port)) == 0
        if answers and "Ray runtime started" in log.read_text(encoding="utf-8"):
            return
        time.sleep(0.1)
    raise RuntimeError(f"The Ray cluster did not start: {log.read_text(encoding='utf-8')}")


def _of_session(leader: int) -> list[int]:
    """Processes of a session that are at work, as /proc tells it."""
    found: list[int] = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = status.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[3]) == leader and words[0] != "Z":
            found.append(int(status.parent.name))
    return found
