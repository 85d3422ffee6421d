"""The most that a model may cost."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import isfinite
from numbers import Real
from typing import cast

from coterie.compute.nn.zoo.cost import Cost
from coterie.errors import ArgumentValueError


def measures(cost: Cost) -> Mapping[str, float]:
    """A cost in the units of limits: milliseconds and 10⁶ bytes, by the limits' names."""
    return {
        "latency_ms": cost.latency_us / 1e3,
        "step_ms": cost.step_us / 1e3,
        "size_mb": cost.size_bytes / 1e6,
        "memory_mb": cost.memory_bytes / 1e6,
    }


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most of each measure, inclusive; None for no limit. Raises ArgumentValueError for a limit that is no finite
    number above 0.
    """

    latency_ms: float | None = None
    step_ms: float | None = None
    size_mb: float | None = None
    memory_mb: float | None = None

    def __post_init__(self) -> None:
        for name, limit in self.given.items():
            if (
                isinstance(limit, bool)
                or not isinstance(cast(object, limit), Real)
                or not (isfinite(limit) and limit > 0)
            ):
                raise ArgumentValueError(f"{name} must be a number above 0, got {limit!r}.")

    @property
    def given(self) -> Mapping[str, float]:
        """The limits that there are, by name."""
        named = ((field.name, cast("float | None", getattr(self, field.name))) for field in fields(self))
        return {name: limit for name, limit in named if limit is not None}

    def within(self, memory_bytes: int | None) -> "Limits":
        """These limits on a device that has so much memory."""
        if memory_bytes is None:
            return self
        most = memory_bytes / 1e6
        return replace(self, memory_mb=most if self.memory_mb is None else min(self.memory_mb, most))

    def misses(self, cost: Cost) -> tuple[str, ...]:
        """The limits that a cost does not keep, in words."""
        found = measures(cost)
        return tuple(f"{name} {found[name]:.3g}" for name, limit in self.given.items() if found[name] > limit)

    def __str__(self) -> str:
        return ", ".join(f"{name} ≤ {limit:g}" for name, limit in self.given.items()) or "no limit"
