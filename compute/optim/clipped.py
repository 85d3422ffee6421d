"""Gradient clipping: an optimizer that is given gradients of a bounded length."""

from math import inf
from typing import cast

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.optim.optimizer import Arrays, Optimizer, check_range, scaled
from coterie.compute.optim.packing import packed
from coterie.errors import InputError

HYPER = "clip_norm"
# As PyTorch's clip_grad_norm_ adds it, so that a gradient of zero divides nothing by zero.
_SMALLEST = 1e-6


def clipped(optimizer: Optimizer, norm: float) -> Optimizer:
    """The optimizer, given all gradients times min(1, norm / (their L2 norm + 1e-6)): the norm is that of all tensors
    that it moves together (Pascanu et al. 2013; PyTorch's ``clip_grad_norm_``).

    In `accumulate` it clips the mean of the micro-batches: ``accumulate(clipped(adam(0.01), 1.0), 4)``. Under
    ``ExampleLevel`` privacy each row's gradient is clipped anyway; this clips their noised mean.

    norm: above 0, in the units of the gradient; a hyper-parameter of its own, ``clip_norm``, which a schedule may
        change.
    Raises InputError for a norm that is not above 0, and for an optimizer that clips already.
    """
    if not isinstance(cast(object, optimizer), Optimizer):
        raise InputError(f"clipped: needs an Optimizer, such as optim.adam(0.01), got {optimizer!r}.")
    check_range("clipped", 0, inf, norm=norm)
    if norm == 0:
        raise InputError("clipped: norm must be above 0.", hint="A gradient of length 0 trains nothing.")
    if HYPER in optimizer.hyper:
        raise InputError(f"clipped: {optimizer.name} clips already.", hint="Keep the smaller norm.")
    inner = packed(optimizer)

    def weighted(
        grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array, weight: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        squares = xp.zeros((1,))
        for gradient in grads.values():
            squares = squares + xp.reshape(xp.sum(gradient * gradient), (1,))
        factor = xp.minimum(hyper[HYPER] / (xp.sqrt(squares) + _SMALLEST), 1.0)
        short = {name: scaled(factor, gradient) for name, gradient in grads.items()}
        return inner.step(short, state, params, hyper, active, weight=weight)

    def update(
        grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        return weighted(grads, state, params, hyper, active, xp.ones((1,)))

    return Optimizer(
        name=f"clipped {optimizer.name}",
        hyper={**optimizer.hyper, HYPER: float(norm)},
        init=inner.init,
        update=update,
        weighted=weighted,
    )
