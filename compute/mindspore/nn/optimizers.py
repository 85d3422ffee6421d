"""Optimizers that are called with gradients and write the parameters; the steps are those of ``compute.optim``."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from coterie.compute import numpy as cnp
from coterie.compute import optim
from coterie.compute.array import Array, as_array
from coterie.compute.ir import NDArray
from coterie.compute.mindspore.cell import Cell
from coterie.compute.mindspore.parameter import Parameter, ParameterTuple
from coterie.compute.mindspore.tensor import Tensor
from coterie.compute.optim.optimizer import Arrays, scaled, zeros_like
from coterie.errors import ArgumentTypeError, ArgumentValueError

Rate: TypeAlias = "float | Array | Iterable[float] | Callable[[Array], Array]"


class Optimizer(Cell):
    """``optimizer(gradients)`` writes ``parameters`` and its own state.

    learning_rate: a number, one number for each step (the last stays), or a Cell or function of ``global_step``.
    Gradients stand in the order of the parameters. loss_scale: what the loss was multiplied by; gradients are divided
    by it. Raises ArgumentTypeError for groups of parameters, which are not here, ArgumentValueError for two parameters
    of one name and for a wrong number of gradients.
    """

    def __init__(
        self, rule: optim.Optimizer, params: Iterable[Parameter], learning_rate: Rate, loss_scale: float = 1.0
    ) -> None:
        super().__init__(auto_prefix=False)
        listed = list(params)
        for parameter in listed:
            if not isinstance(cast(object, parameter), Parameter):
                raise ArgumentTypeError(
                    f"An optimizer takes Parameters, not a {type(parameter).__name__}.",
                    hint="Pass network.trainable_params(); groups of parameters are not supported.",
                )
        if not listed:
            raise ArgumentValueError(
                f"{type(self).__name__}: there are no parameters.",
                hint="Cells in a plain list are not found: hold them in a CellList.",
            )
        self._refuse_twins(listed)
        self.parameters = ParameterTuple(listed)
        self._rule = rule
        self._scale = loss_scale
        self.global_step = Parameter(np.zeros((1,), np.int32), "global_step", requires_grad=False)
        self._schedule: Any = None
        if callable(learning_rate):
            self._schedule = learning_rate
        else:
            table = np.asarray(learning_rate, np.float32).reshape(-1)
            if not table.size:
                raise ArgumentValueError(
                    f"{type(self).__name__}: learning_rate is empty.", hint="Give a number, or one for each step."
                )
            self.learning_rate = Parameter(table, "learning_rate", requires_grad=False)
        for name, array in rule.init(self._named()).items():
            self.insert_param_to_cell(name, Parameter(array, f"{rule.name}.{name}", requires_grad=False))

    def _named(self) -> dict[str, Array]:
        return {parameter.name: parameter.held() for parameter in self.parameters}

    @property
    def rule(self) -> optim.Optimizer:
        """What it computes, as a value of ``compute.optim``."""
        return self._rule

    @property
    def loss_scale(self) -> float:
        """What gradients are divided by."""
        return self._scale

    @property
    def rates(self) -> NDArray | None:
        """The learning rate of each step, of which the last stays; None where a Cell or function makes them."""
        return None if self._schedule is not None else self.learning_rate.numpy()

    def rate_at(self, step: int) -> Array:
        """What the Cell or function of the learning rate makes of the number of a step."""
        return as_array(self._schedule(Tensor(np.asarray([step], np.int32))))

    def get_lr(self) -> Array:
        """The rate of this step, [1]."""
        if self._schedule is not None:
            return cnp.reshape(self._schedule(self.global_step), (1,))
        last = self.learning_rate.size - 1
        if not last:
            return self.learning_rate
        return cnp.take(self.learning_rate, cnp.minimum(self.global_step, last))

    def construct(self, gradients: Sequence[Array]) -> Array:
        if len(gradients) != len(self.parameters):
            raise ArgumentValueError(
                f"{type(self).__name__}: {len(gradients)} gradients for {len(self.parameters)} parameters."
            )
        unscaled = [g if self._scale == 1.0 else g * (1.0 / self._scale) for g in gradients]
        named = {p.name: g for p, g in zip(self.parameters, unscaled, strict=True)}
        slots = {name: p for name, p in self._parameters.items() if name not in ("global_step", "learning_rate")}
        hyper = {name: cnp.asarray([value], dtype="float32") for name, value in self._rule.hyper.items()}
        hyper["lr"] = self.get_lr()
        params: Arrays = {p.name: p for p in self.parameters}
        moved, state = self._rule.update(named, slots, params, hyper, cnp.ones((1,)))
        for parameter in self.parameters:
            parameter.set_data(moved[parameter.name])
        for name, slot in slots.items():
            slot.set_data(state[name])
        self.global_step.set_data(self.global_step + 1)
        return self.global_step


class SGD(Optimizer):
    """p ← p - lr v, v ← momentum v + g + weight_decay p; dampening is not here."""

    def __init__(
        self,
        params: Iterable[Parameter],
        learning_rate: Rate = 0.1,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        loss_scale: float = 1.0,
    ) -> None:
        if dampening:
            raise ArgumentValueError("SGD: dampening is not supported.", hint="Leave it at 0.")
        rule = optim.sgd(1.0, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)
        super().__init__(rule, params, learning_rate, loss_scale)


class Momentum(Optimizer):
    """v ← momentum v + g + weight_decay p; p ← p - lr v, or with use_nesterov p ← p - lr (g + momentum v)."""

    def __init__(
        self,
        params: Iterable[Parameter],
        learning_rate: Rate,
        momentum: float,
        weight_decay: float = 0.0,
        loss_scale: float = 1.0,
        use_nesterov: bool = False,
    ) -> None:
        rule = optim.sgd(1.0, momentum=momentum, nesterov=use_nesterov, weight_decay=weight_decay)
        super().__init__(rule, params, learning_rate, loss_scale)


class Adam(Optimizer):
    """Adam as ``compute.optim.adam`` computes it: eps is added to the root of the corrected second moment, where
    MindSpore adds it to the root of the plain one.
    """

    def __init__(
        self,
        params: Iterable[Parameter],
        learning_rate: Rate = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        loss_scale: float = 1.0,
    ) -> None:
        rule = optim.adam(1.0, beta1=beta1, beta2=beta2, epsilon=eps, weight_decay=weight_decay)
        super().__init__(rule, params, learning_rate, loss_scale)


class AdamWeightDecay(Optimizer):
    """m ← β1 m + (1 - β1) g, v ← β2 v + (1 - β2) g², p ← p - lr (m / (sqrt(v) + eps) + weight_decay p): without bias
    correction, as in MindSpore. ``compute.optim.adamw`` has it.
    """

    def __init__(
        self,
        params: Iterable[Parameter],
        learning_rate: Rate = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(_uncorrected(beta1, beta2, eps, weight_decay), params, learning_rate)


def _uncorrected(beta1: float, beta2: float, epsilon: float, weight_decay: float) -> optim.Optimizer:
    def init(params: Arrays) -> dict[str, Array]:
        return zeros_like(params, "first") | zeros_like(params, "second")

    def update(
        grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        moved, moments = dict(params), dict(state)
        for name, gradient in grads.items():
            mean = beta1 * state[f"{name}.first"] + (1 - beta1) * gradient
            square = beta2 * state[f"{name}.second"] + (1 - beta2) * (gradient * gradient)
            moments |= {f"{name}.first": mean, f"{name}.second": square}
            direction = mean / (cnp.sqrt(square) + epsilon) + weight_decay * params[name]
            moved[name] = params[name] - scaled(hyper["lr"] * active, direction)
        return moved, moments

    return optim.Optimizer(name="adam_weight_decay", hyper={"lr": 1.0}, init=init, update=update)
