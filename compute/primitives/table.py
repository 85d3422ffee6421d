"""All primitives by name."""

from coterie.compute.primitives import arithmetic, basic, comparison, functions, linear, reduction, shaping
from coterie.compute.primitives.row import Primitive

_FAMILIES = (basic, arithmetic, functions, comparison, shaping, reduction, linear)

PRIMITIVES: dict[str, Primitive] = {row.name: row for family in _FAMILIES for row in family.ROWS}
