"""FedNova: FedAvg that is fair to clients with fewer steps.

Wang, Liu, Liang, Joshi, Poor: "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization"
(2020), sections 4 and 5. What a client's tau_i steps add up to is its gradients weighted by a vector a_i; a client
uploads its change divided by ‖a_i‖₁, and the server takes the mean of these directions times the mean of the ‖a_i‖₁:

    x ← x + (Σ p_i ‖a_i‖₁) · Σ p_i (y_i − x) / ‖a_i‖₁.

For gradient descent ‖a‖₁ = tau; with momentum rho it is (tau − rho (1 − rho^tau) / (1 − rho)) / (1 − rho).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.aggregation.horizontal.algorithm import (
    Algorithm,
    ClientPart,
    Finish,
    Finished,
    MethodTerms,
    Rules,
    Shapes,
    delta,
    whole_delta,
)
from coterie.aggregation.horizontal.server_part import Aggregates, Optimize, ServerPart
from coterie.aggregation.plan.manifest import DELTA
from coterie.aggregation.reducers import Vector
from coterie.aggregation.server_optimizers import OptimizerState
from coterie.protocol.layout import Layout
from coterie.protocol.sections import SectionSpec

if TYPE_CHECKING:
    from coterie.compute.array import Array

LENGTH = "length"
"""The section that holds ‖a‖₁."""


def _length(context: Finish) -> Array:
    if "momentum" not in context.hyper:
        return context.steps
    # Computed here, where coterie.compute is loaded anyway; the server's part needs none of it.
    from coterie.compute import numpy as xp

    # Few steps of a momentum near 1 would leave nothing of these differences in float32.
    rho, tau = (xp.astype(number, xp.float64) for number in (context.hyper["momentum"], context.steps))
    return xp.astype((tau - rho * (1 - xp.pow(rho, tau)) / (1 - rho)) / (1 - rho), xp.float32)


def _finish(context: Finish) -> Finished:
    length = _length(context)
    direction = {name: value / length for name, value in delta(context).items()}
    return Finished(sections={DELTA: direction, LENGTH: length}, client_state={})


def _sections(shapes: Shapes, layout: Layout) -> tuple[SectionSpec, ...]:
    return (*whole_delta(shapes, layout), SectionSpec(name=LENGTH, length=1))


def _apply(aggregates: Aggregates, state: OptimizerState, optimize: Optimize) -> tuple[Vector, OptimizerState]:
    return optimize(aggregates.sections[LENGTH] * aggregates.sections[DELTA]), state


def _needs(terms: MethodTerms) -> Rules:
    rule = terms.optimizer
    holds = rule is None or rule.name == "sgd"
    found = "" if rule is None else f", found {rule.name!r}"
    return ((holds, f"FedNova needs optim.sgd on the clients, with or without momentum but not Nesterov's{found}"),)


def FedNova() -> Algorithm:
    """Normalised averaging."""
    return Algorithm(
        name="fednova",
        client=ClientPart(sections=_sections, finish=_finish),
        server=ServerPart(apply=_apply, reads=(DELTA, LENGTH)),
        needs=_needs,
    )
