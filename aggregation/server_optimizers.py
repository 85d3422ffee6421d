"""Server optimizers: how the aggregated update moves the model. Pure ``init/update`` pairs over flat float64 vectors.

The aggregate is a change of weights; its negative plays the part of a gradient (Reddi, Charles, Zaheer, Garrett, Rush,
Konečný, Kumar, McMahan: "Adaptive Federated Optimization", 2021, algorithms 1 and 2).

The compiler's optimizers are loaded by those who use them: most coordinators never do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from coterie import errors
from coterie.aggregation.number import is_number
from coterie.aggregation.reducers import Vector

if TYPE_CHECKING:
    from coterie.compute.optim.optimizer import Optimizer

OptimizerState = Mapping[str, Vector]


@dataclass(frozen=True)
class ServerOptimizer:
    """A rule by its name and numbers.

    init(size) is the first state. update(delta, state) is (step, new state): the model becomes ``weights + step``.
    Neither changes its arguments. State of the size of the model is one number for each weight; other state belongs to
    the whole.
    """

    name: str
    parameters: Mapping[str, float]
    init: Callable[[int], OptimizerState] = field(compare=False, repr=False)
    update: Callable[[Vector, OptimizerState], tuple[Vector, OptimizerState]] = field(compare=False, repr=False)


def server_sgd(lr: float = 1.0, momentum: float = 0.0) -> ServerOptimizer:
    """Gradient descent with momentum on the server (FedAvgM: Hsu, Qi and Brown, 2019). ``lr=1, momentum=0`` is
    FedAvg.

    velocity ← momentum · velocity + delta; step = lr · velocity. Raises errors.ExperimentError for numbers out of
    range.
    """
    _check(lr=lr, momentum=momentum)

    def init(size: int) -> OptimizerState:
        return {"velocity": np.zeros(size, np.float64)} if momentum else {}

    def update(delta: Vector, state: OptimizerState) -> tuple[Vector, OptimizerState]:
        if not momentum:
            return delta if lr == 1 else lr * delta, {}
        velocity = momentum * state["velocity"] + delta
        return lr * velocity, {"velocity": velocity}

    return ServerOptimizer("sgd", {"lr": float(lr), "momentum": float(momentum)}, init, update)


def server_adagrad(lr: float = 0.1, tau: float = 1e-3) -> ServerOptimizer:
    """FedAdagrad: v ← v + delta²; step = lr · delta / (√v + tau), with v = tau² at first.

    tau: how adaptive it is; about the size of a useful step.
    Raises errors.ExperimentError for numbers out of range.
    """
    from coterie.compute.optim.adagrad import adagrad

    _check(lr=lr, tau=tau)
    rule = adagrad(lr, initial=tau * tau, epsilon=tau)
    return _from_rule("adagrad", {"lr": lr, "tau": tau}, rule)


def server_adam(lr: float = 0.1, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> ServerOptimizer:
    """FedAdam: m ← beta1 · m + (1 − beta1) · delta; v ← beta2 · v + (1 − beta2) · delta²; step = lr · m / (√v + tau),
    with v = tau² at first and, as in the paper, no correction for where the moments started.

    Raises errors.ExperimentError for numbers out of range.
    """
    from coterie.compute.optim.adam import FIRST, SECOND, adam

    _check(lr=lr, beta1=beta1, beta2=beta2, tau=tau)
    rule = adam(lr, beta1=beta1, beta2=beta2, epsilon=tau)
    # adam keeps v / (1 − beta2), and what it corrects by grows from 0 to 1: at 1 there is nothing to correct.
    first = {f"{_WEIGHTS}.second": tau * tau / (1 - beta2), FIRST: 1.0, SECOND: 1.0}
    return _from_rule("adam", {"lr": lr, "beta1": beta1, "beta2": beta2, "tau": tau}, rule, first)


def server_yogi(lr: float = 0.1, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> ServerOptimizer:
    """FedYogi: FedAdam with v ← v − (1 − beta2) · delta² · sign(v − delta²), which forgets large changes more slowly.

    Raises errors.ExperimentError for numbers out of range.
    """
    from coterie.compute.optim.yogi import yogi

    _check(lr=lr, beta1=beta1, beta2=beta2, tau=tau)
    rule = yogi(lr, beta1=beta1, beta2=beta2, epsilon=tau, initial=tau * tau)
    return _from_rule("yogi", {"lr": lr, "beta1": beta1, "beta2": beta2, "tau": tau}, rule)


_RANGES: Mapping[str, tuple[Callable[[float], bool], str]] = MappingProxyType(
    {
        "lr": (lambda value: value > 0, "positive and finite"),
        "momentum": (lambda value: 0 <= value < 1, "in [0, 1)"),
        "beta1": (lambda value: 0 <= value < 1, "in [0, 1)"),
        "beta2": (lambda value: 0 <= value < 1, "in [0, 1)"),
        "tau": (lambda value: 1e-15 <= value < 1e15, "in 1e-15..1e15"),
    }
)


def _check(**numbers: float) -> None:
    for name, value in numbers.items():
        holds, wanted = _RANGES[name]
        if not (is_number(value) and math.isfinite(value) and holds(value)):
            raise errors.ExperimentError(
                f"The server's {name} must be {wanted}, not {value!r}.", code="server_optimizer"
            )


_WEIGHTS = "weights"


def _from_rule(
    name: str, parameters: Mapping[str, float], rule: Optimizer, first: Mapping[str, float] = MappingProxyType({})
) -> ServerOptimizer:
    """A rule of compute.optim at work on the server, eagerly and in float64.

    first: numbers that its state starts with in place of its own.
    """
    from coterie.compute.array import Array

    hyper = {key: Array(np.array([value], np.float64)) for key, value in rule.hyper.items()}

    def init(size: int) -> OptimizerState:
        state = rule.init({_WEIGHTS: Array(np.zeros(size, np.float64))})
        return {
            key: np.full(value.shape, first[key], np.float64) if key in first else value.numpy().astype(np.float64)
            for key, value in state.items()
        }

    def update(delta: Vector, state: OptimizerState) -> tuple[Vector, OptimizerState]:
        arrays = {key: Array(value) for key, value in state.items()}
        # From weights of 0, the weights after the step are the step.
        origin = {_WEIGHTS: Array(np.zeros_like(delta))}
        moved, after = rule.update({_WEIGHTS: Array(-delta)}, arrays, origin, hyper, Array(np.ones(1)))
        return moved[_WEIGHTS].numpy(), {key: value.numpy() for key, value in after.items()}

    return ServerOptimizer(name, {key: float(value) for key, value in parameters.items()}, init, update)


SERVER_OPTIMIZERS: Mapping[str, Callable[..., ServerOptimizer]] = MappingProxyType(
    {"sgd": server_sgd, "adagrad": server_adagrad, "adam": server_adam, "yogi": server_yogi}
)


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
