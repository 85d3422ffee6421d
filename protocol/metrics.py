"""Metrics as named sums over examples: they add over batches, clients and masks, and only the reader divides."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from coterie import errors

METRICS = "metrics"
"""The section of an update that holds metric sums."""
EXAMPLES = "examples"
CLIENTS = "clients/"
"""Names that begin so count clients (see `coterie.protocol.spread`); they are no sums over examples."""


@dataclass(frozen=True)
class MetricSums:
    """Sums by name, ``examples`` (the weight summed over) among them.

    Guarantees: `merge` is commutative, has `MetricSums()` as its neutral element, and treats an absent name as 0;
    values are finite float64. Raises errors.InputError (code ``metric_invalid``) for NaN or infinity.
    """

    sums: Mapping[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        values = {name: float(value) for name, value in self.sums.items()}
        for name, value in values.items():
            if not math.isfinite(value):
                raise errors.InputError(
                    f"The sum of metric {name!r} is {value}; it must be finite.", code="metric_invalid"
                )
        object.__setattr__(self, "sums", values)

    @property
    def examples(self) -> float:
        """The weight that the sums run over."""
        return self.sums.get(EXAMPLES, 0.0)

    def add(self, values: Mapping[str, float]) -> "MetricSums":
        """These sums plus `values`, name by name."""
        return MetricSums({n: self.sums.get(n, 0.0) + float(values.get(n, 0.0)) for n in (*self.sums, *values)})

    def merge(self, other: "MetricSums") -> "MetricSums":
        """The sums over both sets of examples."""
        return self.add(other.sums)

    def means(self) -> dict[str, float]:
        """Each sum over examples divided by their number; empty when there were none, never NaN."""
        if self.examples <= 0:
            return {}
        means = {name: value / self.examples for name, value in self.sums.items() if name != EXAMPLES}
        return {name: value for name, value in means.items() if not name.startswith(CLIENTS)}

    def to_vector(self, names: Sequence[str]) -> npt.NDArray[np.float64]:
        """The sums as float64 `[len(names)]` in the order of `names`; an absent name is 0."""
        return np.array([self.sums.get(name, 0.0) for name in names], np.float64)

    @staticmethod
    def from_vector(names: Sequence[str], vector: npt.NDArray[np.float64]) -> "MetricSums":
        """The inverse of `to_vector`. Raises errors.InputError when the lengths differ."""
        if vector.shape != (len(names),):
            raise errors.InputError(
                f"{len(names)} metric names need a vector of that length; got {list(vector.shape)}.",
                code="metric_invalid",
            )
        return MetricSums(dict(zip(names, vector.tolist(), strict=True)))
