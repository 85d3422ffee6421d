"""Adam and AdamW."""

from math import inf

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.optim.optimizer import Arrays, Optimizer, check_range, scaled, shifted, zeros_like

# 1 - beta^t after t steps; both start at 0. They are the state that bias correction needs, kept as complements because
# 1 - 0.999 in float32 has few digits left.
FIRST = "adam.first_correction"
SECOND = "adam.second_correction"


def adam(
    lr: float = 1e-3, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, weight_decay: float = 0.0
) -> Optimizer:
    """Adam (Kingma and Ba 2015), with PyTorch's formulas; weight_decay is added to the gradient.

    m ← beta1 m + (1 - beta1) g;  v ← beta2 v + (1 - beta2) g²;  p ← p - lr (m / (1 - beta1^t)) / (sqrt(v / (1 -
    beta2^t)) + epsilon).

    State: "<parameter>.first" = m / (1 - beta1) and "<parameter>.second" = v / (1 - beta2), which saves a pass for
    each, and two corrections of [1]. Hyper-parameters: lr, beta1, beta2, epsilon, and weight_decay where it is not
    zero. Raises InputError for a number out of range.
    """
    return _adam("adam", lr, beta1, beta2, epsilon, weight_decay, decoupled=False)


def adamw(
    lr: float = 1e-3, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, weight_decay: float = 0.01
) -> Optimizer:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019): first p ← (1 - lr weight_decay) p, then Adam's
    step. Otherwise as ``adam``.
    """
    return _adam("adamw", lr, beta1, beta2, epsilon, weight_decay, decoupled=True)


def _adam(
    name: str, lr: float, beta1: float, beta2: float, epsilon: float, weight_decay: float, *, decoupled: bool
) -> Optimizer:
    check_range(name, 0, inf, lr=lr, weight_decay=weight_decay)
    check_range(name, 0, 1, beta1=beta1, beta2=beta2)
    # Below this, epsilon would vanish in float32 and a parameter without gradient would become 0/0.
    check_range(name, 1e-30, inf, epsilon=epsilon)
    hyper = {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon} | (
        {"weight_decay": weight_decay} if weight_decay else {}
    )

    def init(params: Arrays) -> dict[str, Array]:
        return (
            zeros_like(params, "first") | zeros_like(params, "second") | {FIRST: xp.zeros((1,)), SECOND: xp.zeros((1,))}
        )

    def update(
        grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        # All of this is arithmetic on [1]. Where active is 0: both rates are 0, both keeps are 1, and the step is 0;
        # the corrections are kept off 0 so that the step is not 0/0.
        rate1, rate2 = active * (1 - hyper["beta1"]), active * (1 - hyper["beta2"])
        keep1, keep2 = 1 - rate1, 1 - rate2
        first = state[FIRST] + rate1 * (1 - state[FIRST])
        second = state[SECOND] + rate2 * (1 - state[SECOND])
        # lr m^ / (sqrt(v^) + eps), with m = (1 - beta1) M and v = (1 - beta2) V, is step M / (sqrt(V) + floor).
        spread = xp.sqrt((second + (1 - active)) / (1 - hyper["beta2"]))
        step = -(hyper["lr"] * (rate1 / (first + (1 - active))) * spread)
        floor = hyper["epsilon"] * spread
        moved, moments = dict(params), dict(state) | {FIRST: first, SECOND: second}
        for name, gradient in grads.items():
            param = params[name]
            if weight_decay and not decoupled:
                gradient = gradient + scaled(hyper["weight_decay"], param)
            if weight_decay and decoupled:
                param = scaled(1 - hyper["lr"] * hyper["weight_decay"] * active, param)
            counted = scaled(active, gradient)
            mean = scaled(keep1, state[f"{name}.first"]) + counted
            square = scaled(keep2, state[f"{name}.second"]) + counted * counted
            moments |= {f"{name}.first": mean, f"{name}.second": square}
            moved[name] = param + scaled(step, mean / shifted(xp.sqrt(square), floor))
        return moved, moments

    return Optimizer(name=name, hyper=hyper, init=init, update=update, elementwise=True)
