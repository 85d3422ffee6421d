"""NAdam."""

from math import inf

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.optim.optimizer import Arrays, Optimizer, check_range, scaled, shifted, zeros_like

# All start at 0: 1 - 0.96^(t momentum_decay), 1 - the product of the momenta so far, and 1 - beta2^t. Complements keep
# the digits that float32 loses near 1.
DECAYED = "nadam.decayed"
FIRST = "nadam.first_correction"
SECOND = "nadam.second_correction"


def nadam(
    lr: float = 2e-3,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
    momentum_decay: float = 4e-3,
) -> Optimizer:
    """NAdam (Dozat 2016), with PyTorch's formulas; weight_decay is added to the gradient.

    u(t) = beta1 (1 - 0.96^(t momentum_decay) / 2);  m ← beta1 m + (1 - beta1) g;  v ← beta2 v + (1 - beta2) g²;
    p ← p - lr (u(t+1) m / (1 - u(1) … u(t+1)) + (1 - u(t)) g / (1 - u(1) … u(t))) / (sqrt(v / (1 - beta2^t)) +
    epsilon).

    State: "<parameter>.first" = m, "<parameter>.second" = v and three numbers of [1]. Hyper-parameters: lr, beta1,
    beta2, epsilon, and weight_decay where it is not zero; momentum_decay is a constant of the graph. Raises InputError
    for a number out of range.
    """
    check_range("nadam", 0, inf, lr=lr, weight_decay=weight_decay, momentum_decay=momentum_decay)
    check_range("nadam", 0, 1, beta1=beta1, beta2=beta2)
    # Below this, epsilon would vanish in float32 and a parameter without gradient would become 0/0.
    check_range("nadam", 1e-30, inf, epsilon=epsilon)
    hyper = {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon} | (
        {"weight_decay": weight_decay} if weight_decay else {}
    )
    fading = 1 - 0.96**momentum_decay

    def init(params: Arrays) -> dict[str, Array]:
        numbers = {name: xp.zeros((1,)) for name in (DECAYED, FIRST, SECOND)}
        return zeros_like(params, "first") | zeros_like(params, "second") | numbers

    def update(
        grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        # Arithmetic on [1]; where active is 0 the rates and the steps are 0, the keeps are 1, and the corrections are
        # kept off 0 so that the steps are not 0/0.
        rate1, rate2, off = active * (1 - hyper["beta1"]), active * (1 - hyper["beta2"]), 1 - active
        keep1, keep2 = 1 - rate1, 1 - rate2
        decayed = state[DECAYED] + active * fading * (1 - state[DECAYED])
        following = decayed + fading * (1 - decayed)
        now, then = (0.5 * hyper["beta1"] * (1 + passed) for passed in (decayed, following))
        first = state[FIRST] + active * (1 - state[FIRST]) * (1 - now)
        second = state[SECOND] + rate2 * (1 - state[SECOND])
        ahead = first + (1 - first) * (1 - then)
        by_mean = -(hyper["lr"] * active * then / (ahead + off))
        by_gradient = -(hyper["lr"] * active * (1 - now) / (first + off))
        inverse = 1 / xp.sqrt(second + off)
        moved, moments = dict(params), dict(state) | {DECAYED: decayed, FIRST: first, SECOND: second}
        for name, gradient in grads.items():
            param = params[name]
            if weight_decay:
                gradient = gradient + scaled(hyper["weight_decay"], param)
            mean = scaled(keep1, state[f"{name}.first"]) + scaled(rate1, gradient)
            square = scaled(keep2, state[f"{name}.second"]) + scaled(rate2, gradient * gradient)
            moments |= {f"{name}.first": mean, f"{name}.second": square}
            spread = shifted(scaled(inverse, xp.sqrt(square)), hyper["epsilon"])
            moved[name] = param + (scaled(by_mean, mean) + scaled(by_gradient, gradient)) / spread
        return moved, moments

    return Optimizer(name="nadam", hyper=hyper, init=init, update=update, elementwise=True)
