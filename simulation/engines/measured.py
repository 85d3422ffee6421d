"""Threads or one graph for many clients, whichever was faster on this machine for these clients."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from coterie.protocol.arrays import FloatArrays
from coterie.simulation.assignment import Assignment
from coterie.simulation.engines.batched import LANES, Batched
from coterie.simulation.engines.engine import Engine, Setting
from coterie.simulation.engines.naming import PLAN_TRAINER
from coterie.simulation.engines.threads import Threads
from coterie.simulation.population import Client
from coterie.simulation.work import ClientEvaluation, Trained

# Clients of the first round that both train, twice: the first time loads the graphs.
_TRIED = 2 * LANES


class Fastest:
    """``auto``: both engines train some clients of the first round, whose updates are thrown away; the faster one does
    the work from then on. Which one that is depends on the machine and its load, so a run is repeated, and resumed, to
    rounding only.
    """

    def __init__(self, setting: Setting) -> None:
        self._engines: list[Engine] = [Threads(setting)]
        if setting.trainer == PLAN_TRAINER:
            self._engines.append(Batched(replace(setting, name="batched")))
        self._chosen: Engine | None = None

    def train(self, clients: Sequence[Client], weights: FloatArrays, assignment: Assignment) -> Iterator[Trained]:
        """See `Engine`."""
        if self._chosen is None:
            tried = clients[:_TRIED]
            for engine in self._engines:
                _seconds(engine, tried, weights, assignment)
            self._chosen = min(self._engines, key=lambda engine: _seconds(engine, tried, weights, assignment))
        return self._chosen.train(clients, weights, assignment)

    def evaluate(
        self, clients: Sequence[Client], weights: FloatArrays, assignment: Assignment
    ) -> Iterator[ClientEvaluation]:
        """See `Engine`."""
        return self._engines[0].evaluate(clients, weights, assignment)

    def close(self) -> None:
        """End both."""
        for engine in self._engines:
            engine.close()


def _seconds(engine: Engine, clients: Sequence[Client], weights: FloatArrays, assignment: Assignment) -> float:
    begun = time.perf_counter()
    for _ in engine.train(clients, weights, assignment):
        pass
    return time.perf_counter() - begun
