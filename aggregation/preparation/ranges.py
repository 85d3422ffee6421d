"""The sums of a federated calibration: how often the numbers of each tensor fall into bins. Needs no compiler.

The first round counts in bins of every magnitude, the second in even bins of the range that all numbers of the first
lie in: see `bins`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coterie.aggregation.analytics.checks import whole
from coterie.aggregation.analytics.rule import LARGEST_EXACT
from coterie.aggregation.preparation.bins import Range
from coterie.aggregation.reducers import Vector
from coterie.protocol.arrays import FloatArrays

NAME = "calibrate"
BINS = 2048
"""As many as `coterie.compute.quant.Histogram` has."""
MOST_TENSORS = 4_096


@dataclass(frozen=True, kw_only=True, eq=False)
class RangesRule:
    """See `coterie.aggregation.analytics.rule.QuerySums`.

    tensors: how many there are.
    """

    parameters: dict[str, float]
    settings: FloatArrays
    advance: Callable[[Vector, FloatArrays, int], FloatArrays]
    largest: int
    tensors: int
    name: str = NAME
    rounds: int = 2
    whole: bool = True
    clipped: bool = False
    bound: None = None
    samples: bool = True

    @property
    def size(self) -> int:
        """How many sums there are."""
        return self.tensors * BINS


def calibrate_rule(tensors: float, largest: float) -> RangesRule:
    """The rule of a calibration of so many tensors.

    largest: see `Sums`.
    Raises errors.ExperimentError (``query_invalid``).
    """
    count = whole(NAME, "tensors", tensors, least=1, most=MOST_TENSORS)
    reach = whole(NAME, "largest", largest, least=1, most=LARGEST_EXACT)

    def advance(total: Vector, settings: FloatArrays, round: int) -> FloatArrays:
        if round > 1:
            return settings
        return Range.of_settings(settings).narrowed(total.reshape(count, BINS), 0.0, tail=0.0, floor=0.0).settings()

    return RangesRule(
        parameters={"tensors": float(count), "largest": float(reach)},
        settings=Range.everything(count, BINS).settings(),
        advance=advance,
        largest=reach,
        tensors=count,
    )
