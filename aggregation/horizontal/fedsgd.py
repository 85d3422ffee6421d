"""FedSGD: one step of gradient descent a round, on the gradient over all rows of the cohort.

McMahan et al. 2017, section 2: each client computes the mean gradient g_k of its loss over its rows at the round's
model x, and the server takes x ← x − lr Σ n_k/n g_k. A device goes through its rows in batches that leave the weights
as they are, and adds up; ``lr`` is the experiment's. With ``max_steps`` the gradient is over that many batches, drawn
anew each round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.aggregation.horizontal.algorithm import Algorithm, ClientPart, Finish, Finished, MethodTerms, Rules
from coterie.aggregation.horizontal.needs import plain_descent
from coterie.aggregation.plan.manifest import DELTA

if TYPE_CHECKING:
    from coterie.aggregation.horizontal.algorithm import Arrays
    from coterie.compute.array import Array
    from coterie.compute.optim.optimizer import Optimizer

COUNT = "examples"


def _gradient_sum(rule: Optimizer) -> Optimizer:
    """An optimizer that moves nothing and keeps the sum of the examples' gradients and their number."""
    from coterie.compute import numpy as xp
    from coterie.compute.optim.optimizer import Optimizer, scaled

    def init(params: Arrays) -> dict[str, Array]:
        return {f"{name}.sum": xp.zeros(param.shape) for name, param in params.items()} | {COUNT: xp.zeros((1,))}

    def weighted(
        grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array, weight: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        counted = active * weight
        sums = {f"{name}.sum": state[f"{name}.sum"] + scaled(counted, gradient) for name, gradient in grads.items()}
        return dict(params), {**state, **sums, COUNT: state[COUNT] + counted}

    def update(
        grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        return weighted(grads, state, params, hyper, active, xp.ones((1,)))

    return Optimizer(name="gradient_sum", hyper={"lr": rule.hyper["lr"]}, init=init, update=update, weighted=weighted)


def _finish(context: Finish) -> Finished:
    rate = context.hyper["lr"] / context.optimizer[COUNT]
    step = {name: -(rate * context.optimizer[f"{name}.sum"]) for name in context.trained}
    return Finished(sections={DELTA: step}, client_state={})


def _needs(terms: MethodTerms) -> Rules:
    rule = terms.optimizer
    decays = rule is not None and "weight_decay" in rule.parameters
    return (
        *plain_descent(terms, "FedSGD", "the server takes the step"),
        (not decays, "FedSGD has no weight decay; add it to the loss"),
        (
            terms.training.epochs == 1,
            f"FedSGD goes through the rows once a round; set epochs=1, not {terms.training.epochs}",
        ),
    )


def FedSGD() -> Algorithm:
    """Federated gradient descent."""
    return Algorithm(name="fedsgd", client=ClientPart(optimizer=_gradient_sum, finish=_finish), needs=_needs)
