"""One training step as a pure function of state and batch: eager, under ``jit``, in ``data_sink`` or in a trace."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from coterie.compute import numpy as xp
from coterie.compute.array import Array, as_array
from coterie.compute.data.batches import WEIGHT
from coterie.compute.ir import NDArray
from coterie.compute.optim.optimizer import Arrays, Optimizer
from coterie.compute.source import user_source
from coterie.compute.step.gradient import loss_gradient, weighted_mean
from coterie.compute.step.precision import Precision, compute_in, loss_scale, skipping_overflows
from coterie.errors import InputError, ShapeError

State: TypeAlias = dict[str, dict[str, Array]]
"""``{"params": arrays by name, "optimizer": arrays by name}``."""


def optimizer_for(optimizer: Optimizer, precision: Precision | None) -> Optimizer:
    """The optimizer that runs for a precision: the given one, or that one behind the test for an overflow."""
    return optimizer if precision is None else skipping_overflows(optimizer, precision)


def first_state(optimizer: Optimizer, params: Mapping[str, Array | NDArray]) -> State:
    """The state before any step, with copies of the parameters."""
    # Adding 0 turns -0 into +0; only then does active = 0 return the state bit for bit.
    held = {name: as_array(value) + 0.0 for name, value in params.items()}
    return {"params": held, "optimizer": optimizer.init(held)}


@dataclass(frozen=True)
class TrainStep:
    """``state, loss = step(state, batch)``: value and gradient of an objective, and one step of an optimizer.

    objective(params, batch): one float32 value per example, [B], which is averaged by the batch's ``sample_weight`` [B]
    where it has one; or a number, taken as it is; or a pair of that and a tree of arrays, and then the step returns
    ``state, (loss, tree)``. params: arrays by name; batch: arrays by name. precision: compute the objective in half
    precision with a scaled loss; parameters and optimizer state stay float32.

    Guarantees: pure. With ``active`` 0 the state comes back bit for bit (see Optimizer); so it does when half precision
    overflows, but for the loss scale. A batch without weight has a zero gradient, never NaN. Raises ShapeError for an
    objective of another shape.
    """

    objective: Callable[[Any, Any], Any]
    optimizer: Optimizer
    precision: Precision | None = None

    @property
    def inner(self) -> Optimizer:
        """The optimizer that runs, see :func:`optimizer_for`."""
        return optimizer_for(self.optimizer, self.precision)

    def init(self, params: Mapping[str, Array | NDArray]) -> State:
        """The first state for these parameters, which are copied."""
        return first_state(self.inner, params)

    def __call__(
        self,
        state: Mapping[str, Arrays],
        batch: Mapping[str, Any],
        hyper: Mapping[str, Any] | None = None,
        active: Array | None = None,
    ) -> tuple[State, Any]:
        """The next state and the loss, of shape (), in a pair with what else the objective returned.

        hyper: hyper-parameters that are not the optimizer's own, numbers or arrays [1]. active: [1]; 1 unless given.
        """
        optimizer = self.inner
        given = {**optimizer.hyper, **(hyper or {})}
        scalars = {name: xp.reshape(as_array(value), (1,)) for name, value in given.items()}
        kept = dict(state["optimizer"])

        def objective(params: Arrays) -> tuple[Array, Any]:
            returned = self._asked(params, batch)
            if not isinstance(cast(object, returned), Array | tuple):
                raise InputError(
                    f"{user_source()}: the objective must return an array, or one and more in a pair; it returned a "
                    f"{type(returned).__name__}."
                )
            if isinstance(returned, Array):
                return self._reduced(returned, batch), ()
            losses, more = returned
            return self._reduced(losses, batch), (more,)

        loss, more, gradients = loss_gradient(objective, state["params"], scale=loss_scale(kept))
        weight = xp.sum(as_array(batch[WEIGHT])) if WEIGHT in batch else xp.ones(())
        on = xp.ones((1,)) if active is None else active
        params, moved = optimizer.step(gradients, kept, state["params"], scalars, on, weight=weight)
        return {"params": params, "optimizer": moved}, (loss, *more) if more else loss

    def _asked(self, params: Arrays, batch: Mapping[str, Any]) -> Any:
        objective = self.objective if self.precision is None else compute_in(self.precision.dtype, self.objective)
        return objective(params, batch)

    def _reduced(self, losses: Array, batch: Mapping[str, Any]) -> Array:
        if losses.ndim == 0:
            return losses
        if losses.ndim != 1:
            raise ShapeError(
                f"{user_source()}: the objective returned {losses.type}, not a number or one value per example.",
                hint="Reduce it: mean over all axes but the first.",
            )
        if WEIGHT not in batch:
            return xp.mean(losses)
        weight = as_array(batch[WEIGHT])
        if weight.shape != losses.shape:
            raise ShapeError(
                f"{user_source()}: the objective returned {losses.type} for {weight.type} sample weights.",
                hint="Return one value per example, or a number.",
            )
        return weighted_mean(losses, weight)
