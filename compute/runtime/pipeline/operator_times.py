"""What each node of a step costs on this machine: measured by ONNX Runtime's own clock, and remembered."""

import json
import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, cast

import onnx

from coterie.compute.ir import NDArray
from coterie.compute.runtime.session import CPU, open_session, runtime_version

RUNS = 4
KEPT_GRAPHS = 16


class OperatorTimes:
    """Seconds of the nodes of graphs, by the graph's digest, the machine, ONNX Runtime and the number of threads.

    folder: where they are kept; None for this process alone. Of the graphs that were asked for last, ``KEPT_GRAPHS``
    are kept. May be used from several threads.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder, self._lock = folder, Lock()
        self._known: dict[str, tuple[float, ...]] = {}

    def of(self, data: bytes, feeds: Callable[[], Mapping[str, NDArray]], threads: int) -> tuple[float, ...]:
        """Seconds of each node, in the order of the file.

        feeds: the graph's inputs, for a graph that has not been measured.
        """
        key = sha256(json.dumps([sha256(data).hexdigest(), *_machine(), threads]).encode()).hexdigest()
        count = len(cast(Any, onnx).load_from_string(data).graph.node)
        with self._lock:
            found = self._known.pop(key, None) or self._recalled(key, count)
            if found is None:
                found = node_seconds(data, feeds(), threads)
                self._remember(key, found)
            self._known[key] = found
            while len(self._known) > KEPT_GRAPHS:
                del self._known[next(iter(self._known))]
            return found

    def _recalled(self, key: str, count: int) -> tuple[float, ...] | None:
        """What a file says; None where there is none that can be used."""
        if self._folder is None:
            return None
        file = self._folder / f"{key}.json"
        try:
            told: Any = json.loads(file.read_text(encoding="utf-8"))
            found = tuple(map(float, told))
        except (OSError, ValueError, TypeError):
            return None
        with suppress(OSError):
            file.touch()  # What is asked for stays longest.
        return found if len(found) == count and all(each >= 0 for each in found) else None

    def _remember(self, key: str, seconds: Sequence[float]) -> None:
        """Times that cannot be kept are measured again: nothing but a second is lost."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(exist_ok=True)
            (self._folder / f"{key}.json").write_text(json.dumps(seconds), encoding="utf-8")
            files = sorted(self._folder.glob("*.json"), key=lambda file: file.stat().st_mtime_ns, reverse=True)
            for file in files[KEPT_GRAPHS:]:
                file.unlink(missing_ok=True)
        except OSError:
            pass


def _machine() -> list[str]:
    return [platform.node(), platform.machine(), str(os.cpu_count()), runtime_version()]


def node_seconds(data: bytes, feeds: Mapping[str, NDArray], threads: int) -> tuple[float, ...]:
    """Seconds of each node: the least of some runs, the first of which does not count.

    Nodes are not put together, so that each has a time of its own; what a session saves by that is not seen.
    """
    model = cast(Any, onnx).load_from_string(data)
    for index, node in enumerate(model.graph.node):
        node.name = f"n{index}"
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(
            model.SerializeToString(),
            threads=threads,
            provider=CPU,
            spinning=False,
            arena=True,
            fallback=False,
            profile_prefix=str(Path(folder) / "times"),
            fused=False,
        )
        for _ in range(RUNS):
            session.run(None, feeds)
        events: list[dict[str, Any]] = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    times: dict[str, list[float]] = {}
    for event in events:
        name, _, kind = str(event.get("name", "")).partition("_")
        if event.get("cat") == "Node" and kind == "kernel_time":
            times.setdefault(name, []).append(float(event["dur"]) / 1e6)
    return tuple(min(times.get(f"n{index}", [0.0])) for index in range(len(model.graph.node)))
