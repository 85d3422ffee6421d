"""The host of the round machine in a simulation: performs its effects in memory."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation import engine
from coterie.aggregation.evaluate import read_evaluation
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.history import History, RoundRecord
from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.progress import Finish, Progress, StartRound, after_round, configure, first_round
from coterie.aggregation.server_optimizers import State
from coterie.client_sdk.device.trainers.base import LocalTask, Tensors, Trainer, TrainOptions
from coterie.errors import InternalError, UpdateRefused
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.update import read_update
from coterie.simulation.collect import Collector, Streamed
from coterie.simulation.engines.engine import Engine
from coterie.simulation.population import Client, Population
from coterie.simulation.versions import Versions
from coterie.simulation.work import Assignment

Watch = Callable[[int, Literal["train", "evaluate"], int, int], None]
"""(round, what clients do, how many have done it, of how many)."""


@dataclass
class Traffic:
    """Bytes that would have crossed the wire in one round: updates up; weights, and a plan to each newcomer, down."""

    up: int = 0
    down: int = 0


@dataclass
class Rounds:
    """A simulation under way. The mutable fields are what a checkpoint keeps, and what the open round has so far."""

    experiment: Experiment
    plan: Plan
    frozen: Tensors
    population: Population
    engine: Engine
    trainer: Trainer
    versions: Versions
    scratch: Path
    progress: Progress
    rows: Mapping[str, NDArray[Any]] | None
    threads: int = 1
    watch: Watch = lambda round, kind, done, total: None
    server_state: State = field(default_factory=dict[str, NDArray[Any]])
    informed: set[int] = field(default_factory=set[int])
    records: list[RoundRecord] = field(default_factory=list[RoundRecord])
    _pending: dict[int, Tensors] = field(default_factory=dict[int, "Tensors"])
    _next_state: State | None = None
    _collector: Collector | None = None
    _traffic: Traffic = field(default_factory=Traffic)

    def run(self, on_round: Callable[[RoundRecord], None]) -> History:
        """The rounds that are left. on_round: called after each, when its outcome is this value's."""
        policy = self.experiment.rounds
        if self.progress.finished is not None:
            return self._history(self.progress.finished.value)
        ready, action = first_round(self.progress, policy)
        while isinstance(action, StartRound):
            begun = time.monotonic()
            self._traffic = Traffic()
            round = self._round(action)
            self.progress, action = after_round(ready, round, policy)
            ready = self.progress
            if isinstance(action, StartRound):
                # Between rounds, so that whoever continues from here begins the next one.
                self.progress = _before(self.progress)
            self.versions.retain((self.progress.current, self.progress.kept))
            record = RoundRecord.of(
                round,
                bytes_up=self._traffic.up,
                bytes_down=self._traffic.down,
                seconds=time.monotonic() - begun,
            )
            self.records.append(record)
            on_round(record)
        return self._history(action.reason.value)

    def _history(self, reason: str) -> History:
        return History(tuple(self.records), reason, self.progress.kept)
