"""Losses and metrics of a researcher: functions of a batch that give one value per example, and sums of several."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from inspect import Parameter, signature
from operator import add
from typing import Any, TypeAlias, cast

from coterie.aggregation.plan.manifest import SAMPLE_WEIGHT
from coterie.compute.array import Array

PerExample: TypeAlias = Callable[[Array, Array], Array] | Callable[[Array, Array, Array], Array]
"""(prediction, label) → one float32 value per example, ``[B]``; one with a third parameter ``sample_weight`` gets 1 for
each row and 0 for padding, ``[B]``.
"""


def takes_weights(function: PerExample) -> bool:
    """Whether a loss or a metric asks for the weights of the rows, as its third parameter."""
    try:
        third = [*signature(function).parameters.values()][2:3]
    except (TypeError, ValueError):
        return False
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return any(parameter.name == SAMPLE_WEIGHT and parameter.kind in positional for parameter in third)


@dataclass(frozen=True)
class SummedLoss:
    """The sum of several losses.

    parts: by name, each (prediction, label) → ``[B]``.
    """

    parts: Mapping[str, PerExample]

    def __call__(self, prediction: Array, label: Array, sample_weight: Array) -> Array:
        values: list[Array] = [
            cast(Any, part)(prediction, label, *((sample_weight,) if takes_weights(part) else ()))
            for part in self.parts.values()
        ]
        return reduce(add, values)


def parts_of(loss: PerExample) -> tuple[PerExample, ...]:
    """The losses that a loss is the sum of: itself, where it is no sum."""
    return tuple(loss.parts.values()) if isinstance(loss, SummedLoss) else (loss,)
