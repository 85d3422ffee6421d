"""A trainer that makes canaries of the last clients of a simulation."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.plan.manifest import DELTA, METRICS
from coterie.aggregation.plan.stage import TaskName
from coterie.client_sdk.device.trainers.base import LocalResult, LocalTask, LocalWork, Trainer
from coterie.privacy.audit.canaries import Canaries
from coterie.protocol.metrics import MetricSums
from coterie.simulation.assignment import Assignment, local_task

Positions = NDArray[np.int64]
"""Positions of elements in a vector."""


@dataclass(frozen=True)
class CanaryTrainer:
    """A trainer that gives the clients from `first` on a canary's update of this norm, or zeros where the canary's coin
    leaves it out, and trains the others.

    places: of the canaries' directions in the change of the weights.
    chosen: which canaries were chosen for a round, written as rounds go by.
    """

    inner: Trainer
    canaries: Canaries
    first: int
    norm: float
    seed: int
    places: Positions
    chosen: dict[int, set[int]] = field(default_factory=dict[int, set[int]], compare=False)
    _rounds: dict[int, dict[int, int]] = field(default_factory=dict[int, dict[int, int]], compare=False, repr=False)
    _like: list[LocalResult] = field(default_factory=list[LocalResult], compare=False, repr=False)

    def check(self, plan: Plan, task: TaskName, threads: int = 1) -> None:
        """As the inner trainer does."""
        self.inner.check(plan, task, threads)

    def train(self, work: LocalWork) -> LocalResult:
        """The inner trainer's result; a canary's, where the task is one's."""
        canary = self._seeds(work.task).get(work.task.seed)
        if canary is None:
            return self.inner.train(work)
        self.chosen.setdefault(work.task.round, set()).add(canary)
        if not self._like:
            # What a client's result looks like; nothing of the training is kept but its measurements.
            self._like.append(self.inner.train(work))
        like = self._like[0]
        sections: dict[str, Any] = {name: np.zeros_like(values) for name, values in like.sections.items()}
        if self.canaries.included[canary]:
            moved = self.norm * self.canaries.direction(canary, len(self.places))
            sections[DELTA][self.places] = moved.astype(np.float32)
        sections[METRICS] = like.sections[METRICS]
        return replace(like, sections=sections)

    def evaluate(self, work: LocalWork) -> MetricSums:
        """The inner trainer's."""
        return self.inner.evaluate(work)

    def _seeds(self, task: LocalTask) -> Mapping[int, int]:
        """The seeds by which the canaries' tasks of a round are known → the canary."""
        if task.round not in self._rounds:
            told = Assignment(
                experiment=task.experiment, round=task.round, base="", hyper={}, seed=self.seed, weight_cap=1
            )
            places = range(len(self.canaries.included))
            self._rounds[task.round] = {
                local_task(told, "train", self.first + canary).seed: canary for canary in places
            }
        return self._rounds[task.round]
