"""Shampoo: gradients divided by the root of their own second moments along each axis."""

from math import inf, prod
from numbers import Real
from typing import cast

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.optim.inverse_root import inverse_root
from coterie.compute.optim.optimizer import Arrays, Optimizer, check_range, check_whole, scaled, zeros_like
from coterie.errors import InputError

# Added where a statistic is all zeros, so that a gradient of zero gives a step of zero and not 0/0.
_TINY = 1e-30
_SMALL = 1e-8


def shampoo(lr: float = 0.1, *, decay: float = 1.0, epsilon: float = 1e-4, largest: int = 512) -> Optimizer:
    """Shampoo (Gupta, Koren and Singer 2018), an optimizer that follows the curvature along the axes of each parameter.

    A parameter of rank 2 or more is taken as a matrix W [first axis, all others], with gradient G:

    L ← decay L + G Gᵀ;  R ← decay R + Gᵀ G;  W ← W - lr (L + δ I)^(-1/4) G (R + δ' I)^(-1/4),

    where δ is ``epsilon`` times the mean of L's diagonal. An axis longer than ``largest`` is left out, and then the
    other one's root is -1/2. Vectors, numbers, and matrices of two long axes are Adagrad's: v ← decay v + g²; p ← p -
    lr g / (sqrt(v) + 1e-8).

    The roots are computed by products alone (see ``inverse_root``), about a hundred for each axis and step, so a step
    costs much more than Adam's, and fewer are needed. State: "<parameter>.left", "<parameter>.right" or
    "<parameter>.square". Hyper-parameters: lr, decay, epsilon. Raises InputError for a number out of range.
    """
    check_range("shampoo", 0, inf, lr=lr)
    check_range("shampoo", 1e-7, 1, epsilon=epsilon)
    if not isinstance(cast(object, decay), Real) or not 0 < decay <= 1:
        raise InputError(f"shampoo: decay must be above 0 and at most 1, got {decay!r}.")
    check_whole("shampoo", largest=largest)

    def init(params: Arrays) -> dict[str, Array]:
        state: dict[str, Array] = {}
        for name, param in params.items():
            sides = _sides(param, largest)
            state |= {f"{name}.{side}": xp.zeros((size, size)) for side, size in sides.items()}
            state |= {} if sides else zeros_like({name: param}, "square")
        return state

    def update(
        grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        step, fade = -(hyper["lr"] * active), active * (hyper["decay"] - 1)
        moved, kept = dict(params), dict(state)
        for name, gradient in grads.items():
            sides = _sides(gradient, largest)
            if not sides:
                before = state[f"{name}.square"]
                square = before + (scaled(fade, before) + scaled(active, gradient * gradient))
                kept[f"{name}.square"] = square
                moved[name] = params[name] + scaled(step, gradient / (xp.sqrt(square) + _SMALL))
                continue
            g = xp.reshape(gradient, (gradient.shape[0], prod(gradient.shape[1:])))
            direction, power = g, 2 * len(sides)
            for side in sides:
                before = state[f"{name}.{side}"]
                product = g @ g.mT if side == "left" else g.mT @ g
                moment = before + (fade * before + active * product)
                kept[f"{name}.{side}"] = moment
                root = inverse_root(_damped(moment, hyper["epsilon"]), power)
                direction = root @ direction if side == "left" else direction @ root
            moved[name] = params[name] + step * xp.reshape(direction, gradient.shape)
        return moved, kept

    return Optimizer(name="shampoo", hyper={"lr": lr, "decay": decay, "epsilon": epsilon}, init=init, update=update)


def _sides(param: Array, largest: int) -> dict[str, int]:
    """The axes of the matrix that have a statistic, and their sizes."""
    if param.ndim < 2:
        return {}
    sizes = {"left": param.shape[0], "right": prod(param.shape[1:])}
    return {side: size for side, size in sizes.items() if size <= largest}


def _damped(moment: Array, epsilon: Array) -> Array:
    size = moment.shape[0]
    identity = xp.eye(size)
    mean = xp.reshape(xp.sum(moment * identity), (1,)) * (1 / size)
    return moment + (epsilon * mean + _TINY) * identity
