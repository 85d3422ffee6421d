"""Delimited text in blocks of whole lines."""

from collections.abc import Iterator
from typing import IO

import numpy as np

from coterie.compute.data.sources.csv.cells import NEWLINE, QUOTE, BadText
from coterie.compute.ir import NDArray

BLOCK_BYTES = 3 << 18
"""Enough cells for NumPy's loops to be long beside what starting them costs, and few enough for a processor's cache."""
LONGEST_LINE = 1 << 26


def blocks(file: IO[bytes], size: int = BLOCK_BYTES) -> Iterator[bytes]:
    """The file's bytes in order, each block of about ``size`` bytes and ending where a line does (not inside quotes).

    The last block may lack a newline. Raises BadText for a line beyond LONGEST_LINE bytes, which mostly is a quote that
    is never closed.
    """
    rest = b""
    while chunk := file.read(max(size, len(rest))):
        if b'"' in chunk or b'"' in rest:
            # Where a line ends then depends on all before.
            rest, chunk = b"", rest + chunk
        cut = _last_line_end(chunk)
        if cut:
            yield b"".join((rest, memoryview(chunk)[:cut]))
            rest = chunk[cut:]
            continue
        rest += chunk
        if len(rest) > LONGEST_LINE:
            raise BadText(
                0, None, f"is longer than {LONGEST_LINE} bytes", "Look for a quote that is opened and never closed."
            )
    if rest:
        yield rest


def line_ends(text: bytes) -> NDArray:
    """The places after each newline outside quotes."""
    buffer = np.frombuffer(text, np.uint8)
    newlines = buffer == NEWLINE
    if b'"' in text:
        newlines &= ~np.logical_xor.accumulate(buffer == QUOTE)
    return np.flatnonzero(newlines) + 1


def _last_line_end(text: bytes) -> int:
    if b'"' not in text:
        return text.rfind(b"\n") + 1
    ends = line_ends(text)
    return int(ends[-1]) if ends.size else 0
