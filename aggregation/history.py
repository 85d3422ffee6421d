"""What a run of rounds was: its records, and why it ended."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from coterie.aggregation.record import RoundRecord
from coterie.aggregation.report.frame import dataframe
from coterie.aggregation.report.notebook import notebook_html

_COLUMNS = (
    "round", "state", "cause", "accepted", "failed", "evaluation", "bytes_up", "bytes_down", "seconds", "model"
)  # fmt: skip
# Columns that only runs with secret sums or with noise have.
_PRIVATE = ("clipped", "epsilon", "delta")


@dataclass(frozen=True)
class History:
    """The rounds of an experiment in order, why it finished, and its best version."""

    rounds: tuple[RoundRecord, ...] = ()
    reason: str | None = None
    best: str | None = None

    def __iter__(self) -> Iterator[RoundRecord]:
        return iter(self.rounds)

    def __len__(self) -> int:
        return len(self.rounds)

    @property
    def committed(self) -> tuple[RoundRecord, ...]:
        """The rounds that made a version."""
        return tuple(record for record in self.rounds if record.state == "committed")

    @property
    def final(self) -> RoundRecord | None:
        """The last committed round."""
        return self.committed[-1] if self.committed else None

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """(round, value) wherever the metric was measured; ``training.<name>`` for what clients saw while training,
        ``fairness.<name>`` for the mean over the worst decile of clients.
        """
        kind, _, name = metric.rpartition(".")
        read = _CURVES.get(kind)
        tables = [] if read is None else [(record.round, read(record)) for record in self.rounds]
        return [(round, values[name]) for round, values in tables if name in values]

    def to_dicts(self) -> list[dict[str, Any]]:
        """One event line per round."""
        return [record.to_dict() for record in self.rounds]

    @staticmethod
    def from_dicts(
        values: Iterable[Mapping[str, Any]], *, reason: str | None = None, best: str | None = None
    ) -> "History":
        """Read what ``to_dicts`` gave."""
        return History(tuple(RoundRecord.from_dict(value) for value in values), reason, best)

    def _repr_html_(self) -> str:
        """What a notebook shows: the curves and a table."""
        return notebook_html(self)

    def to_csv(self) -> str:
        """A table with one line per round; one column per metric, and one for its mean over the worst decile.

        Where sums were secret or noised, ``clipped``, ``epsilon`` and ``delta`` follow the round's own columns.
        """
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(self._table())
        return text.getvalue()

    def to_dataframe(self) -> Any:
        """The same table as a pandas DataFrame with a row per round, by its number.

        Raises ConfigurationError (``extra_missing``) where pandas is not installed.
        """
        columns, *rows = self._table()
        return dataframe([str(name) for name in columns], rows, index="round")

    def _table(self) -> list[tuple[object, ...]]:
        """The names of the columns, then a row per round."""
        names = sorted({name for record in self.rounds for name in record.metrics})
        spread = sorted({name for record in self.rounds for name in record.fairness})
        own = (*_COLUMNS, *(n for n in _PRIVATE if any(getattr(one, n) is not None for one in self.rounds)))
        table: list[tuple[object, ...]] = [(*own, *names, *(f"{name}_worst_decile" for name in spread))]
        for record in self.rounds:
            worst = {name: found.worst_decile for name, found in record.fairness.items()}
            cells = (getattr(record, name) for name in own)
            means = (record.metrics.get(name) for name in names)
            table.append((*cells, *means, *(worst.get(name) for name in spread)))
        return table


def _worst_deciles(record: RoundRecord) -> Mapping[str, float]:
    return {name: found.worst_decile for name, found in record.fairness.items()}


_CURVES: Mapping[str, Callable[[RoundRecord], Mapping[str, float]]] = {
    "": lambda record: record.metrics,
    "training": lambda record: record.training,
    "fairness": _worst_deciles,
}
