"""What a report reads of a run: `coterie.aggregation.history.History` is one."""

from collections.abc import Iterator
from typing import Protocol

from coterie.aggregation.record import RoundRecord


class ReportedRun(Protocol):
    """The rounds of a run in order, and why it ended."""

    @property
    def reason(self) -> str | None:
        """Why it ended; None while it goes on."""
        ...

    @property
    def committed(self) -> tuple[RoundRecord, ...]:
        """The rounds that made a version."""
        ...

    @property
    def final(self) -> RoundRecord | None:
        """The last committed round."""
        ...

    def __iter__(self) -> Iterator[RoundRecord]: ...

    def __len__(self) -> int: ...

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """(round, value) wherever the metric was measured."""
        ...

    def to_csv(self) -> str:
        """A table with one line per round."""
        ...
