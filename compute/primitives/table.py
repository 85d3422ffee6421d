"""All primitives by name."""

from coterie.compute.primitives import (
    arithmetic,
    basic,
    batch,
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

_NOT_COMPUTED = {"constant", "stop_gradient", "barrier"}
ELEMENTWISE: frozenset[str] = frozenset(
    row.name for row in PRIMITIVES.values() if row.batch in (batch.unary, batch.elementwise)
).difference(_NOT_COMPUTED)
"""Primitives whose element i needs element i of each operand alone, after they have been broadcast. A constant, and
what hands its operand on to say something to a pass or to autodiff, compute nothing and are not among them."""
