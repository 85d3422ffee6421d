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

# What the families are for: "dataflow" passes values on, "tensor" computes and moves elements, "nn" is for networks.
# The fourth category, "control", is coterie.compute.control.table.STRUCTURED.
_FAMILIES = {
    "dataflow": (basic,),
    "tensor": (
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
    ),
    "nn": (convolution, pooling),
}

PRIMITIVES: dict[str, Primitive] = {
    row.name: row for families in _FAMILIES.values() for family in families for row in family.ROWS
}

CATEGORIES: dict[str, str] = {
    row.name: category for category, families in _FAMILIES.items() for family in families for row in family.ROWS
}
"""What each primitive is for: "dataflow", "tensor" or "nn"."""
