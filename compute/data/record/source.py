"""Record files as sources."""

import mmap
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast, final

import numpy as np

from coterie.compute.data.record.block import Block
from coterie.compute.data.record.header import from_header
from coterie.compute.data.record.index import Index, read_index, scan
from coterie.compute.data.record.layout import Damaged, Frame, Kind, checked_payload, frame_at
from coterie.compute.data.source import Column, Rows, Source
from coterie.compute.ir import NDArray
from coterie.errors import DataError

Torn = Literal["refuse", "drop"]


def read_header(data: memoryview) -> tuple[Frame, dict[str, Column]]:
    """The first frame of a record file, and the columns that it tells. Raises Damaged."""
    header = frame_at(data, 0)
    if header.kind is not Kind.HEADER:
        raise Damaged(0, "there is no header")
    return header, from_header(checked_payload(data, header))


class Opened:
    """An open record file: what one process knows of it. Sent to another process it arrives empty."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.file: File | None = None

    def __reduce__(self) -> tuple[type["Opened"], tuple[()]]:
        return Opened, ()


@dataclass(frozen=True, slots=True)
class File:
    """A mapped file, its columns, where its blocks lie, the first row of each, and the blocks that were checked."""

    data: memoryview
    columns: Mapping[str, Column]
    index: Index
    firsts: NDArray
    blocks: dict[int, Block] = field(default_factory=dict[int, Block])

    def block(self, number: int) -> Block:
        """A block; its checksum is compared the first time. Raises Damaged."""
        found = self.blocks.get(number)
        if found is None:
            # Two threads may both check a block, which does no harm.
            frame = frame_at(self.data, int(self.index.places[number]))
            if frame.kind is not Kind.BLOCK or frame.count != self.index.counts[number]:
                raise Damaged(frame.at, "there is another block than the index says")
            found = Block(frame.at, self.columns, frame.count, checked_payload(self.data, frame))
            self.blocks[number] = found
        return found


@final
@dataclass(frozen=True, eq=False)
class RecordSource(Source):
    """A record file.

    path: the file, written by `RecordWriter`. torn: what to do where its writer was killed, or is still writing:
    "refuse", or "drop" what comes after the last complete block.

    The file is mapped into memory, not loaded: rows are copied out of it when they are asked for, and a block's
    checksum is compared the first time that one of its rows is. Rows that a writer appends are seen by sources that are
    opened afterwards. Do not cut the file short while it is open.

    Raises DataError: "record_damaged" naming the file and the place of what is not intact, "record_torn" where the file
    does not end as a complete one does, "data_missing" where there is no file.
    """

    path: str | Path
    torn: Torn = "refuse"
    _opened: Opened = field(default_factory=Opened, init=False, repr=False)

    @property
    def columns(self) -> Mapping[str, Column]:
        """What the header tells."""
        return MappingProxyType(self._file().columns)

    def __len__(self) -> int:
        return self._file().index.rows

    def rows(self, indices: NDArray) -> Rows:
        """Copies of the rows of these numbers, block by block."""
        file = self._file()
        numbers = np.searchsorted(file.firsts, indices, side="right") - 1
        within = indices - file.firsts[numbers]
        try:
            order = np.argsort(numbers, kind="stable")
            cuts = np.flatnonzero(np.diff(numbers[order])) + 1
            groups = np.split(order, cuts) if len(indices) else []
            pieces = [(place, file.block(int(numbers[place[0]])), within[place]) for place in groups]
            return {name: _gathered(name, column, len(indices), pieces) for name, column in file.columns.items()}
        except Damaged as damaged:
            raise damaged.refusal(Path(self.path).name) from damaged

    def _file(self) -> File:
        with self._opened.lock:
            if self._opened.file is None:
                self._opened.file = self._open()
            return self._opened.file

    def _open(self) -> File:
        path = Path(self.path)
        try:
            with path.open("rb") as file:
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            header, columns = read_header(data)
            index = read_index(data, header)
            if index is None:
                index = scan(data, header)
                if self.torn == "refuse":
                    raise _torn(path.name, index)
        except FileNotFoundError as error:
            raise DataError(f"{path}: there is no such file.", hint="Check the path.", code="data_missing") from error
        except (OSError, ValueError) as error:
            # An empty file cannot be mapped.
            raise Damaged(0, f"it cannot be read: {error}").refusal(path.name) from error
        except Damaged as damaged:
            raise damaged.refusal(path.name) from damaged
        return File(data, columns, index, np.cumsum(index.counts) - index.counts)


def _torn(name: str, index: Index) -> DataError:
    return DataError(
        f"{name}: the record file ends in the middle: its writer was killed or is still writing. {index.rows} rows are "
        f"complete, up to byte {index.end}.",
        hint="Open it with RecordWriter.append to mend it, or read it with torn='drop'.",
        code="record_torn",
        rows=index.rows,
    )


def _gathered(
    name: str, column: Column, count: int, pieces: list[tuple[NDArray, Block, NDArray]]
) -> "NDArray | list[Any]":
    if column.fixed:
        values: NDArray = np.empty((count, *cast(tuple[int, ...], column.shape)), column.dtype)
        for place, block, rows in pieces:
            values[place] = block.take(name, rows)
        return values
    listed: list[Any] = [None] * count
    for place, block, rows in pieces:
        for at, value in zip(place.tolist(), block.take(name, rows), strict=True):
            listed[at] = value
    return listed
