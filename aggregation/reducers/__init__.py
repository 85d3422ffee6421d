"""Reducers by name. Executors rebuild them from the name, so only names, numbers and bytes cross processes."""

from collections.abc import Mapping
from types import MappingProxyType

from coterie import errors
from coterie.aggregation.reducers.reducer import Accumulator, Chunks, Reducer, Vector
from coterie.aggregation.reducers.sums import MEAN, SUM

__all__ = ["REDUCERS", "Accumulator", "Chunks", "Reducer", "Vector", "reducer"]

REDUCERS: Mapping[str, Reducer] = MappingProxyType({rule.name: rule for rule in (MEAN, SUM)})


def reducer(name: str) -> Reducer:
    """The reducer of that name. Raises errors.ExperimentError (``unknown_reducer``)."""
    if name not in REDUCERS:
        raise errors.ExperimentError(
            f"There is no reducer {name[:64]!r}.", hint=f"Choose one of {', '.join(REDUCERS)}.", code="unknown_reducer"
        )
    return REDUCERS[name]
