"""Sums over the rows of a batch, of which metrics are made."""

from collections.abc import Mapping

from coterie.compute import numpy as xp
from coterie.compute.array import Array


def batch_sums(values: Mapping[str, Array], weight: Array) -> dict[str, Array]:
    """``examples`` and the sum of each value over the rows by their weights, ``[1]`` each.

    values: of each row, ``[B]``, by name.
    weight: ``[B]``.
    """
    sums = {"examples": xp.sum(weight)} | {name: xp.sum(value * weight) for name, value in values.items()}
    return {name: xp.reshape(total, (1,)) for name, total in sums.items()}
