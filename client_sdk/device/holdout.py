"""Which of a device's rows are held out: never trained on, kept for evaluation."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from coterie.draws import held_out
from coterie.protocol.arrays import ArrayDict


def split(arrays: Mapping[str, NDArray[Any]], share: float) -> tuple[ArrayDict, ArrayDict]:
    """(rows to train on, rows held out) of arrays of one common length."""
    mask = held_out(len(next(iter(arrays.values()))), share)
    return {name: array[~mask] for name, array in arrays.items()}, {name: array[mask] for name, array in arrays.items()}
