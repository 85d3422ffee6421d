"""What an optimizer is."""

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Protocol, TypeAlias, cast

import numpy as np

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.errors import InputError

Arrays: TypeAlias = Mapping[str, Array]


class Init(Protocol):
    """The first state for these parameters."""

    def __call__(self, params: Arrays) -> dict[str, Array]: ...


class Update(Protocol):
    """One step; see Optimizer."""

    def __call__(
        self, grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]: ...


class WeightedUpdate(Protocol):
    """One step that also reads ``weight`` [1], the sum of the sample weights that the gradients were divided by."""

    def __call__(
        self, grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array, weight: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]: ...


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """A first state and an update rule.

    name: how it is called in a manifest. hyper: its hyper-parameters and their defaults; they are inputs of the graph,
    float32[1], so that a schedule needs no new graph. init(params): the state, arrays by name: "<parameter>.<what>" for
    one of a parameter's own, or float32[1]. update(grads, state, params, hyper, active): the new (params, state).
    grads: by the name of the parameter; a parameter without a gradient comes back as it is. active: float32[1], 1 for a
    step, 0 for none. weighted: the same for an optimizer that must know how many examples stand behind a gradient;
    callers that know it call ``step``.

    elementwise: every element of a parameter moves by its own gradient and its own element of the state alone, so that
    tensors may be joined and cut (see ``packed``).

    Guarantees: pure, eager or traced. With active = 0, finite gradients, and no -0.0 in params or state, both come back
    bit for bit. Scalars are combined before they touch a tensor, so ``active`` costs no pass over the parameters.
    """

    name: str
    hyper: Mapping[str, float]
    init: Init
    update: Update
    elementwise: bool = False
    weighted: WeightedUpdate | None = None

    def step(
        self, grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array, *, weight: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """``update``, told ``weight``: the sum of the sample weights that ``grads`` were divided by, of () or [1]."""
        if self.weighted is None:
            return self.update(grads, state, params, hyper, active)
        return self.weighted(grads, state, params, hyper, active, xp.reshape(weight, (1,)))


def scaled(factor: Array, x: Array) -> Array:
    """factor [1] times x of any shape, in x's shape."""
    return (factor if x.ndim else xp.reshape(factor, ())) * x


def shifted(x: Array, term: Array) -> Array:
    """x of any shape plus term [1], in x's shape."""
    return x + (term if x.ndim else xp.reshape(term, ()))


def zeros_like(params: Arrays, what: str) -> dict[str, Array]:
    """A zero tensor for every parameter, named "<parameter>.<what>"."""
    return {f"{name}.{what}": xp.zeros(param.shape, dtype=param.dtype) for name, param in params.items()}


def check_range(optimizer: str, low: float, high: float, **values: float) -> None:
    """Require numbers in low <= value < high. Raises InputError naming the first that is none."""
    for name, value in values.items():
        if not isinstance(cast(object, value), Real) or not low <= value < high:
            raise InputError(f"{optimizer}: {name} must be at least {low:g} and below {high:g}, got {value!r}.")


def check_whole(where: str, least: int | None = 1, **values: object) -> None:
    """Require whole numbers of at least ``least``. Raises InputError naming the first that is none."""
    for name, value in values.items():
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or (least is not None and cast(int, value) < least):
            bound = "" if least is None else f" of at least {least}"
            raise InputError(f"{where}: {name} must be a whole number{bound}, got {value!r}.")
