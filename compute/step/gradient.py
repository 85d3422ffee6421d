"""The gradient of a batch: of the mean loss over its rows, by their weights."""

from collections.abc import Callable
from typing import TypeVar

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.autodiff import value_and_grad
from coterie.compute.data.batches import SMALLEST_WEIGHT
from coterie.compute.optim.optimizer import Arrays, scaled
from coterie.compute.passes.tune import before_gradients

Aux = TypeVar("Aux")


def weighted_mean(losses: Array, weight: Array) -> Array:
    """The mean of the rows' losses by their weights, of shape (). A batch without weight has the mean 0, never NaN.

    losses, weight: ``[B]``.
    """
    return xp.sum(losses * weight) / xp.maximum(xp.sum(weight), SMALLEST_WEIGHT)


def loss_gradient(
    objective: Callable[[Arrays], tuple[Array, Aux]], params: Arrays, *, scale: Array | None = None
) -> tuple[Array, Aux, dict[str, Array]]:
    """The loss, what else the objective returned, and the loss's gradient by each parameter.

    objective(params): the loss, of shape (), and a tree of arrays.
    scale: what the loss is multiplied by while it is differentiated, of shape (), so that small gradients survive half
        precision. The gradient is divided by it again; where it overflowed, it is not finite.

    The step is meant for the portable target, which plans are written for.
    """

    def minimised(params: Arrays) -> tuple[Array, tuple[Array, Aux]]:
        loss, more = objective(params)
        return loss if scale is None else loss * scale, (loss, more)

    (_, (loss, more)), gradient = value_and_grad(minimised, has_aux=True, before=before_gradients("portable"))(
        dict(params)
    )
    if scale is not None:
        back = xp.reshape(1 / scale, (1,))
        gradient = {name: scaled(back, value) for name, value in gradient.items()}
    return loss, more, gradient
