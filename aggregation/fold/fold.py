"""What a fold is: four pure functions that turn the usable updates of a round into what the next version is made of.

Coordinator, edge aggregator and simulation bring updates; none of them adds anything up by itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.fold.part import CountedUpdate
from coterie.aggregation.reducers import Vector
from coterie.protocol.arrays import ArraysByName

S = TypeVar("S")
P = TypeVar("P")
RangeWork = Callable[[range], None]
Distribute = Callable[[RangeWork, range], None]
"""Does work at all of these places: at once, or in threads that the host awaits before it touches the state again."""


def at_once(work: RangeWork, places: range) -> None:
    """Do the work here and now."""
    work(places)


@dataclass(frozen=True, kw_only=True)
class Folded:
    """The aggregate of a round.

    sections: of each section of the plan, float64.
    clients, weight: of how many clients it is, and the sum of their weights.
    metrics: the training sums, empty where they are not released.
    freshness: by how much lag has lessened the weight.
    untrained: by section over the layout, the elements that no update covers; a section that is not named is covered
        whole.
    older: the share of the effective weight that was trained on an older version, by its digest.
    state: what the rule and the noise of later rounds need.
    clipped, clamped: how many clients were shortened to a public norm or held to a public range, None where that is not
        known.
    dropped: how many clients of groups that are too small.
    """

    sections: Mapping[str, Vector] = field(repr=False)
    clients: int
    weight: float
    metrics: Mapping[str, float]
    freshness: float = 1.0
    untrained: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict[str, npt.NDArray[np.bool_]], repr=False)
    older: Mapping[str, float] = field(default_factory=dict[str, float])
    state: ArraysByName = field(default_factory=dict[str, npt.NDArray[Any]], repr=False)
    clipped: int | None = None
    clamped: int | None = None
    dropped: int = 0


@dataclass(frozen=True)
class Fold(Generic[S, P]):
    """A commutative monoid over usable updates.

    init() is the neutral element. add(state, parts, spread) takes in updates, merge(a, b) joins two states; both use up
    their first argument, whose vectors go on in what they return. result(state, server) is the aggregate and uses up
    the state; server: the server's state after the last round.
    Guarantees: any grouping and order gives the same aggregate to 1 ulp of float32; an update is added whole or not at
    all. add and merge raise errors.UpdateRefused (``duplicate_task``) before anything is added; result raises what the
    rule raises, and ``zero_weight`` without anything to divide by.
    """

    init: Callable[[], S]
    add: Callable[[S, Sequence[P], Distribute], S]
    merge: Callable[[S, S], S]
    result: Callable[[S, ArraysByName, Distribute], Folded]


@dataclass
class Tally:
    """Who is in a state.

    tasks: of the updates.
    clients: how many, counting those of an accumulator.
    weight, effective: the sum of their weights, before and after lag has lessened them.
    steps: local steps.
    older: the effective weight of updates that were trained on another version than the round's, by its digest.
    """

    tasks: set[str] = field(default_factory=set[str])
    clients: int = 0
    weight: float = 0.0
    effective: float = 0.0
    steps: int = 0
    older: dict[str, float] = field(default_factory=dict[str, float])

    def take(self, parts: Sequence[CountedUpdate]) -> None:
        """Count these updates. Raises errors.UpdateRefused (``duplicate_task``), with none of them counted."""
        self._require_new_tasks([part.task for part in parts])
        for part in parts:
            effective = part.weight * part.freshness
            self.clients += part.clients
            self.weight += part.weight
            self.effective += effective
            self.steps += part.steps
            if part.base is not None:
                self.older[part.base] = self.older.get(part.base, 0.0) + effective

    def join(self, other: "Tally") -> None:
        """Count those of another state too. Raises errors.UpdateRefused (``duplicate_task``)."""
        self._require_new_tasks(sorted(other.tasks))
        self.clients += other.clients
        self.weight += other.weight
        self.effective += other.effective
        self.steps += other.steps
        for base, weight in other.older.items():
            self.older[base] = self.older.get(base, 0.0) + weight

    def shares(self) -> Mapping[str, float]:
        """`Folded.older`."""
        return {base: weight / self.effective for base, weight in sorted(self.older.items())}

    @property
    def freshness(self) -> float:
        """`Folded.freshness`."""
        return self.effective / self.weight if self.weight else 1.0

    def _require_new_tasks(self, tasks: Sequence[str]) -> None:
        known = set(self.tasks)
        for task in tasks:
            if task in known:
                raise errors.UpdateRefused(f"Task {task} has more than one update.", code="duplicate_task")
            known.add(task)
        self.tasks = known
