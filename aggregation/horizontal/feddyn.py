"""FedDyn: a regulariser on each client, changed from round to round so that local optima agree with the global one.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: "Federated Learning Based on Dynamic Regularization" (2021),
algorithm 1. Client k keeps h_k, an estimate of its gradient at the optimum, and minimises

    L_k(θ) − ⟨h_k, θ⟩ + alpha/2 · ‖θ − θ_before‖²;    then h_k ← h_k − alpha (θ_k − θ_before).

With a cohort P of m clients the server keeps h ← h − alpha · |P|/m · mean(θ_k − θ_before) and sets the model to
mean(θ_k) − h / alpha. Means are weighted by numbers of examples: with everybody in the cohort, all is for the objective
that FedAvg has. In the paper clients count alike, and h is the mean of all h_k; so it is here when all weigh the same
(``weight_cap=1``). Where the weights of cohorts vary, |P| / m stands for their share of the weight, and what the model
comes to rest at lies between the two objectives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from coterie.aggregation.horizontal.algorithm import (
    Algorithm,
    Begin,
    ClientPart,
    Finish,
    Finished,
    Rules,
    Shapes,
    Step,
    delta,
)
from coterie.aggregation.horizontal.needs import check_number, enough_clients, one_version, plain_server
from coterie.aggregation.horizontal.server_part import Aggregates, Optimize, ServerPart
from coterie.aggregation.plan.manifest import DELTA
from coterie.aggregation.reducers import Vector
from coterie.aggregation.server_optimizers import OptimizerState
from coterie.protocol.layout import Layout

if TYPE_CHECKING:
    from coterie.aggregation.horizontal.algorithm import Arrays, MethodTerms


def _client_state(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    return dict(shapes.trained)


def _begin(context: Begin) -> Arrays:
    return dict(context.client_state)


def _needs(terms: MethodTerms) -> Rules:
    why = "the method computes the next model itself"
    return (
        *enough_clients(terms, "FedDyn", terms.algorithm.parameters["clients"]),
        *plain_server(terms, "FedDyn", why),
        *one_version(terms, "FedDyn"),
    )


def FedDyn(clients: int, alpha: float = 0.01) -> Algorithm:
    """Dynamic regularisation.

    clients: m, how many there are in all; alpha > 0: how strong the regulariser is.

    Raises errors.ExperimentError for a number out of range.
    """
    total = check_number("FedDyn", "clients", clients, least=1, whole=True)
    strength = check_number("FedDyn", "alpha", alpha, least=1e-8)

    def gradient(gradient: Arrays, step: Step) -> Arrays:
        return {
            name: value - step.constants[name] + strength * (step.params[name] - step.base[name])
            for name, value in gradient.items()
        }

    def finish(context: Finish) -> Finished:
        moved = delta(context)
        after = {name: kept - strength * moved[name] for name, kept in context.client_state.items()}
        return Finished(sections={DELTA: moved}, client_state=after)

    def init(layout: Layout) -> OptimizerState:
        return {"h": np.zeros(layout.size, np.float64)}

    def apply(aggregates: Aggregates, state: OptimizerState, optimize: Optimize) -> tuple[Vector, OptimizerState]:
        mean, share = aggregates.sections[DELTA], min(1.0, aggregates.clients / total)
        h = state["h"] - strength * share * mean
        return optimize(mean - h / strength), {"h": h}

    return Algorithm(
        name="feddyn",
        parameters={"clients": total, "alpha": strength},
        client=ClientPart(client_state=_client_state, begin=_begin, gradient=gradient, finish=finish),
        server=ServerPart(init=init, apply=apply),
        needs=_needs,
    )
