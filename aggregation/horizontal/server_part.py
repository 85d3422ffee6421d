"""What a method does on the server: a pair of pure functions over what the clients of a round sent together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coterie.aggregation.plan.manifest import DELTA
from coterie.aggregation.reducers import Vector
from coterie.aggregation.server_optimizers import OptimizerState
from coterie.protocol.layout import Layout


@dataclass(frozen=True, kw_only=True)
class Aggregates:
    """What the clients of a round sent together.

    sections: the aggregate of each, float64; one over the layout is placed in a vector of the layout's size, zero where
        nothing covers it.
    clients: how many.
    weight: the sum of their weights.
    freshness: the weighted mean of what their weights were multiplied by, 1 when none lags.
    drift: the weighted mean of base − version over the updates, where base is what each was trained on; None when none
        lags, or the method does not read it.

    In buffered rounds updates lag (`coterie.aggregation.staleness`).
    """

    sections: Mapping[str, Vector]
    clients: int
    weight: float
    freshness: float = 1.0
    drift: Vector | None = None


Optimize = Callable[[Vector], Vector]
"""The server optimizer's step for a change of the whole layout."""


def _no_state(layout: Layout) -> OptimizerState:
    return {}


def _delta_step(aggregates: Aggregates, state: OptimizerState, optimize: Optimize) -> tuple[Vector, OptimizerState]:
    return optimize(aggregates.sections[DELTA]), state


@dataclass(frozen=True, kw_only=True)
class ServerPart:
    """The server's part of a method: how the aggregates of a round become a step.

    init(layout): the method's own state on the server. apply(aggregates, state, optimize) is (step, new state), and the
        version becomes ``version + step``; ``optimize`` may be called once. Running statistics move by their mean
        change, whatever the step says.
    reads: the sections that ``apply`` reads.
    reads_drift: whether it reads `Aggregates.drift`.
    """

    init: Callable[[Layout], OptimizerState] = _no_state
    apply: Callable[[Aggregates, OptimizerState, Optimize], tuple[Vector, OptimizerState]] = _delta_step
    reads: tuple[str, ...] = (DELTA,)
    reads_drift: bool = False
