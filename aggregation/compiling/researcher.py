"""Calling the researcher's own code (a model, a loss, a metric), so that whatever goes wrong there says what and where.

Such code meets traced arrays for the first time when a plan is compiled, and it may do anything.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast, get_args

import numpy as np

from coterie import errors
from coterie.aggregation.external_model import is_shape
from coterie.compute.array import Array, ArrayLike, as_array
from coterie.compute.nn.module import Module, ParameterSpec, Role
from coterie.compute.source import source_of, user_source


class NamedArrays(dict[str, Array]):
    """Arrays by name; a name that is not there is told with those that are."""

    def __init__(self, what: str, arrays: Mapping[str, Array]) -> None:
        super().__init__(arrays)
        self._what = what

    def __missing__(self, name: str) -> Array:
        found = ", ".join(list(self)[:12]) + (" …" if len(self) > 12 else "")
        raise errors.TraceError(f"{user_source()}: there is no {self._what} {name!r}; there are {found}.")


def ask(
    what: str, function: Callable[..., Any], *arguments: Any, takes: str, code: str, hint: str | None = None
) -> Any:
    """What the function returns.

    what: a name for it, as in "The loss 'loss'".
    takes: what it takes, for people.
    hint: what to do when they do not fit.
    Raises errors.ExperimentError with ``code``, naming the line of the researcher's file.
    """
    try:
        return function(*arguments)
    except errors.InputError as error:
        misfit = isinstance(error, errors.ShapeError | errors.DTypeError)
        verb = "does not take" if misfit else "cannot be used on"
        raise errors.ExperimentError(
            f"{what} {verb} {takes}: {error.message}", hint=error.hint or hint, code=code
        ) from error
    except errors.CoterieError:
        raise
    except Exception as error:
        source = source_of(error)
        where = f" at {source}" if source else ""
        raise errors.ExperimentError(
            f"{what} raised {type(error).__name__}{where}: {error} (given {takes}).",
            hint="It also runs on plain arrays, without an experiment: call it by itself and fix that line.",
            code=code,
        ) from error


def array(what: str, result: Any, *, code: str) -> Array:
    """A result as an array. Raises errors.ExperimentError with ``code`` for a tuple, None or anything else."""
    if not isinstance(result, (Array, np.ndarray, np.generic, float, int)):
        hint = "Is its `return` missing?" if result is None else "Return one array."
        raise errors.ExperimentError(f"{what} returned a {type(result).__name__}, not an array.", hint=hint, code=code)
    return as_array(cast(ArrayLike, result))


def parameters(model: Module) -> Mapping[str, ParameterSpec]:
    """The parameters that a model asks for. Raises errors.ExperimentError for specs that a plan cannot carry."""
    specs: Mapping[str, Any] = ask("The model's specs()", model.specs, takes="nothing", code="model_mismatch")
    for name, spec in specs.items():
        if not isinstance(spec, ParameterSpec):
            raise errors.ExperimentError(
                f"The model's specs() has a {type(spec).__name__} for {name!r}.",
                hint="Give each parameter a ParameterSpec(shape, init), for example "
                "ParameterSpec((4, 3), nn.Uniform(0.1)).",
                code="model_mismatch",
            )
        rules = (
            (
                isinstance(cast(object, spec.shape), tuple) and is_shape(spec.shape),
                f"the shape {spec.shape!r}; it must be a tuple of one or more whole numbers of at least 1",
            ),
            (callable(spec.init), f"an init that cannot be called: {spec.init!r}"),
            (spec.role in get_args(Role), f"the role {spec.role!r}; there are {', '.join(get_args(Role))}"),
        )
        for holds, message in rules:
            if not holds:
                alone = cast(object, spec.shape) == ()
                hint = "Give a single number the shape (1,), which broadcasts as () does." if alone else None
                raise errors.ExperimentError(f"Parameter {name!r} has {message}.", hint=hint, code="model_mismatch")
    if not any(spec.role == "shared" for spec in specs.values()):
        raise errors.ExperimentError("The model has no parameter to train.", code="model_mismatch")
    return specs
