"""Which of a device's rows are held out: never trained on, kept for evaluation."""

from typing import overload

from coterie.compute.data.streamed_rows import StreamedRows
from coterie.compute.data.supply import AnyRows, Arrays, row_count
from coterie.draws import held_out
from coterie.protocol.arrays import ArrayDict


@overload
def split(rows: Arrays, share: float) -> tuple[ArrayDict, ArrayDict]: ...
@overload
def split(rows: AnyRows, share: float) -> tuple[AnyRows, AnyRows]: ...
def split(rows: AnyRows, share: float) -> tuple[AnyRows, AnyRows]:
    """(rows to train on, rows held out), by their positions alone."""
    mask = held_out(row_count(rows), share)
    if isinstance(rows, StreamedRows):
        return rows.select(~mask), rows.select(mask)
    return {name: array[~mask] for name, array in rows.items()}, {name: array[mask] for name, array in rows.items()}
