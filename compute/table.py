"""All primitives by name: the core, those that hold graphs, and the one that stands for every primitive of a user's."""

from collections.abc import Callable

from coterie.compute.control import calls, cond, loop, scan
from coterie.compute.dispatch import DISPATCH
from coterie.compute.extension import structured
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
from coterie.compute.primitives.facts import Facts
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
    calls,
    cond,
    loop,
    scan,
    structured,
)

PRIMITIVES: dict[str, Primitive] = {row.name: row for family in _FAMILIES for row in family.ROWS}

DISPATCH.rows = PRIMITIVES


def having(fact: Callable[[Facts], bool]) -> frozenset[str]:
    """The names of the primitives whose facts are such."""
    return frozenset(name for name, row in PRIMITIVES.items() if fact(row.facts))


ELEMENTWISE = having(lambda facts: facts.elementwise)
"""Primitives whose element i needs element i of each operand alone, after they have been broadcast."""
PLAIN = having(lambda facts: facts.holds is None)
"""Primitives that hold no graphs: the closed core, of which each has one output."""
