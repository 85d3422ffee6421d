"""Text files by the number of a line."""

import gzip
import mmap
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.compute.ir import NDArray
from coterie.errors import DataError

NEWLINE, RETURN = ord("\n"), ord("\r")
INDEXED_AT_ONCE = 1 << 24


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of a file that hold something.

    data: the file, mapped or unpacked. starts, ends: int64[N], without the line's end. numbers: int64[N], the line's
    number in the file, from 1.
    """

    data: memoryview
    starts: NDArray
    ends: NDArray
    numbers: NDArray

    def at(self, row: int) -> bytes:
        """One line."""
        return self.data[self.starts[row] : self.ends[row]].tobytes()


class OpenedLines:
    """The lines of a file, found once in a process. Sent to another process it arrives empty."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: Lines | None = None

    def __reduce__(self) -> tuple[type["OpenedLines"], tuple[()]]:
        return OpenedLines, ()

    def of(self, path: Path) -> Lines:
        """The lines of this file. Raises DataError where it cannot be read."""
        with self._lock:
            if self._lines is None:
                self._lines = _indexed(_contents(path))
            return self._lines


def _contents(path: Path) -> memoryview:
    if not path.is_file():
        raise DataError(f"{path}: there is no such file.", hint="Check the path.", code="data_missing")
    try:
        if path.name.lower().endswith(".gz"):
            with gzip.open(path, "rb") as packed:
                return memoryview(packed.read())
        with path.open("rb") as file:
            # An empty file cannot be mapped.
            size = path.stat().st_size
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) if size else memoryview(b"")
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path.name} cannot be read: {str(error).rstrip('.')}.",
            hint="Check that the file is whole and of that format.",
            code="data_unreadable",
        ) from error


def _indexed(data: memoryview) -> Lines:
    size = len(data)
    # One chunk after another, so that the comparison never takes as much memory as the file.
    found = [
        first + np.flatnonzero(np.frombuffer(data[first : first + INDEXED_AT_ONCE], np.uint8) == NEWLINE)
        for first in range(0, size, INDEXED_AT_ONCE)
    ]
    ends: NDArray = np.concatenate([*found, np.array([size] if size and data[-1] != NEWLINE else [], np.int64)])
    starts = np.concatenate([np.zeros(1, np.int64), ends + 1])[: ends.size]
    numbers = np.arange(1, ends.size + 1)
    if size:
        last = np.frombuffer(data, np.uint8)[np.maximum(ends - 1, 0)]
        ends = ends - ((last == RETURN) & (ends > starts))
        if bytes(data[:3]) == b"\xef\xbb\xbf":
            # A byte order mark is no part of the first line.
            starts[0] = 3
    filled = ends > starts
    return Lines(data, starts[filled], ends[filled], numbers[filled])
