"""A finished round as one row: the same for events, for lists and for histories."""

from typing import Any

from coterie.aggregation.engine import Round
from coterie.aggregation.history import RoundRecord


def round_record(value: Round, *, bytes_up: int, bytes_down: int, seconds: float) -> dict[str, Any]:
    """The row of an ended round, and the engine's own words about it.

    bytes_up: bodies of uploads received for its tasks, refused and repeated ones included. bytes_down: see
    `coterie.server.traffic`.
    seconds: from its begin to its end, by the wall clock.
    """
    record = RoundRecord.of(value, bytes_up=bytes_up, bytes_down=bytes_down, seconds=round(seconds, 3))
    return {**record.to_dict(), "detail": value.detail}
