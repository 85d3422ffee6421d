"""What an optimizer is."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import wraps
from numbers import Real
from typing import Protocol, TypeAlias, cast

import numpy as np

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.source import user_source
from coterie.errors import InputError, ShapeError

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
    callers that know it call ``step``. All raise InputError for what is missing, ShapeError for a gradient of another
    shape than its parameter's.

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

    def __post_init__(self) -> None:
        plain = self.update

        @wraps(plain)
        def update(
            grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array
        ) -> tuple[dict[str, Array], dict[str, Array]]:
            return plain(grads, self._checked(grads, state, params, hyper), params, hyper, active)

        object.__setattr__(self, "update", update)

    def _checked(self, grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays) -> Arrays:
        """The state, after all have been checked, as one that says what it lacks."""
        where = f"{user_source()}: {self.name}"
        for what, given in {"grads": grads, "state": state, "params": params, "hyper": hyper}.items():
            if not isinstance(cast(object, given), Mapping):
                raise InputError(
                    f"{where}: {what} must be arrays by name, got a {type(given).__name__}.",
                    hint="The order is update(grads, state, params, hyper, active).",
                )
        if missing := sorted(self.hyper.keys() - hyper.keys()):
            raise InputError(
                f"{where}: hyper lacks {', '.join(missing)}; it has {', '.join(hyper) or 'nothing'}.",
                hint="Give a number for every name in optimizer.hyper, which holds the defaults.",
            )
        if unknown := sorted(grads.keys() - params.keys()):
            raise InputError(
                f"{where}: there are gradients of {', '.join(unknown)}, which are no parameters.",
                hint="Gradients have the names of their parameters.",
            )
        for name, gradient in grads.items():
            if gradient.shape != params[name].shape:
                raise ShapeError(
                    f"{where}: the gradient of {name!r} is {list(gradient.shape)}, the parameter is "
                    f"{list(params[name].shape)}.",
                    hint="Sum a gradient over the axes that its parameter does not have.",
                )
        return _State(state)

    def step(
        self, grads: Arrays, state: Arrays, params: Arrays, hyper: Arrays, active: Array, *, weight: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """``update``, told ``weight``: the sum of the sample weights that ``grads`` were divided by, of () or [1]."""
        if self.weighted is None:
            return self.update(grads, state, params, hyper, active)
        checked = self._checked(grads, state, params, hyper)
        return self.weighted(grads, checked, params, hyper, active, xp.reshape(weight, (1,)))


class _State(dict[str, Array]):
    """A state that says what it lacks."""

    def __missing__(self, name: str) -> Array:
        raise InputError(
            f"{user_source()}: the state of the optimizer lacks {name!r}.",
            hint="Start with state = optimizer.init(params) and pass on what update returns.",
        )


def scaled(factor: Array, x: Array) -> Array:
    """factor [1] times x of any shape, in x's shape."""
    return (factor if x.ndim else xp.reshape(factor, ())) * x


def shifted(x: Array, term: Array) -> Array:
    """x of any shape plus term [1], in x's shape."""
    return x + (term if x.ndim else xp.reshape(term, ()))


def zeros_like(params: Arrays, what: str) -> dict[str, Array]:
    """A zero tensor for every parameter, named "<parameter>.<what>". Raises InputError for what is not by name."""
    if not isinstance(cast(object, params), Mapping):
        raise InputError(
            f"{user_source()}: init takes parameters by name, got a {type(params).__name__}.",
            hint='Name them: {"w": w}.',
        )
    return {f"{name}.{what}": xp.zeros(param.shape, dtype=param.dtype) for name, param in params.items()}


# A hyper-parameter is fed as float32, in which what is larger is infinite.
_LARGEST = float(np.finfo(np.float32).max)


def check_range(optimizer: str, low: float, high: float, **values: float) -> None:
    """Require numbers in low <= value < high. Raises InputError naming the first that is none."""
    for name, value in values.items():
        if not isinstance(cast(object, value), Real) or not low <= value < high or value > _LARGEST:
            raise InputError(
                f"{optimizer}: {name} must be at least {low:g} and below {high:g} in float32, got {value!r}."
            )


def check_whole(where: str, least: int | None = 1, **values: object) -> None:
    """Require whole numbers of at least ``least``. Raises InputError naming the first that is none."""
    for name, value in values.items():
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or (least is not None and cast(int, value) < least):
            bound = "" if least is None else f" of at least {least}"
            raise InputError(f"{where}: {name} must be a whole number{bound}, got {value!r}.")
