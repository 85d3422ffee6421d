"""FedBuff: average the next K updates that arrive, whatever recent version each was made from.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: "Federated Learning with Buffered Asynchronous Aggregation"
(2022), algorithm 1, with the staleness weights of its section 6. The buffer is the round (``RoundPolicy(mode=
"buffered", cohort=K, concurrency=…)``), the client part is the plain step; the server part is

    Σ n_i s_i Δ_i / Σ n_i     with s_i = (1 + lag_i) ** -staleness_exponent,

where the paper's clients weigh the same (n_i = 1). Unlike the weighted mean that FedAvg would take of such a buffer,
this one does not divide by the s_i, so a buffer of old updates makes a small step.
"""

from __future__ import annotations

from coterie.aggregation.horizontal.algorithm import Algorithm, MethodTerms, Rules
from coterie.aggregation.horizontal.server_part import Aggregates, Optimize, ServerPart
from coterie.aggregation.plan.manifest import DELTA
from coterie.aggregation.reducers import Vector
from coterie.aggregation.server_optimizers import OptimizerState


def _apply(aggregates: Aggregates, state: OptimizerState, optimize: Optimize) -> tuple[Vector, OptimizerState]:
    return optimize(aggregates.freshness * aggregates.sections[DELTA]), state


def _needs(terms: MethodTerms) -> Rules:
    return ((terms.rounds.buffered, 'FedBuff needs buffered rounds: RoundPolicy(mode="buffered")'),)


def FedBuff() -> Algorithm:
    """Buffered asynchronous averaging; the numbers are those of the round policy."""
    return Algorithm(name="fedbuff", server=ServerPart(apply=_apply), needs=_needs)
