"""All primitives by name."""

from coterie.compute.primitives import (
    arithmetic,
    basic,
    comparison,
    convolution,
    functions,
    indexing,
    linear,
    ordering,
    pooling,
    power,
    quotient,
    reduction,
    shaping,
    special,
)
from coterie.compute.primitives.row import Primitive

_FAMILIES = (
    basic,
    arithmetic,
    power,
    quotient,
    functions,
    special,
    comparison,
    shaping,
    indexing,
    reduction,
    ordering,
    linear,
    convolution,
    pooling,
)

PRIMITIVES: dict[str, Primitive] = {row.name: row for family in _FAMILIES for row in family.ROWS}
