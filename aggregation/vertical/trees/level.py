"""The nodes of one level of a tree, as all parties know them: which rows each has, and how they part."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

NodeRows: TypeAlias = NDArray[np.int64]
"""Numbers of rows, rising."""
# Who has the column by which a node is split, as one feature owner is told.
NOBODY: Final = 0
LABEL_OWNER: Final = 1
YOURS: Final = 2
OTHER: Final = 3


@dataclass(frozen=True)
class Choice:
    """What becomes of a node, as one feature owner is told. column, place, missing_left: of `YOURS` alone, else 0."""

    who: int
    column: int = 0
    place: int = 0
    missing_left: int = 0


def part(nodes: Sequence[NodeRows], sides: Sequence[NDArray[np.bool_] | None]) -> list[NodeRows]:
    """The nodes of the next level, two for each that was split: those that go left, and the others.

    sides: of each node, which of its rows go left; None for a leaf.
    """
    return [
        rows[chosen] for rows, left in zip(nodes, sides, strict=True) if left is not None for chosen in (left, ~left)
    ]


def cut(bits: NDArray[np.bool_], nodes: Sequence[NodeRows]) -> list[NDArray[np.bool_]]:
    """The bits of each node, of those of all nodes one after the other."""
    return np.split(bits, np.cumsum([len(rows) for rows in nodes])[:-1]) if nodes else []


def joined(sides: Sequence[NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """The bits of all nodes one after the other."""
    return np.concatenate([np.empty(0, np.bool_), *sides])
