"""Yogi."""

from math import inf

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.optim.optimizer import Arrays, Optimizer, check_range, scaled, shifted, zeros_like


def yogi(
    lr: float = 1e-2, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-3, initial: float = 1e-6
) -> Optimizer:
    """Yogi (Zaheer, Reddi, Sachan, Kale and Kumar 2018, algorithm 2): Adam whose second moment shrinks no faster than
    it grows. Like the paper's, it does not correct the moments for having started somewhere.

    m ← beta1 m + (1 - beta1) g;  v ← v - (1 - beta2) sign(v - g²) g²;  p ← p - lr m / (sqrt(v) + epsilon), where v
    starts at ``initial``. State: "<parameter>.first" = m and "<parameter>.second" = v. Hyper-parameters: lr, beta1,
    beta2 and epsilon. Raises InputError for a number out of range.
    """
    check_range("yogi", 0, inf, lr=lr, initial=initial)
    check_range("yogi", 0, 1, beta1=beta1, beta2=beta2)
    # Below this, epsilon would vanish in float32 and a parameter without gradient would become 0/0.
    check_range("yogi", 1e-30, inf, epsilon=epsilon)
    hyper = {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}

    def init(params: Arrays) -> dict[str, Array]:
        second = {f"{name}.second": xp.full(param.shape, initial, dtype=param.dtype) for name, param in params.items()}
        return zeros_like(params, "first") | second

    def update(
        grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        # Arithmetic on [1]; where active is 0 both rates and the step are 0, so everything stays as it is.
        rate1, rate2 = active * (1 - hyper["beta1"]), active * (1 - hyper["beta2"])
        keep1, step = 1 - rate1, -(hyper["lr"] * active)
        moved, moments = dict(params), dict(state)
        for name, gradient in grads.items():
            square, second = gradient * gradient, state[f"{name}.second"]
            first = scaled(keep1, state[f"{name}.first"]) + scaled(rate1, gradient)
            second = second - scaled(rate2, xp.sign(second - square) * square)
            moments |= {f"{name}.first": first, f"{name}.second": second}
            moved[name] = params[name] + scaled(step, first / shifted(xp.sqrt(second), hyper["epsilon"]))
        return moved, moments

    return Optimizer(name="yogi", hyper=hyper, init=init, update=update, elementwise=True)
