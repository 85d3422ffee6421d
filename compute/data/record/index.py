"""Where the blocks of a record file lie: as its indexes say, or, where a writer was killed, as its frames do."""

import struct
from dataclasses import dataclass

import numpy as np

from coterie.compute.data.record.layout import (
    ALIGNMENT,
    FRAME_MAGIC,
    TRAILER_BYTES,
    Damaged,
    Frame,
    Kind,
    checked_payload,
    frame_at,
    framed,
    padding,
    trailer,
    trailer_of,
)
from coterie.compute.ir import NDArray

_BEGIN = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True)
class Index:
    """All blocks of a file, in order.

    places, counts: int64[blocks], where each block begins and how many rows it has. last: where the last index begins,
    0 if there is none. end: where the intact part of the file ends.
    """

    places: NDArray
    counts: NDArray
    last: int
    end: int

    @property
    def rows(self) -> int:
        """The rows of all blocks."""
        return int(self.counts.sum())


def index_frame(at: int, before: Index, places: list[int], counts: list[int]) -> bytes:
    """The frame to write at ``at``, after the blocks of these places that no index lists yet."""
    table = np.array([places, counts], "<u8").T.tobytes()
    body = _BEGIN.pack(before.last, len(before.places) + len(places)) + table
    body += bytes(padding(len(body) + TRAILER_BYTES)) + trailer(at, before.rows + sum(counts))
    return framed(Kind.INDEX, len(places), body)


def read_index(data: memoryview, header: Frame) -> Index | None:
    """The blocks that the file's indexes list; None where the file does not end in an index. Raises Damaged."""
    end = trailer_of(data)
    if end is None:
        return None
    at, rows = end
    last = at
    tables: list[NDArray] = []
    while at:
        frame = frame_at(data, at)
        payload = checked_payload(data, frame)
        if frame.kind is not Kind.INDEX or len(payload) < _BEGIN.size + 16 * frame.count + TRAILER_BYTES:
            raise Damaged(at, "there is no index")
        if trailer_of(payload) is None or (at == last and frame.end != len(data)):
            raise Damaged(at, "the index does not end as it should")
        before, _ = _BEGIN.unpack(payload[: _BEGIN.size])
        if before >= at:
            raise Damaged(at, "the index before it comes after it")
        tables.append(np.frombuffer(payload, "<u8", 2 * frame.count, _BEGIN.size).reshape(-1, 2))
        at = before
    listed = np.concatenate(tables[::-1])
    if np.any(listed >= 2**63) or np.any(np.diff(listed[:, 0].astype(np.int64), prepend=header.at) <= 0):
        raise Damaged(last, "the blocks of the index are not in order")
    index = Index(listed[:, 0].astype(np.int64), listed[:, 1].astype(np.int64), last, len(data))
    # Summed as Python integers: a false index may count more than 64 bits hold.
    if sum(index.counts.tolist()) != rows or np.any(index.counts >= 2**32):
        raise Damaged(last, "the index counts another number of rows than its blocks")
    return index


def scan(data: memoryview, header: Frame) -> Index:
    """The complete blocks of a file whose writer was killed; each is checked.

    Raises Damaged where there are more frames after the place that cannot be read: then the file was not only cut off.
    """
    places: list[int] = []
    counts: list[int] = []
    at, last = header.end, 0
    try:
        while at < len(data):
            frame = frame_at(data, at)
            checked_payload(data, frame)
            if frame.kind is Kind.BLOCK:
                places.append(at)
                counts.append(frame.count)
            else:
                last = at
            at = frame.end
    except Damaged as damaged:
        if _is_frame_after(data, at + ALIGNMENT):
            raise damaged from None
    return Index(np.array(places, np.int64), np.array(counts, np.int64), last, at)


def _is_frame_after(data: memoryview, at: int) -> bool:
    whole = data[at : len(data) - len(data) % ALIGNMENT]
    if not whole:
        return False
    words = np.frombuffer(whole, "<u4")[:: ALIGNMENT // 4]
    for place in np.flatnonzero(words == int.from_bytes(FRAME_MAGIC, "little")).tolist():
        try:
            frame_at(data, at + ALIGNMENT * place)
        except Damaged:
            continue
        return True
    return False
