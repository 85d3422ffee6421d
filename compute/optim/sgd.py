"""Stochastic gradient descent."""

from math import inf

from coterie.compute.array import Array
from coterie.compute.optim.optimizer import Arrays, Optimizer, check_range, scaled, zeros_like
from coterie.errors import InputError


def sgd(lr: float, *, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0) -> Optimizer:
    """p ← p - lr d, where, in this order and each only when its number is not zero:

    d = gradient + weight_decay p;  v ← momentum v + d, and d = v;  with nesterov instead d = d + momentum v (Sutskever
    et al. 2013). These are PyTorch's formulas with dampening 0. State: "<parameter>.momentum" when there is momentum,
    else none. Hyper-parameters: lr, and momentum and weight_decay where they are not zero. Raises InputError for a
    number out of range.
    """
    check_range("sgd", 0, inf, lr=lr, weight_decay=weight_decay)
    check_range("sgd", 0, 1, momentum=momentum)
    if nesterov and not momentum:
        raise InputError("sgd: nesterov needs momentum above 0.")
    hyper = (
        {"lr": lr}
        | ({"momentum": momentum} if momentum else {})
        | ({"weight_decay": weight_decay} if weight_decay else {})
    )

    def init(params: Arrays) -> dict[str, Array]:
        return zeros_like(params, "momentum") if momentum else {}

    def update(
        grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        step = -(hyper["lr"] * active)
        moved, velocities = dict(params), dict(state)
        for name, gradient in grads.items():
            param = params[name]
            if not momentum:
                # (1 - lr wd) p - lr g: the decay is a number, not a second gradient.
                kept = scaled(1 + step * hyper["weight_decay"], param) if weight_decay else param
                moved[name] = kept + scaled(step, gradient)
                continue
            direction = gradient + scaled(hyper["weight_decay"], param) if weight_decay else gradient
            # v + active ((momentum - 1) v + d), so that active = 0 keeps v.
            keep = 1 + active * (hyper["momentum"] - 1)
            velocity = scaled(keep, state[f"{name}.momentum"]) + scaled(active, direction)
            velocities[f"{name}.momentum"] = velocity
            if nesterov:
                moved[name] = param + scaled(step, direction) + scaled(step * hyper["momentum"], velocity)
            else:
                moved[name] = param + scaled(step, velocity)
        return moved, velocities

    return Optimizer(name="nesterov" if nesterov else "sgd", hyper=hyper, init=init, update=update, elementwise=True)
