"""FedAsync: mix every model that arrives into the server's, the less the older its base.

Xie, Koyejo, Gupta: "Asynchronous Federated Optimization" (2019), algorithm 1. A client holds its model near the version
x_τ that it was given (its gradient gains rho · (x − x_τ)) and returns x_new. The server's next model is

    x_t = (1 − α_t) x_{t−1} + α_t x_new     with α_t = alpha · (1 + lag) ** -staleness_exponent,

one update at a time: ``RoundPolicy(mode="buffered", cohort=1)``. What travels is x_new − x_τ; the server knows x_τ, so
the step is α_t · (Δ + (x_τ − x_{t−1})). Updates that arrive while a version is made are in the next one together: n of
them have the share that n mixings one after another give them, 1 − (1 − α_t)ⁿ, divided among them by their weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.aggregation.horizontal.algorithm import Algorithm, ClientPart, Rules, Step
from coterie.aggregation.horizontal.needs import check_number, plain_server
from coterie.aggregation.horizontal.server_part import Aggregates, Optimize, ServerPart
from coterie.aggregation.plan.manifest import DELTA
from coterie.aggregation.reducers import Vector
from coterie.aggregation.server_optimizers import OptimizerState

if TYPE_CHECKING:
    from coterie.aggregation.horizontal.algorithm import Arrays, MethodTerms


def _proximal(gradient: Arrays, step: Step) -> Arrays:
    rho = step.hyper["rho"]
    return {name: value + rho * (step.params[name] - step.base[name]) for name, value in gradient.items()}


def _needs(terms: MethodTerms) -> Rules:
    rounds = terms.rounds
    return (
        (
            rounds.buffered and rounds.cohort == 1,
            'FedAsync takes updates one by one: RoundPolicy(mode="buffered", cohort=1)',
        ),
        *plain_server(terms, "FedAsync", "alpha sets the length of the step"),
    )


def FedAsync(alpha: float = 0.6, rho: float = 0.005) -> Algorithm:
    """Asynchronous mixing. alpha in (0, 1]: the share of an update without lag in the next model; rho ≥ 0 holds clients
    near the model they were given.

    Raises errors.ExperimentError for a number out of range.
    """
    share = check_number("FedAsync", "alpha", alpha, least=1e-6, below=1 + 1e-9)
    near = check_number("FedAsync", "rho", rho, least=0)

    def apply(aggregates: Aggregates, state: OptimizerState, optimize: Optimize) -> tuple[Vector, OptimizerState]:
        behind = 0.0 if aggregates.drift is None else aggregates.drift
        mixed = 1 - (1 - share * aggregates.freshness) ** aggregates.clients
        return optimize(mixed * (aggregates.sections[DELTA] + behind)), state

    return Algorithm(
        name="fedasync",
        parameters={"alpha": share, "rho": near},
        client=ClientPart(hyper={"rho": near}, gradient=_proximal),
        server=ServerPart(apply=apply, reads_drift=True),
        needs=_needs,
    )
