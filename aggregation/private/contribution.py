"""What a client puts in of a training under a promise of differential privacy, before any noise: all of it, or zeros.

Whether training gave finite numbers depends on rows, and whoever chooses the weights chooses the question. So nothing
that leaves a client may depend on it but under noise: an update with anything that cannot be used is a vector of zeros,
metric sums are zeros, the weight is one and steps are none, whatever became of the training.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.protocol.arrays import ArraysByName, FloatArrays
from coterie.protocol.finite import all_finite
from coterie.protocol.metrics import METRICS
from coterie.protocol.sections import SectionSpec

WEIGHT, STEPS = 1, 0
"""What every update under a promise claims."""
NOT_FINITE = frozenset(("metric_invalid", "not_finite"))
"""The codes of errors that say no more than that training gave numbers which are not finite."""


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """What a client sends under a promise of privacy.

    sections: one vector for each of the plan's.
    state: the client state to keep if they count.
    usable: whether they are what was trained, and no zeros in its place; for the client alone.
    """

    sections: dict[str, npt.NDArray[Any]] = field(repr=False)
    state: FloatArrays = field(repr=False)
    usable: bool


def contribution(
    specs: Sequence[SectionSpec], sections: ArraysByName, *, before: FloatArrays, after: FloatArrays
) -> Contribution:
    """The sections of a training, of which those that are not about metrics are zeros if any of them is not finite,
    leaves its public range or has another length.

    before, after: the client state as it was, and as training left it; it stays as it was if either cannot be used.
    """
    if not all(_fits(spec, sections.get(spec.name)) for spec in specs if spec.name != METRICS):
        return zeros(specs, before)
    kept = after if all(all_finite(value.reshape(-1)) for value in after.values()) else before
    silent = zeros(specs, before).sections
    told = {spec.name: silent[spec.name] if spec.name == METRICS else sections[spec.name] for spec in specs}
    return Contribution(sections=told, state=kept, usable=True)


def zeros(specs: Sequence[SectionSpec], before: FloatArrays) -> Contribution:
    """What stands in for a training that cannot be used: zeros, or the numbers nearest to them in a public range."""
    return Contribution(sections={spec.name: _zeros_of(spec) for spec in specs}, state=before, usable=False)


def _fits(spec: SectionSpec, vector: npt.NDArray[Any] | None) -> bool:
    if vector is None or vector.shape != (spec.length,) or not all_finite(vector):
        return False
    if spec.value_range is None:
        return True
    low, high = spec.value_range
    return bool(((vector >= low) & (vector <= high)).all())


def _zeros_of(spec: SectionSpec) -> npt.NDArray[np.float32]:
    low, high = spec.value_range or (0.0, 0.0)
    return np.full(spec.length, min(max(0.0, low), high), np.float32)
