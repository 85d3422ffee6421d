"""FedProx: FedAvg whose clients are held near the round's model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in Heterogeneous Networks" (2020), algorithm 2.
Each client minimises F(w) + mu/2 · ‖w − w0‖², so its gradient gains mu · (w − w0), where w0 are the weights that the
round began with. ``mu`` is a hyper-parameter of the task: a schedule may change it between rounds without a new plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.aggregation.horizontal.algorithm import Algorithm, ClientPart, Step
from coterie.aggregation.horizontal.needs import check_number

if TYPE_CHECKING:
    from coterie.aggregation.horizontal.algorithm import Arrays


def _proximal(gradient: Arrays, step: Step) -> Arrays:
    mu = step.hyper["mu"]
    return {name: value + mu * (step.params[name] - step.base[name]) for name, value in gradient.items()}


def FedProx(mu: float = 0.01) -> Algorithm:
    """FedAvg with a proximal term. mu ≥ 0 pulls towards the round's model; 0 is FedAvg.

    Raises errors.ExperimentError for a mu that is negative or not finite.
    """
    check_number("FedProx", "mu", mu, least=0)
    return Algorithm(
        name="fedprox", parameters={"mu": float(mu)}, client=ClientPart(hyper={"mu": float(mu)}, gradient=_proximal)
    )
