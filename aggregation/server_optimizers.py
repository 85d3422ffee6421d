"""Server optimizers: how the aggregated update moves the model. Pure ``init/update`` pairs over flat float64 vectors.

The aggregate is a change of weights; its negative plays the part of a gradient (Reddi et al., "Adaptive Federated
Optimization", 2021, algorithm 1).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from coterie import errors
from coterie.aggregation.reducers import Vector

State = Mapping[str, Vector]


@dataclass(frozen=True)
class ServerOptimizer:
    """A rule by its name and numbers.

    init(size) is the first state. update(delta, state) is (step, new state): the model becomes ``weights + step``.
    Neither changes its arguments.
    """

    name: str
    parameters: Mapping[str, float]
    init: Callable[[int], State] = field(compare=False, repr=False)
    update: Callable[[Vector, State], tuple[Vector, State]] = field(compare=False, repr=False)


def server_sgd(lr: float = 1.0, momentum: float = 0.0) -> ServerOptimizer:
    """Gradient descent with momentum on the server (FedAvgM: Hsu, Qi and Brown, 2019). ``lr=1, momentum=0`` is
    FedAvg.

    velocity ← momentum · velocity + delta; step = lr · velocity. Raises errors.ExperimentError for numbers out of
    range.
    """
    if not (math.isfinite(lr) and lr > 0):
        raise errors.ExperimentError(f"The server's lr must be positive and finite, not {lr}.", code="server_optimizer")
    if not 0 <= momentum < 1:
        raise errors.ExperimentError(
            f"The server's momentum must be in [0, 1), not {momentum}.", code="server_optimizer"
        )

    def init(size: int) -> State:
        return {"velocity": np.zeros(size, np.float64)} if momentum else {}

    def update(delta: Vector, state: State) -> tuple[Vector, State]:
        if not momentum:
            return lr * delta, {}
        velocity = momentum * state["velocity"] + delta
        return lr * velocity, {"velocity": velocity}

    return ServerOptimizer("sgd", {"lr": float(lr), "momentum": float(momentum)}, init, update)


SERVER_OPTIMIZERS: Mapping[str, Callable[..., ServerOptimizer]] = MappingProxyType({"sgd": server_sgd})


def server_optimizer(name: str, parameters: Mapping[str, float]) -> ServerOptimizer:
    """Rebuild a server optimizer from its name and numbers.

    Raises errors.ExperimentError (``server_optimizer``) for an unknown name or parameter, or a number out of range.
    """
    make = SERVER_OPTIMIZERS.get(name)
    if make is None:
        raise errors.ExperimentError(
            f"There is no server optimizer {name[:64]!r}.",
            hint=f"Choose one of {', '.join(SERVER_OPTIMIZERS)}.",
            code="server_optimizer",
        )
    known = make().parameters
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        raise errors.ExperimentError(
            f"Server optimizer {name!r} has no parameter {unknown[0][:64]!r}.",
            hint=f"It has {', '.join(known)}.",
            code="server_optimizer",
        )
    return make(**parameters)
