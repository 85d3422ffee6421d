"""Where the numbers of a tensor are while several processes work on one step."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from coterie.errors import InputError

Kind: TypeAlias = Literal["whole", "rows", "part", "flat"]


@dataclass(frozen=True, slots=True)
class Placement:
    """``whole``: every process has all of it, with the same numbers. ``rows``: each has a part along the axis, on which
    the batch lies. ``part``: each has a tensor of the full shape, and their sum is the tensor. ``flat``: each has a
    stretch of its numbers as they lie in memory.

    blocks: how often all the rows lie one after the other on the axis, as they do once for each time in a recurrent
    layer; each block is cut.
    """

    kind: Kind
    axis: int = 0
    blocks: int = 1

    def at(self, axis: int) -> "Placement":
        """Cut in the same way along another axis."""
        return Placement(self.kind, axis, self.blocks)


WHOLE: Final = Placement("whole")
PART: Final = Placement("part")
FLAT: Final = Placement("flat")


def rows(axis: int, blocks: int = 1) -> Placement:
    """Cut along an axis."""
    return Placement("rows", axis, blocks)


class Unspreadable(InputError):
    """A step, or one node of it, that processes cannot share out by rows."""

    code = "not_spreadable"
