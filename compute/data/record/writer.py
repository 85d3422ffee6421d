"""Writing record files, and appending to them."""

import fcntl
import mmap
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np

from coterie.compute.data.record.block import Values, packed
from coterie.compute.data.record.header import to_header
from coterie.compute.data.record.index import Index, index_frame, read_index, scan
from coterie.compute.data.record.layout import Damaged, Kind, framed
from coterie.compute.data.record.rows import checked, joined, sizes
from coterie.compute.data.record.source import read_header
from coterie.compute.data.source import Column, Rows, Source
from coterie.compute.ir import NDArray
from coterie.errors import DataError, StorageError

BLOCK_BYTES = 1 << 20
"""About the size of a block: what is read and checked when its first row is asked for."""
EMPTY = Index(np.empty(0, np.int64), np.empty(0, np.int64), 0, 0)


class RecordWriter:
    """Writes rows to a record file; made by `create` or `append`, used in a ``with`` block.

    What was committed stays readable whatever happens afterwards: nothing is written over, and bytes reach the disk
    before the index that names them is complete. A writer that is killed leaves a file whose complete blocks `append`
    keeps. Leaving the ``with`` block commits; leaving it by an exception takes back what was not committed.

    One writer at a time holds a file's lock. Raises DataError for rows that do not fit the columns, StorageError for a
    disk that is full.
    """

    def __init__(
        self, file: BinaryIO, path: Path, columns: Mapping[str, Column], index: Index, unlisted: tuple[NDArray, NDArray]
    ) -> None:
        self.columns = dict(columns)
        self._file, self._path, self._index = file, path, index
        self._places: list[int] = unlisted[0].tolist()
        self._counts: list[int] = unlisted[1].tolist()
        self._end = file.seek(0, os.SEEK_END)
        self._buffer: list[Mapping[str, Values]] = []
        self._buffered = 0

    @classmethod
    def create(cls, path: str | Path, columns: Mapping[str, Column]) -> Self:
        """A new file of these columns. Raises DataError where there is one already."""
        header = to_header(columns)
        path = Path(path)
        try:
            file = path.open("xb")
        except FileExistsError as error:
            raise DataError(
                f"{path}: there is such a file already.",
                hint="Append to it with RecordWriter.append, or remove it first.",
                code="record_exists",
            ) from error
        except OSError as error:
            raise _unwritable(path, error) from error
        _lock(file, path)
        writer = cls(file, path, columns, EMPTY, (EMPTY.places, EMPTY.counts))
        writer._put(framed(Kind.HEADER, 0, header))
        writer.commit()
        return writer

    @classmethod
    def append(cls, path: str | Path) -> Self:
        """Go on with a file. What a killed writer left incomplete at its end is cut off; complete blocks are kept.

        Raises DataError for a file that is damaged elsewhere.
        """
        path = Path(path)
        try:
            file = path.open("r+b")
        except OSError as error:
            raise _unwritable(path, error) from error
        _lock(file, path)
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            data = memoryview(mapped)
            header, columns = read_header(data)
            index = read_index(data, header) or scan(data, header)
        except (Damaged, ValueError) as error:
            # The mapping holds the file, and with it the lock, for as long as the error is looked at.
            fcntl.flock(file.fileno(), fcntl.LOCK_UN)
            file.close()
            # An empty file cannot be mapped.
            damaged = error if isinstance(error, Damaged) else Damaged(0, "it is empty")
            raise damaged.refusal(path.name) from error
        data.release()
        mapped.close()
        file.truncate(index.end)
        listed = index.places < index.last
        known = Index(index.places[listed], index.counts[listed], index.last, index.end)
        return cls(file, path, columns, known, (index.places[~listed], index.counts[~listed]))

    def write(self, rows: Rows) -> None:
        """Add rows, column by column, as a source gives them. They are readable after `commit`.

        rows: for every column K values: an array ``[K, *shape]`` of the column's dtype, or a sequence of K ``str``,
        ``bytes``, or arrays.
        """
        fitting = {name: checked(name, column, rows.get(name)) for name, column in self.columns.items()}
        self._require_open()
        surplus = sorted(set(rows) - set(fitting))
        lengths = {len(values) for values in fitting.values()}
        if surplus or len(lengths) > 1:
            what = f"column {surplus[0]!r} is not in the file" if surplus else "the columns differ in length"
            raise DataError(f"{self._path.name}: {what}.", code="data_surplus" if surplus else "data_lengths")
        if lengths == {0}:
            return
        self._buffer.append(fitting)
        self._buffered += int(sizes(self.columns, fitting).sum())
        if self._buffered >= BLOCK_BYTES:
            self._write_blocks(everything=False)

    def commit(self) -> None:
        """Bring all rows to the disk, and the index that makes them readable."""
        self._require_open()
        self._write_blocks(everything=True)
        if self._places or not self._index.last:
            at = self._end
            self._put(index_frame(at, self._index, self._places, self._counts))
            places = np.concatenate([self._index.places, np.array(self._places, np.int64)])
            counts = np.concatenate([self._index.counts, np.array(self._counts, np.int64)])
            self._index = Index(places, counts, at, self._end)
            self._places, self._counts = [], []
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _unwritable(self._path, error) from error

    def close(self) -> None:
        """Commit, and let go of the file. Nothing happens where it is closed already."""
        if self._file.closed:
            return
        try:
            self.commit()
        finally:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        self._file.truncate(self._index.end)
        self._file.close()

    def _require_open(self) -> None:
        if self._file.closed:
            raise StorageError(f"{self._path} is closed.", hint="Open it again with RecordWriter.append.")

    def _write_blocks(self, *, everything: bool) -> None:
        if not self._buffer:
            return
        rows = {name: joined(column, [part[name] for part in self._buffer]) for name, column in self.columns.items()}
        ends = np.cumsum(sizes(self.columns, rows))
        first, count = 0, len(ends)
        while first < count:
            before = int(ends[first - 1]) if first else 0
            if int(ends[-1]) - before < BLOCK_BYTES and not everything:
                break
            # As many rows as a block should hold, and at least one.
            stop = max(first + 1, int(np.count_nonzero(ends <= before + BLOCK_BYTES)))
            self._places.append(self._end)
            self._counts.append(stop - first)
            block = packed(self.columns, {name: values[first:stop] for name, values in rows.items()})
            self._put(framed(Kind.BLOCK, stop - first, block))
            first = stop
        self._buffer = [{name: values[first:] for name, values in rows.items()}] if first < count else []
        self._buffered = int(ends[-1]) - (int(ends[first - 1]) if first else 0)

    def _put(self, frame: bytes) -> None:
        try:
            self._file.write(frame)
        except OSError as error:
            raise _unwritable(self._path, error) from error
        self._end += len(frame)


def write_records(path: str | Path, source: Source, rows_at_once: int = 4096) -> int:
    """Write all rows of a source into a new file; returns how many. Raises what reading and writing raise.

    The file is there only when all rows are, and takes the place of one of that name only then: it is written under
    another name first, one of its own, so that nobody else who writes this file is disturbed.
    """
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.unfinished")
    try:
        with RecordWriter.create(unfinished, source.columns) as writer:
            for first in range(0, len(source), rows_at_once):
                writer.write(source.rows(np.arange(first, min(first + rows_at_once, len(source)))))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return len(source)


def _lock(file: BinaryIO, path: Path) -> None:
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise StorageError(f"{path}: another writer has this file open.", hint="Let it finish first.") from error


def _unwritable(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{path} cannot be written: {error.strerror or error}.", hint="Check the path and the free space."
    )
