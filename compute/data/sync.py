"""Sync points: where a pipeline waits to hear from its consumer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from coterie.errors import ArgumentValueError, InputError


@dataclass(frozen=True)
class SyncPoint:
    """A value that operations read as ``context.signals[name]``, renewed by the consumer after every ``every`` batches.

    initial: its value until then.
    """

    name: str
    every: int
    initial: Any


@dataclass(frozen=True)
class Signals:
    """The values of all sync points as they are, and the updates that wait for the next time that they are due."""

    points: tuple[SyncPoint, ...]
    values: Mapping[str, Any]
    updates: Mapping[str, Any]

    @staticmethod
    def first(points: tuple[SyncPoint, ...]) -> Signals:
        """Before the first batch."""
        return Signals(points, {point.name: point.initial for point in points}, {})

    def updated(self, name: str, value: Any) -> Signals:
        """With an update to come. Raises ArgumentValueError for a name that no sync point has."""
        if name not in self.values:
            raise ArgumentValueError(
                f"There is no sync point {name!r}; there are {', '.join(self.values) or 'none'}.",
                hint="Make one with sync_wait(name, every=…, initial=…).",
            )
        return Signals(self.points, self.values, {**self.updates, name: value})

    def room(self, step: int) -> int | None:
        """Batches from this one on that may be made before an update is due; None for no limit."""
        return min((point.every - step % point.every for point in self.points), default=None)

    def due(self, step: int) -> tuple[str, ...]:
        """The points whose update is due before this batch."""
        return tuple(point.name for point in self.points if step and step % point.every == 0)

    def passed(self, names: Iterable[str], step: int) -> Signals:
        """Behind these points. Raises InputError for a point without an update."""
        if missing := [name for name in names if name not in self.updates]:
            raise InputError(
                f"Batch {step} waits for the sync point {missing[0]!r}, which has not been updated.",
                hint=f"Call sync_update({missing[0]!r}, value) before asking for that batch.",
                code="data_sync",
            )
        taken = {name: self.updates[name] for name in names}
        kept = {name: value for name, value in self.updates.items() if name not in taken}
        return Signals(self.points, {**self.values, **taken}, kept)
