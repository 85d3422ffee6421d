"""Gradient accumulation: several micro-batches make one step of an optimizer."""

from typing import cast

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.data.batches import SMALLEST_WEIGHT
from coterie.compute.optim.optimizer import Arrays, Optimizer, check_whole, scaled, zeros_like
from coterie.errors import InputError

# The state beside the gradient sums, and the hyper-parameter that says how many micro-batches make a step.
WEIGHT = "accumulate.weight"
COUNT = "accumulate.count"
HYPER = "micro_batches"


def accumulate(optimizer: Optimizer, micro_batches: int) -> Optimizer:
    """The optimizer, moving once for every ``micro_batches`` gradients, by their mean over all examples.

    Each gradient counts by its sum of sample weights (``Optimizer.step``), so micro-batches of any weights, padded ones
    among them, equal the one large batch to rounding; by ``Optimizer.update`` all count the same. The number is a
    hyper-parameter of its own, a runtime scalar: a schedule may change it, and feeding 1 makes the next gradient, with
    all that was gathered before it, a step.

    State: "<parameter>.accumulated", the sum of weight times gradient; two counts of [1]; and the inner optimizer's.
    The inner step is computed each time and takes effect at the last micro-batch only, so a step of the inner optimizer
    costs its passes ``micro_batches`` times.

    What is left when training ends in the middle of a group moves nothing: it stays in the state, and a training that
    goes on from that state completes the group. In an experiment each round starts with fresh optimizer state, so a
    leftover is dropped; choose the steps of a round as a multiple. A group without any weight takes a step of gradient
    zero. Raises InputError for a number below 1 and for an optimizer that accumulates already.
    """
    if not isinstance(cast(object, optimizer), Optimizer):
        raise InputError(f"accumulate: needs an Optimizer, such as optim.adam(0.01), got {optimizer!r}.")
    check_whole("accumulate", micro_batches=micro_batches)
    if HYPER in optimizer.hyper:
        raise InputError(f"accumulate: {optimizer.name} accumulates already.", hint="Multiply the two numbers.")

    def init(params: Arrays) -> dict[str, Array]:
        counts = {WEIGHT: xp.zeros((1,)), COUNT: xp.zeros((1,))}
        return optimizer.init(params) | zeros_like(params, "accumulated") | counts

    def weighted(
        grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array, weight: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        count = state[COUNT] + active
        total = state[WEIGHT] + active * weight
        # A number and not a choice: 1 at the last micro-batch of a group, else 0.
        last = active * xp.astype(xp.greater_equal(count, hyper[HYPER]), xp.float32)
        counted = active * weight
        sums = {name: state[f"{name}.accumulated"] + scaled(counted, gradient) for name, gradient in grads.items()}
        share = 1 / xp.maximum(total, SMALLEST_WEIGHT)
        means = {name: scaled(share, gathered) for name, gathered in sums.items()}
        own = {name: state[name] for name in state if name not in _own(params)}
        moved, kept = optimizer.step(means, own, params, hyper, last, weight=total)
        # x - last x and not (1 - last) x: the difference is +0 and never -0, which a later sum would not keep.
        cleared = {f"{name}.accumulated": gathered - scaled(last, gathered) for name, gathered in sums.items()}
        counts = {WEIGHT: total - last * total, COUNT: count - last * count}
        return moved, dict(state) | kept | cleared | counts

    def update(
        grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        return weighted(grads, state, params, hyper, active, xp.ones((1,)))

    return Optimizer(
        name=f"accumulate {optimizer.name}",
        hyper={**optimizer.hyper, HYPER: float(micro_batches)},
        init=init,
        update=update,
        weighted=weighted,
    )


def _own(params: Arrays) -> set[str]:
    """Names of the state that belongs to the accumulation and not to the inner optimizer."""
    return {WEIGHT, COUNT, *(f"{name}.accumulated" for name in params)}
