"""Apply a structured primitive: evaluated at once, or recorded when an input belongs to the open trace."""

from collections.abc import Sequence
from functools import cache

import numpy as np

from coterie.compute.array import Array, refuse
from coterie.compute.control.row import Run, Structured
from coterie.compute.ir import Attributes, NDArray, Node, Type, Value, label
from coterie.compute.recorder import RECORDER
from coterie.compute.source import user_source
from coterie.errors import DTypeError, ShapeError


@cache
def _table() -> dict[str, Structured]:
    # Imported on first use: the rules of the table are themselves written with this module.
    from coterie.compute.control.table import STRUCTURED

    return STRUCTURED


@cache
def _run() -> Run:
    # Imported on first use: the interpreter reads the table.
    from coterie.compute.interpret import run

    return run


def is_structured(primitive: str) -> bool:
    """Whether a primitive holds graphs."""
    return primitive in _table()


def bind_structured(name: str, inputs: Sequence[Array], attributes: Attributes) -> tuple[Array, ...]:
    """All outputs. Raises ShapeError or DTypeError that names the user's line."""
    row = _table()[name]
    try:
        types = row.infer([array.type for array in inputs], attributes)
    except (ShapeError, DTypeError) as error:
        refuse(type(error), label(name, attributes), inputs, error.message, error.hint)
    recorder = RECORDER.get()
    if recorder is not None and any(recorder.claims(array) for array in inputs):
        values = tuple(recorder.lift(array) for array in inputs)
        outputs = tuple(Value(type_) for type_ in types)
        recorder.nodes.append(Node(name, values, outputs, attributes, user_source()))
        if recorder.evaluates:
            return tuple(recorder.evaluated(outputs, lambda: _evaluated(row, inputs, attributes, types)))
        return tuple(Array(None, value=value, recorder=recorder) for value in outputs)
    return tuple(Array(data) for data in _evaluated(row, inputs, attributes, types))


def _evaluated(
    row: Structured, inputs: Sequence[Array], attributes: Attributes, types: Sequence[Type]
) -> list[NDArray]:
    with np.errstate(all="ignore"):
        results = row.evaluate(_run(), [array.numpy() for array in inputs], attributes)
    return [np.asarray(result, dtype=type_.dtype) for result, type_ in zip(results, types, strict=True)]
