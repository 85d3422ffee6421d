"""How a metric differs between clients, as sums: nobody's own value need be seen.

Each evaluating client counts itself once for each metric, at the grid value nearest to its mean; the counts are a
section of its update that adds over clients, edges and masks like every other. The worst decile of clients is read from
the counts alone.

The grid is the same everywhere and never changes: 0, and binary fractions whose distance grows with their size. The
table lists the octaves ``[2**e, 2**(e+1))`` with the number of steps in each; beyond both ends a mean counts at the
outermost value. Between 1/8 and 1, where accuracies lie, steps are 1/128 apart, so a value read from counts is off by
at most 1/256; elsewhere by at most 1/16 of itself, below zero by 1/8 of itself.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.protocol.metrics import CLIENTS, EXAMPLES, MetricSums
from coterie.protocol.sections import SectionSpec

SECTION: Final = "clients"
_OCTAVES: Final = {
    **dict.fromkeys(range(-13, -3), 8),
    -3: 16,
    -2: 32,
    -1: 64,
    **dict.fromkeys(range(4), 16),
    **dict.fromkeys(range(4, 14), 8),
}
_NEGATIVE_STEPS: Final = 4


def _grid() -> npt.NDArray[np.float64]:
    above = [2.0**octave * (1 + step / steps) for octave, steps in _OCTAVES.items() for step in range(steps)]
    below = [-(2.0**octave) * (1 + step / _NEGATIVE_STEPS) for octave in _OCTAVES for step in range(_NEGATIVE_STEPS)]
    top = 2.0 ** (max(_OCTAVES) + 1)
    return np.array(sorted([-top, *below, 0.0, *above, top]), np.float64)


GRID: Final = _grid()
"""The values that means are rounded to, rising; every one is exact in float32."""
_BETWEEN: Final = (GRID[1:] + GRID[:-1]) / 2


@dataclass(frozen=True, kw_only=True)
class Spread:
    """One metric over clients, each counting once whatever its number of examples.

    worst_decile: the mean over the worst tenth of the clients, at least one: those with the highest values for a loss
        or an error, with the lowest for everything else (see `lower_is_better`).
    best_decile: the other end.
    deviation: the standard deviation between clients. Each is as exact as the grid.
    """

    clients: int
    worst_decile: float
    median: float
    best_decile: float
    deviation: float

    def to_dict(self) -> dict[str, float]:
        """The fields by name."""
        return {
            "clients": self.clients,
            "worst_decile": self.worst_decile,
            "median": self.median,
            "best_decile": self.best_decile,
            "deviation": self.deviation,
        }

    @staticmethod
    def from_dict(value: Mapping[str, float]) -> "Spread":
        """The inverse of `to_dict`."""
        return Spread(
            **{name: value[name] for name in Spread.__dataclass_fields__ if name != "clients"},
            clients=int(value["clients"]),
        )


def section(metrics: Sequence[str]) -> SectionSpec:
    """The section of an evaluation's update beside its metric sums: one histogram per metric but ``examples``, in
    their order, each over the grid.
    """
    return SectionSpec.extra(SECTION, len(_names_without_examples(metrics)) * len(GRID), value_range=(0.0, 1.0))


def histogram(metrics: Sequence[str], sums: MetricSums) -> npt.NDArray[np.float32]:
    """What one client puts into that section, `[(len(metrics) - 1) * len(GRID)]`: a one at each metric's mean.

    A mean halfway between two values of the grid counts at the lower one. Without examples all is zero.
    """
    named = _names_without_examples(metrics)
    counts = np.zeros((len(named), len(GRID)), np.float32)
    means = sums.means()
    if means:
        places = np.searchsorted(_BETWEEN, [means[name] for name in named], side="left")
        counts[np.arange(len(named)), places] = 1.0
    return counts.reshape(-1)


def count_sums(metrics: Sequence[str], vector: npt.NDArray[np.float32], *, clients: int = 1) -> MetricSums:
    """The counts of a section as named sums, ``clients/<metric>/<place on the grid>``, absent where nobody counts: they
    add with the metric sums wherever those go.

    Raises errors.UpdateRefused (``metric_invalid``) unless each metric counts every one of ``clients`` clients once.
    """
    named = _names_without_examples(metrics)
    counts = np.asarray(vector, np.float64).reshape(len(named), len(GRID))
    if (counts != np.round(counts)).any() or (counts < 0).any() or (counts.sum(axis=1) != clients).any():
        raise errors.UpdateRefused(
            f"Section {SECTION!r} must count every client once for each metric, here {clients}.", code="metric_invalid"
        )
    rows, places = np.nonzero(counts)
    return MetricSums(
        {
            f"{CLIENTS}{named[row]}/{place}": float(counts[row, place])
            for row, place in zip(rows.tolist(), places.tolist(), strict=True)
        }
    )


def clients(vector: npt.NDArray[np.float32]) -> int:
    """How many clients a section counts for its first metric."""
    return round(float(vector[: len(GRID)].sum(dtype=np.float64)))


def uncounted(metrics: Sequence[str], sums: MetricSums) -> npt.NDArray[np.float64]:
    """The inverse of `count_sums`: the section of an accumulator over the clients that the sums count."""
    named = {name: row for row, name in enumerate(_names_without_examples(metrics))}
    counts = np.zeros((len(named), len(GRID)), np.float64)
    for name, value in sums.sums.items():
        if name.startswith(CLIENTS):
            metric, _, place = name.removeprefix(CLIENTS).rpartition("/")
            counts[named[metric], int(place)] = value
    return counts.reshape(-1)


def spreads(sums: Mapping[str, float]) -> dict[str, Spread]:
    """The spread of each metric whose counts are among the sums; empty where no client counted."""
    counts: dict[str, npt.NDArray[np.float64]] = {}
    for name, value in sums.items():
        if name.startswith(CLIENTS):
            metric, _, place = name.removeprefix(CLIENTS).rpartition("/")
            counts.setdefault(metric, np.zeros(len(GRID)))[int(place)] = value
    return {metric: _spread(metric, found) for metric, found in counts.items() if found.sum() > 0}


def lower_is_better(metric: str) -> bool:
    """Whether less of a metric is better: losses, errors and perplexities, by their names."""
    return metric.rpartition("_")[2] in ("loss", "error", "perplexity", "mse", "mae", "rmse")


def _names_without_examples(metrics: Sequence[str]) -> list[str]:
    return [name for name in metrics if name != EXAMPLES]


def _spread(metric: str, counts: npt.NDArray[np.float64]) -> Spread:
    clients = int(counts.sum())
    tenth = math.ceil(clients / 10)
    low, high = _mean_of_first(counts, GRID, tenth), _mean_of_first(counts[::-1], GRID[::-1], tenth)
    mean = float(counts @ GRID) / clients
    worst, best = (high, low) if lower_is_better(metric) else (low, high)
    return Spread(
        clients=clients,
        worst_decile=worst,
        median=_median(counts, clients),
        best_decile=best,
        deviation=math.sqrt(float(counts @ (GRID - mean) ** 2) / clients),
    )


def _mean_of_first(counts: npt.NDArray[np.float64], values: npt.NDArray[np.float64], number: int) -> float:
    taken = np.diff(np.minimum(np.cumsum(counts), number), prepend=0.0)
    return float(taken @ values) / number


def _median(counts: npt.NDArray[np.float64], clients: int) -> float:
    ranks = np.searchsorted(np.cumsum(counts), [(clients + 1) // 2, clients // 2 + 1], side="left")
    return float(GRID[ranks].mean())
