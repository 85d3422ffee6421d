"""The sections of updates seen as one vector."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.aggregation.methods import algorithm
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.reducers import Vector
from coterie.protocol.sections import SectionSpec


def means_of(specs: Sequence[SectionSpec]) -> tuple[SectionSpec, ...]:
    """The sections that are weighted means, in their order."""
    return tuple(spec for spec in specs if spec.reduction == "weighted_mean")


def sums_of(specs: Sequence[SectionSpec]) -> tuple[SectionSpec, ...]:
    """The sections that are sums, in their order."""
    return tuple(spec for spec in specs if spec.reduction == "sum")


def length_of(specs: Sequence[SectionSpec]) -> int:
    """Elements of these sections together."""
    return sum(spec.length for spec in specs)


def split(specs: Sequence[SectionSpec], vector: Vector) -> dict[str, Vector]:
    """The sections of one vector, in their order: views of it."""
    found: dict[str, Vector] = {}
    start = 0
    for spec in specs:
        found[spec.name] = vector[start : start + spec.length]
        start += spec.length
    return found


def join(specs: Sequence[SectionSpec], sections: Mapping[str, npt.NDArray[Any]]) -> Vector:
    """These sections as one new vector, float64."""
    if not specs:
        return np.zeros(0, np.float64)
    return np.concatenate([sections[spec.name].astype(np.float64, copy=False) for spec in specs])


def reads_drift(manifest: Manifest) -> bool:
    """Whether the method reads `Aggregates.drift`."""
    return algorithm(manifest.algorithm.name, manifest.algorithm.parameters).server.reads_drift


def drift_of(weights: npt.NDArray[np.float32], older: Iterable[tuple[npt.NDArray[np.float32], float]]) -> Vector:
    """The mean of base - weights over updates.

    older: the other bases that updates were trained on, each with its share of the effective weight of all.
    """
    now = weights.astype(np.float64)
    drift = np.zeros_like(now)
    for base, share in older:
        drift += share * (base - now)
    return drift
