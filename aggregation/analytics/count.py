"""How many rows the clients hold together. Exact below 2**24 rows a client and 2**48 in all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.aggregation.analytics.query import Query
from coterie.aggregation.analytics.rule import Rule, Told
from coterie.aggregation.reducers import Vector

if TYPE_CHECKING:
    from coterie.aggregation.horizontal.algorithm import Arrays
    from coterie.compute.array import Array


@dataclass(frozen=True)
class Count:
    """rows: of all clients that were asked."""

    rows: int


def count_rule() -> Rule:
    """The rule of `count`."""
    return Rule(name="count", parameters={}, size=1, contribute=_one, told={})


def count(column: str) -> Query[Count]:
    """The number of rows. Every row has every column, so any column will do."""
    return Query(column, count_rule(), _read)


def _one(values: Array, told: Arrays) -> Array:
    from coterie.compute import numpy as xp

    return xp.ones((values.shape[0], 1))


def _read(total: Vector, told: Told) -> Count:
    return Count(int(total[0]))
