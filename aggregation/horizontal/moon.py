"""MOON: FedAvg whose clients learn representations near the round's model and away from their own last one.

Li, He, Song: "Model-Contrastive Federated Learning" (2021), algorithm 1. With z, z_glob and z_prev what the model, the
round's model and the client's model of its last round make of a row before the last layer, and the cosine similarity
sim, each client adds to its loss

    mu · −log( exp(sim(z, z_glob)/t) / (exp(sim(z, z_glob)/t) + exp(sim(z, z_prev)/t)) ).

A client's last model stays on the device. A client that takes part for the first time starts with the round's model as
its last one, so that the term moves nothing. All three representations are taken without dropout, in the experiment's
precision, and with the running statistics that the model has at that step; the similarities are float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.aggregation.horizontal.algorithm import (
    Algorithm,
    Begin,
    ClientPart,
    Finish,
    Finished,
    Objective,
    Shapes,
    delta,
)
from coterie.aggregation.horizontal.needs import check_number
from coterie.aggregation.plan.manifest import DELTA

if TYPE_CHECKING:
    from coterie.aggregation.horizontal.algorithm import Arrays
    from coterie.compute.array import Array

SEEN = "seen"
"""``[1]`` beside the last model: 1 when there is one."""


def _last_name(name: str) -> str:
    return f"last/{name}"


def _client_state(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    return {SEEN: (1,), **{_last_name(name): shape for name, shape in shapes.trained.items()}}


def _begin(context: Begin) -> Arrays:
    """The last model; the round's where there is none."""
    seen = context.client_state[SEEN]
    return {
        name: context.base[name] + seen * (context.client_state[_last_name(name)] - context.base[name])
        for name in context.trained
    }


def _contrast(losses: Array, context: Objective) -> Array:
    from coterie.compute import numpy as xp
    from coterie.compute import ops

    def similarity(a: Array, b: Array) -> Array:
        squares = [xp.sum(x * x, axis=1) for x in (a, b)]
        return xp.sum(a * b, axis=1) / xp.sqrt(squares[0] * squares[1] + 1e-12)

    own = _flat(context.represent(context.params))
    shared = _flat(context.represent({name: context.base[name] for name in context.params}))
    last = _flat(context.represent(context.constants))
    # −log(e^a / (e^a + e^b)) = log(1 + e^(b − a))
    apart = (similarity(own, last) - similarity(own, shared)) / context.hyper["temperature"]
    return losses + context.hyper["mu"] * ops.softplus(apart)


def _flat(x: Array) -> Array:
    from coterie.compute import numpy as xp

    return xp.reshape(x, (x.shape[0], x.size // x.shape[0]))


def _finish(context: Finish) -> Finished:
    kept = {_last_name(name): context.end[name] for name in context.trained}
    seen = context.client_state[SEEN]
    return Finished(sections={DELTA: delta(context)}, client_state={SEEN: seen * 0.0 + 1.0, **kept})


def Moon(mu: float = 1.0, temperature: float = 0.5) -> Algorithm:
    """Model-contrastive learning. mu ≥ 0: how much the contrast counts (0 is FedAvg); temperature > 0.

    The model is an nn.Sequential of two layers or more, or has an attribute ``encoder``, a module that takes the
    model's own parameters and gives what comes before the last layer. Raises errors.ExperimentError for a number out
    of range.
    """
    weight = check_number("Moon", "mu", mu, least=0)
    heat = check_number("Moon", "temperature", temperature, least=1e-3)
    return Algorithm(
        name="moon",
        parameters={"mu": weight, "temperature": heat},
        client=ClientPart(
            hyper={"mu": weight, "temperature": heat},
            client_state=_client_state,
            begin=_begin,
            objective=_contrast,
            finish=_finish,
        ),
    )
