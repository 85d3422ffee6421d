"""An audit by canary clients: their updates go through the whole path of a round (encoding, clipping, secret sum,
noise, server optimizer), as those of any client do, and are then looked for in the model.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.history import History
from coterie.aggregation.plan.compile import compile_plan
from coterie.aggregation.plan.manifest import DELTA, METRICS
from coterie.aggregation.private.claims import claim_of
from coterie.client_sdk.device.data import DataSource
from coterie.client_sdk.device.trainers.base import LocalResult, LocalTask, LocalWork, Trainer
from coterie.errors import ExperimentError
from coterie.privacy.audit.canaries import Canaries
from coterie.privacy.audit.one_run import Audit
from coterie.privacy.dp.privacy import UserLevel
from coterie.privacy.secagg.entropy import Entropy
from coterie.protocol.metrics import MetricSums
from coterie.simulation.engines.naming import PLAN_TRAINER, resolve_trainer
from coterie.simulation.population import VirtualClients
from coterie.simulation.simulation import Listener, simulate_full
from coterie.simulation.work import Assignment, local_task


@dataclass(frozen=True)
class CanaryTrainer:
    """A trainer that gives the clients from `first` on a canary's update of this norm, and trains the others."""

    inner: Trainer
    canaries: Canaries
    first: int
    norm: float
    seed: int
    _rounds: dict[int, dict[int, int]] = field(default_factory=dict[int, dict[int, int]], compare=False, repr=False)

    def train(self, work: LocalWork) -> LocalResult:
        """The inner trainer's result; a canary's, where the task is one's."""
        honest = self.inner.train(work)
        canary = self._seeds(work.task).get(work.task.seed)
        if canary is None:
            return honest
        sections: dict[str, Any] = {name: np.zeros_like(values) for name, values in honest.sections.items()}
        size = work.plan.manifest.layout.size
        sections[DELTA] = (self.norm * self.canaries.direction(canary, size)).astype(np.float32)
        sections[METRICS] = honest.sections[METRICS]
        return replace(honest, sections=sections)

    def evaluate(self, work: LocalWork) -> MetricSums:
        """The inner trainer's."""
        return self.inner.evaluate(work)

    def _seeds(self, task: LocalTask) -> Mapping[int, int]:
        """The seeds by which the canaries' tasks of a round are known → the canary."""
        if task.round not in self._rounds:
            told = Assignment(
                experiment=task.experiment, round=task.round, base="", hyper={}, seed=self.seed, weight_cap=1
            )
            places = enumerate(self.canaries.clients, start=self.first)
            self._rounds[task.round] = {local_task(told, "train", place).seed: canary for place, canary in places}
        return self._rounds[task.round]


@dataclass(frozen=True, kw_only=True)
class CanaryAudit:
    """What was proven, and the run that it was proven from."""

    audit: Audit
    history: History


def audit_by_canaries(
    experiment: Experiment,
    clients: Sequence[DataSource],
    *,
    canaries: int = 100,
    norm: float | None = None,
    delta: float = 1e-5,
    claimed: float | None = None,
    trainer: Trainer | str | None = None,
    workers: int = 1,
    on_event: Listener = lambda event: None,
    entropy: Entropy = os.urandom,
) -> CanaryAudit:
    """Run an experiment with canary clients among its clients, and bound its ε from below (95 %).

    Half of the canaries, by coins, join the clients; give a cohort that takes most of them, since a canary that is
    never chosen proves nothing. norm: of a canary's update; the clip where the experiment has one, else 1.
    claimed: the ε to be held against; what the experiment's `UserLevel` claims when None, and nothing without one.
    delta: that of the `UserLevel` where there is one. The run is by threads, since a canary is known by its task.
    Raises errors.ExperimentError (``audit_nothing``) when no round was committed, and what `simulate_full` raises.
    """
    privacy = experiment.privacy
    if isinstance(privacy, UserLevel):
        delta = privacy.delta
        norm = privacy.clip if norm is None else norm
    marked = Canaries.toss(canaries, entropy=entropy)
    honest = len(clients)
    everyone = VirtualClients(honest + len(marked.clients), lambda number: clients[number % honest])
    inner = resolve_trainer(PLAN_TRAINER if trainer is None else trainer)
    watching = CanaryTrainer(inner, marked, honest, 1.0 if norm is None else norm, experiment.seed)
    compiled = compile_plan(experiment)
    told = claim_of(experiment, length=compiled.plan.manifest.layout.size) if isinstance(privacy, UserLevel) else None
    if claimed is None and told is not None:
        claimed = told.claim.epsilon
    result = simulate_full(experiment, everyone, trainer=watching, workers=workers, on_event=on_event)
    if not result.history.committed:
        raise ExperimentError(
            "No round of the audited run was committed, so there is nothing to look at.", code="audit_nothing"
        )
    names = result.plan.manifest.layout.names
    way = [(result.weights[name].astype(np.float64) - compiled.initial[name]).reshape(-1) for name in names]
    return CanaryAudit(audit=marked.audit(np.concatenate(way), delta, claimed=claimed), history=result.history)
