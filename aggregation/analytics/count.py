"""How many rows the clients hold together. Exact below 2**24 rows a client and 2**48 in all.

Under differential privacy no client counts for more than the clip, in rows, and the number has the noise's standard
error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coterie.aggregation.analytics.bound import QueryNoise, Shortened
from coterie.aggregation.analytics.query import Query
from coterie.aggregation.analytics.rule import QueryRule
from coterie.aggregation.reducers import Vector
from coterie.protocol.arrays import FloatArrays

if TYPE_CHECKING:
    from coterie.aggregation.horizontal.algorithm import Arrays
    from coterie.compute.array import Array


@dataclass(frozen=True)
class Count:
    """How many rows there are.

    rows: of all clients that were asked; whole without noise.
    error: its standard error.
    shortened: the clients of whose rows not all count; None without noise.
    """

    rows: float
    error: float = 0.0
    shortened: Shortened | None = None


def count_rule(clip: float = 0, noise: float = 0, elements: float = 1) -> QueryRule:
    """The rule of `count`.

    clip, noise, elements: see `QueryNoise`.
    """
    terms = QueryNoise.read("count", clip, noise, elements)
    bound = terms.bound(np.array([1.0, 0.0]))
    return QueryRule(
        name="count",
        parameters=terms.parameters,
        size=1 if bound is None else 2,
        contribute=_ones_of_rows if bound is None else _one_and_none,
        settings=terms.settings,
        bound=bound,
    )


def count(column: str) -> Query[Count]:
    """The number of rows. Every row has every column, so any column will do."""
    return Query(column, count_rule(), lambda terms: count_rule(**terms.parameters), _read)


def _ones_of_rows(values: Array, settings: Arrays) -> Array:
    from coterie.compute import numpy as xp

    return xp.ones((values.shape[0], 1))


def _one_and_none(values: Array, settings: Arrays) -> Array:
    from coterie.compute import numpy as xp

    return xp.concat([_ones_of_rows(values, settings), xp.zeros((values.shape[0], 1))], axis=1)


def _read(rule: QueryRule, total: Vector, settings: FloatArrays) -> Count:
    if rule.bound is None:
        return Count(int(total[0]))
    return Count(float(total[0]), float(rule.bound.deviations()[0]), rule.bound.shortened(total))
