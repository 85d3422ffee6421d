"""All primitives by name."""

from coterie.compute.primitives import (
    arithmetic,
    basic,
    comparison,
    convolution,
    functions,
    linear,
    pooling,
    reduction,
    shaping,
)
from coterie.compute.primitives.row import Primitive

_FAMILIES = (basic, arithmetic, functions, comparison, shaping, reduction, linear, convolution, pooling)

PRIMITIVES: dict[str, Primitive] = {row.name: row for family in _FAMILIES for row in family.ROWS}
