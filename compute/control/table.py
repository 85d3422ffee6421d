"""All structured primitives by name."""

from coterie.compute.control import calls, cond, loop, scan
from coterie.compute.control.row import Structured
from coterie.compute.extension import structured

_FAMILIES = (calls, cond, loop, scan, structured)

STRUCTURED: dict[str, Structured] = {row.name: row for family in _FAMILIES for row in family.ROWS}
