"""Adagrad."""

from math import inf

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.optim.optimizer import Arrays, Optimizer, check_range, scaled, shifted


def adagrad(lr: float = 1e-2, *, initial: float = 0.0, epsilon: float = 1e-10, weight_decay: float = 0.0) -> Optimizer:
    """Adagrad (Duchi, Hazan and Singer 2011), with PyTorch's formulas; weight_decay is added to the gradient.

    s ← s + g²;  p ← p - lr g / (sqrt(s) + epsilon), where s starts at ``initial``. State: "<parameter>.square" = s.
    Hyper-parameters: lr, epsilon, and weight_decay where it is not zero. Raises InputError for a number out of range.
    """
    check_range("adagrad", 0, inf, lr=lr, initial=initial, weight_decay=weight_decay)
    # Below this, epsilon would vanish in float32 and a parameter without gradient would become 0/0.
    check_range("adagrad", 1e-30, inf, epsilon=epsilon)
    hyper = {"lr": lr, "epsilon": epsilon} | ({"weight_decay": weight_decay} if weight_decay else {})

    def init(params: Arrays) -> dict[str, Array]:
        return {f"{name}.square": xp.full(param.shape, initial, dtype=param.dtype) for name, param in params.items()}

    def update(
        grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        step = -(hyper["lr"] * active)
        moved, squares = dict(params), dict(state)
        for name, gradient in grads.items():
            param = params[name]
            if weight_decay:
                gradient = gradient + scaled(hyper["weight_decay"], param)
            square = state[f"{name}.square"] + scaled(active, gradient * gradient)
            squares[f"{name}.square"] = square
            moved[name] = param + scaled(step, gradient / shifted(xp.sqrt(square), hyper["epsilon"]))
        return moved, squares

    return Optimizer(name="adagrad", hyper=hyper, init=init, update=update, elementwise=True)
