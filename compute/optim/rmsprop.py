"""RMSProp."""

from math import inf

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.optim.optimizer import Arrays, Optimizer, check_range, scaled, shifted, zeros_like


def rmsprop(
    lr: float = 1e-2, *, decay: float = 0.99, epsilon: float = 1e-8, momentum: float = 0.0, weight_decay: float = 0.0
) -> Optimizer:
    """RMSProp (Tieleman and Hinton 2012), with PyTorch's formulas; weight_decay is added to the gradient.

    s ← decay s + (1 - decay) g²;  b ← momentum b + g / (sqrt(s) + epsilon);  p ← p - lr b. State:
    "<parameter>.square" = s, and "<parameter>.momentum" = b where there is momentum. Hyper-parameters: lr, decay,
    epsilon, and momentum and weight_decay where they are not zero. Raises InputError for a number out of range.
    """
    check_range("rmsprop", 0, inf, lr=lr, weight_decay=weight_decay)
    check_range("rmsprop", 0, 1, decay=decay, momentum=momentum)
    # Below this, epsilon would vanish in float32 and a parameter without gradient would become 0/0.
    check_range("rmsprop", 1e-30, inf, epsilon=epsilon)
    hyper = (
        {"lr": lr, "decay": decay, "epsilon": epsilon}
        | ({"momentum": momentum} if momentum else {})
        | ({"weight_decay": weight_decay} if weight_decay else {})
    )

    def init(params: Arrays) -> dict[str, Array]:
        return zeros_like(params, "square") | (zeros_like(params, "momentum") if momentum else {})

    def update(
        grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        # Arithmetic on [1]; where active is 0 the rate and the step are 0 and both keeps are 1.
        rate, step = active * (1 - hyper["decay"]), -(hyper["lr"] * active)
        keep, hold = 1 - rate, 1 - active * (1 - hyper["momentum"]) if momentum else active
        moved, after = dict(params), dict(state)
        for name, gradient in grads.items():
            param = params[name]
            if weight_decay:
                gradient = gradient + scaled(hyper["weight_decay"], param)
            square = scaled(keep, state[f"{name}.square"]) + scaled(rate, gradient * gradient)
            after[f"{name}.square"] = square
            direction = gradient / shifted(xp.sqrt(square), hyper["epsilon"])
            if momentum:
                direction = scaled(hold, state[f"{name}.momentum"]) + scaled(active, direction)
                after[f"{name}.momentum"] = direction
            moved[name] = param + scaled(step, direction)
        return moved, after

    return Optimizer(name="rmsprop", hyper=hyper, init=init, update=update, elementwise=True)
