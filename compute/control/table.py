"""All structured primitives by name."""

from coterie.compute.control import calls, cond, loop, scan
from coterie.compute.control.row import Structured

STRUCTURED: dict[str, Structured] = {row.name: row for family in (calls, cond, loop, scan) for row in family.ROWS}
