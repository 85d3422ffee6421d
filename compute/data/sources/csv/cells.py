"""Where the cells of delimited text begin and end (RFC 4180)."""

from dataclasses import dataclass

import numpy as np

from coterie.compute.data.sources.csv.decimals import PADDING, padded
from coterie.compute.ir import NDArray

NEWLINE, RETURN, QUOTE = ord("\n"), ord("\r"), ord('"')
BLANKS = b" \t"
# A pair of bytes, little-endian, of which the second is one.
ONLY_SECOND, BYTE = 0x0100, np.uint16(8)


class BadText(Exception):
    """A row or a cell that cannot be read.

    row: its number within the lines at hand, from 0. column: its name, None where the whole row is meant. what: the
    rest of a sentence that begins with row and column. hint: what to do.
    """

    def __init__(self, row: int, column: str | None, what: str, hint: str) -> None:
        super().__init__(row, column, what, hint)
        self.row, self.column, self.what, self.hint = row, column, what, hint


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of some lines.

    buffer: uint8, the lines as `padded`. starts, ends: int64[rows, width] into it, without the quotes
    around quoted cells. blank: whether a space or a tab may be in a cell.
    """

    buffer: NDArray
    starts: NDArray
    ends: NDArray
    blank: bool

    def at(self, row: int, column: int) -> bytes:
        """One cell, as it stands in the file but for the quotes around it."""
        return self.buffer[self.starts[row, column] : self.ends[row, column]].tobytes()


def cells(text: bytes, delimiter: int, width: int | None = None) -> Cells:
    """The cells of whole lines, each with ``width`` of them (None: as many as the first line).

    text: begins outside quotes; the last line may lack its newline. Empty lines are skipped; a carriage return before a
    newline is no part of its cell. Raises BadText for a row of another width, a quote out of place, one that is never
    closed, and any other carriage return outside quotes.
    """
    buffer = padded(text if text.endswith(b"\n") else text + b"\n")
    newlines = buffer == NEWLINE
    separators = newlines | (buffer == delimiter)
    quotes = buffer == QUOTE if b'"' in text else None
    if quotes is not None:
        # Within a quoted cell the number of quotes before is odd; a doubled quote leaves that as it is.
        outside = ~np.logical_xor.accumulate(quotes)
        separators &= outside
        newlines &= outside
        if not outside[-1]:
            raise _never_closed(buffer, delimiter, newlines, width)
    ends = places(separators)
    starts = np.empty_like(ends)
    starts[:1] = PADDING
    starts[1:] = ends[:-1] + 1
    starts, ends, last = _full_lines(buffer, newlines, starts, ends, width)
    if b"\r" in text:
        ended = (buffer[ends[last] - 1] == RETURN) & (ends[last] > starts[last])
        returns = buffer == RETURN
        if np.count_nonzero(returns) != np.count_nonzero(ended):
            # Most often they belong to empty lines, or stand in quotes.
            returns[:-1] &= buffer[1:] != NEWLINE
            if quotes is not None:
                returns &= ~np.logical_xor.accumulate(quotes)
            if returns.any():
                raise _unended(int(np.count_nonzero(ends[last] < np.flatnonzero(returns)[0])))
        ends[last] -= ended
    if quotes is not None:
        astray = _astray(buffer, delimiter)
        if astray is not None:
            raise _misplaced(int(np.count_nonzero(ends[last] < astray)))
        # What begins with a quote ends with one.
        quoted = quotes[starts]
        starts += quoted
        ends -= quoted
    shape = (last.size, int(last[0]) + 1 if last.size else width or 0)
    blank = any(mark in text for mark in BLANKS if mark != delimiter or quotes is not None)
    return Cells(buffer, starts.reshape(shape), ends.reshape(shape), blank)


def places(marks: NDArray) -> NDArray:
    """``np.flatnonzero`` of as many bytes as a padded text has: to look at pairs takes half as long, but for cells that
    are empty.
    """
    pairs = marks.view("<u2")
    found = np.flatnonzero(pairs != 0)
    second = pairs.take(found)
    if int(second.max(initial=0)) > ONLY_SECOND:
        return np.flatnonzero(marks)
    second >>= BYTE
    found <<= 1
    found += second
    return found


def _full_lines(
    buffer: NDArray, newlines: NDArray, starts: NDArray, ends: NDArray, width: int | None
) -> tuple[NDArray, NDArray, NDArray]:
    """The cells but for those of empty lines, and the number of each line's last cell."""
    if width is not None and width > 1 and ends.size % width == 0:
        # The usual case at little cost: as many newlines as lines, each where a line should end.
        last = np.arange(width - 1, ends.size, width)
        if np.count_nonzero(newlines) == last.size and bool(newlines[ends[last]].all()):
            return starts, ends, last
    last: NDArray = np.flatnonzero(newlines[ends])
    widths: NDArray = np.diff(last, prepend=-1)
    length = ends[last] - starts[last]
    empty = (widths == 1) & ((length == 0) | ((length == 1) & (buffer[starts[last]] == RETURN)))
    if empty.any():
        kept = np.ones(ends.size, np.bool_)
        kept[last[empty]] = False
        starts, ends, widths = starts[kept], ends[kept], widths[~empty]
        last = np.cumsum(widths) - 1
    if widths.size:
        wanted = int(widths[0]) if width is None else width
        wrong = np.flatnonzero(widths != wanted)
        if wrong.size:
            row = int(wrong[0])
            raise BadText(
                row,
                None,
                f"has {widths[row]} cells; the first line has {wanted}",
                "Quote cells that contain the delimiter.",
            )
    return starts, ends, last


def _astray(buffer: NDArray, delimiter: int) -> int | None:
    """The place of the first quote that is neither at an end of its cell nor one of two in a quoted cell."""
    places = np.flatnonzero(buffer == QUOTE)
    opening, closing = places[::2], places[1::2]
    before, after = buffer[opening - 1], buffer[closing + 1]
    opens = (before == delimiter) | (before == NEWLINE) | (before == QUOTE) | (opening == PADDING)
    returns = (after == RETURN) & (buffer[np.minimum(closing + 2, buffer.size - 1)] == NEWLINE)
    closes = (after == delimiter) | (after == NEWLINE) | (after == QUOTE) | returns
    wrong = [*opening[~opens][:1].tolist(), *closing[~closes][:1].tolist()]
    return min(wrong, default=None)


def _misplaced(row: int) -> BadText:
    return BadText(
        row, None, "has a quote in the middle of a cell", 'Quote the cell and double its quotes: "a 5"" pipe".'
    )


def _unended(row: int) -> BadText:
    return BadText(
        row,
        None,
        "has a carriage return in its middle, without a newline after it",
        "End all lines alike; or quote the cell that it belongs to.",
    )


def _never_closed(buffer: NDArray, delimiter: int, newlines: NDArray, width: int | None) -> BadText:
    """What is wrong with text that ends inside quotes: mostly, a quote long before that is out of place."""
    astray = _astray(buffer, delimiter)
    place = int(np.flatnonzero(buffer == QUOTE)[-1]) if astray is None else astray
    ends = np.flatnonzero(newlines[:place])
    before = buffer[PADDING : int(ends[-1]) + 1].tobytes() if ends.size else b""
    # Whatever is wrong with the lines before is due first.
    row = len(cells(before, delimiter, width).starts)
    if astray is not None:
        return _misplaced(row)
    return BadText(row, None, "opens a quote that is never closed", "Close it; the file may have been cut off.")
