"""Byte ranges (RFC 9110, section 14): the one range that a client asks for, or nothing."""

import re
from dataclasses import dataclass

_FORM = re.compile(r"bytes=(?:(\d+)-(\d*)|-(\d+))")


@dataclass(frozen=True)
class ByteRange:
    """The bytes [start, stop)."""

    start: int
    stop: int


class Unsatisfiable(Exception):
    """The range lies outside of the blob."""


def parse_range(header: str | None, size: int) -> ByteRange | None:
    """The range that a header asks for; None for no header, and for forms that a server may ignore (several ranges,
    other units).

    Raises Unsatisfiable for a range that begins past the end.
    """
    match = _FORM.fullmatch((header or "").replace(" ", ""))
    if match is None:
        return None
    first, last, suffix = match.groups()
    if suffix is not None:
        length = min(int(suffix), size)
        if length == 0:
            raise Unsatisfiable
        return ByteRange(size - length, size)
    start = int(first)
    stop = min(int(last) + 1, size) if last else size
    if start >= size:
        raise Unsatisfiable
    return ByteRange(start, stop) if stop > start else None
