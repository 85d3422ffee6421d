"""Byte ranges (RFC 9110, section 14): the one range that a client asks for, or nothing."""

import re
from dataclasses import dataclass

_FORM = re.compile(r"bytes=(?:([0-9]+)-([0-9]*)|-([0-9]+))")
_DIGITS = 18


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
        length = min(_number(suffix), size)
        if length == 0:
            raise Unsatisfiable
        return ByteRange(size - length, size)
    start = _number(first)
    stop = min(_number(last) + 1, size) if last else size
    if start >= size:
        raise Unsatisfiable
    return ByteRange(start, stop) if stop > start else None


def _number(text: str) -> int:
    """The number; for one of more digits than any blob has bytes, a number past every blob (Python refuses to read
    numbers of thousands of digits).
    """
    digits = text.lstrip("0")
    return int(digits or "0") if len(digits) <= _DIGITS else 10**_DIGITS
