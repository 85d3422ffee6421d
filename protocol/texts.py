"""Cells of text as numbers: their bytes, or their places in a vocabulary."""

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from coterie.protocol.arrays import AnyArray
from coterie.protocol.canonical import canonical_json


def texts_of(cells: AnyArray) -> list[str] | None:
    """Each cell's text, without spaces at its ends. A number has the text that canonical JSON gives it (RFC 8785): 7.0
    is ``7``. A missing cell (None, or a number that is not finite) is the empty text. None for an array that holds
    neither text nor numbers.
    """
    kind = cells.dtype.kind
    if kind not in "biufUSO":
        return None
    return [text_of(cell) for cell in cast(list[object], cells.tolist())]


def as_bytes(texts: Sequence[str], length: int) -> npt.NDArray[np.uint8]:
    """``[N, length]``: the UTF-8 bytes of each text and zeros after them; zeros alone for one that is longer."""
    # What Python alone takes for text, half of a surrogate pair, has no bytes and counts as a question mark.
    encoded = (text.encode("utf-8", "replace") for text in texts)
    joined = b"".join(data.ljust(length, b"\0") if len(data) <= length else bytes(length) for data in encoded)
    return np.frombuffer(joined, np.uint8).reshape(len(texts), length).copy()


def as_places(texts: Sequence[str], vocabulary: Sequence[str]) -> npt.NDArray[np.int32]:
    """``[N]``: the place of each text in the vocabulary, from 1; 0 for a text that is not in it."""
    places = {text: place for place, text in enumerate(vocabulary, start=1)}
    return np.array([places.get(text, 0) for text in texts], np.int32)


def text_of(cell: object) -> str:
    """One cell's text, as in `texts_of`."""
    match cell:
        case bytes():
            return cell.decode("utf-8", "replace").strip()
        case bool() | int():
            return str(cell).lower()
        case float():
            return canonical_json(cell).decode() if math.isfinite(cell) else ""
        case None:
            return ""
        case _:
            return str(cell).strip()
