"""What a trainer requires of its arguments and data before it traces anything."""

from collections.abc import Mapping
from math import nan
from types import FunctionType
from typing import Any, cast

import numpy as np

from coterie.compute.ir import DTYPES, NDArray
from coterie.compute.nn.module import Module, ParameterSpec
from coterie.compute.onnx.importer.frameworks import export_hint
from coterie.compute.optim.optimizer import Optimizer
from coterie.compute.step.precision import Precision
from coterie.errors import InputError

# What an evaluation sums besides the metrics.
RESERVED = ("examples", "loss")


def check_arguments(
    model: object, loss: object, optimizer: object, precision: object, metrics: Mapping[str, object]
) -> None:
    """Require a module, functions, an optimizer and a precision, and metrics under names of their own. Raises
    InputError naming the first that is none.
    """
    if hint := export_hint(model):
        found = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise InputError(f"Trainer: the model must be an nn.Module of coterie, got {found}.", hint=hint)
    _require(model, Module, "model", "an nn.Module, such as nn.Sequential(nn.Linear(4, 3))")
    _require(optimizer, Optimizer, "optimizer", "an Optimizer, such as optim.adam(0.01)")
    if precision is not None:
        _require(precision, Precision, "precision", "a Precision, such as amp('O1')")
    for name, function in {
        "loss": loss,
        **{f"metric {name!r}": function for name, function in metrics.items()},
    }.items():
        check_callable(name, function, "of prediction and label that gives one value per example")
    if taken := sorted(set(RESERVED) & metrics.keys()):
        raise InputError(f"Trainer: a metric cannot be called {taken[0]!r}, which evaluate gives by itself.")


def check_callable(what: str, value: object, kind: str) -> None:
    """Require a function. Raises InputError."""
    if not callable(value):
        raise InputError(f"Trainer: the {what} must be a function {kind}, got {value!r}.")


def check_number(what: str, value: object) -> float:
    """The number, if float32 holds it. Raises InputError."""
    number = float(cast(Any, value)) if isinstance(value, int | float | np.number) else nan
    if not abs(number) <= float(np.finfo(np.float32).max):
        raise InputError(f"Trainer: the {what} must be a finite number, got {value!r}.")
    return number


def check_data(data: object, label: str) -> Mapping[str, NDArray]:
    """The data, if it is NumPy arrays by name of dtypes that graphs have, ``label`` and a feature among them. Raises
    InputError naming the array.
    """
    if not isinstance(data, Mapping):
        raise InputError(
            f"Trainer: the data must be arrays by name, got a {type(data).__name__}.",
            hint=f'Give a dictionary: {{"x": features, "{label}": labels}}.',
        )
    arrays = cast("Mapping[str, object]", data)
    if label not in arrays or len(arrays) < 2:
        raise InputError(
            f"Trainer: the data must have the label {label!r} and a feature; it has {', '.join(arrays) or 'nothing'}.",
            hint="Name the label with Trainer(..., label=...).",
        )
    for name, value in arrays.items():
        if not isinstance(value, np.ndarray):
            raise InputError(
                f"Trainer: the data's {name!r} must be a NumPy array, got a {type(value).__name__}.",
                hint="Convert it with np.asarray(x, dtype).",
            )
        dtype = cast(NDArray, value).dtype
        if dtype.name not in DTYPES or not dtype.isnative:
            order = "" if dtype.isnative else " in another machine's order of bytes"
            raise InputError(
                f"Trainer: the data's {name!r} has dtype {dtype.name}{order}.",
                hint=f"Convert it with astype to one of {', '.join(DTYPES)}.",
            )
    return cast("Mapping[str, NDArray]", data)


def check_initial(specs: Mapping[str, ParameterSpec], initial: object) -> dict[str, NDArray]:
    """First weights as float32, if they are arrays of the model's names and shapes. Raises InputError naming the first
    that is not, or is not finite.
    """
    if not isinstance(initial, Mapping):
        raise InputError(f"Trainer: the initial weights must be arrays by name, got a {type(initial).__name__}.")
    found: dict[str, NDArray] = {}
    for name, value in cast("Mapping[str, object]", initial).items():
        shape = None if name not in specs else list(specs[name].shape)
        array = np.array(cast(NDArray, value), np.float32) if isinstance(value, np.ndarray) else None
        if array is None or list(array.shape) != shape:
            given = type(cast(object, value)).__name__ if array is None else f"floats {list(array.shape)}"
            wanted = f"floats {shape}" if shape is not None else f"one of {', '.join(list(specs)[:12])}"
            raise InputError(f"Trainer: the initial weight {name!r} is {given}; it must be {wanted}.")
        if not np.isfinite(array).all():
            raise InputError(f"Trainer: the initial weight {name!r} is not finite in float32.")
        found[name] = array
    return found


def check_labels(name: str, labels: NDArray, classes: int) -> None:
    """Require labels in 0 .. classes - 1: one beyond would be learned as no class at all, without a word. Raises
    InputError.
    """
    if not labels.size or labels.dtype.kind not in "iu":
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise InputError(
            f"Trainer: the label {name!r} goes from {low} to {high}, but the model gives {classes} logits: class 0 to "
            f"{classes - 1}.",
            hint="Number the classes from 0, or give the last layer as many outputs as there are classes.",
        )


def _require(value: object, kind: type, what: str, wanted: str) -> None:
    if isinstance(value, kind):
        return
    if isinstance(value, type):
        found = f"the class {value.__name__}"
    elif isinstance(value, FunctionType):
        found = f"the function {value.__name__}"
    else:
        found = repr(value)
    raise InputError(f"Trainer: the {what} must be {wanted}, got {found}.")
