"""Trees that were grown: the label owner's part, in which a partner's split is a number, and each party's own splits,
which say what the numbers mean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.trees.binning import BinnedColumns, Columns
from coterie.protocol.arrays import ArraysByName

LEAF: Final = -1


@dataclass(frozen=True)
class Node:
    """A node of a tree.

    party: the number of the party that has the split's column (`TreeTerms.parties`), or `LEAF`.
    number: of the split among its party's, in the order in which they were chosen.
    column: its number among its party's columns.
    left, right: numbers of nodes of the same tree, the root being 0.
    value: of a leaf.
    """

    party: int = LEAF
    number: int = 0
    column: int = 0
    left: int = 0
    right: int = 0
    gain: float = 0.0
    value: float = 0.0


@dataclass(frozen=True)
class Forest:
    """What the label owner has in the end. start: the margin before the first tree."""

    start: float
    trees: tuple[tuple[Node, ...], ...] = ()

    def margins(self, bits: Mapping[int, NDArray[np.bool_]], rows: int) -> NDArray[np.float64]:
        """The sum of leaves of each row.

        bits: by party, ``[splits, rows]``: whether each of its splits sends each row left.
        """
        found = np.full(rows, self.start)
        for tree in self.trees:
            found += tree_values(tree, bits, rows)
        return found

    def importance(self, parties: Sequence[str], own: "OwnSplits") -> dict[str, float]:
        """The gain of all splits of each column, the largest first: own columns by name, others by party and number."""
        found: dict[str, float] = {}
        for tree in self.trees:
            for node in tree:
                if node.party != LEAF:
                    name = own.columns[node.number] if node.party == 0 else f"column {node.column}"
                    key = f"{parties[node.party]}: {name}"
                    found[key] = found.get(key, 0.0) + node.gain
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def to_arrays(self) -> ArraysByName:
        """As arrays that can be kept."""
        nodes = [(tree, node) for tree, nodes in enumerate(self.trees) for node in nodes]
        whole = [(t, n.party, n.number, n.column, n.left, n.right) for t, n in nodes]
        return {
            "forest_nodes": np.array(whole, np.int32).reshape(-1, 6),
            "forest_numbers": np.array([(n.gain, n.value) for _, n in nodes], np.float64).reshape(-1, 2),
            "forest_start": np.array([self.start], np.float64),
        }


def forest_of(arrays: ArraysByName) -> Forest:
    """The forest of `Forest.to_arrays`."""
    trees: dict[int, list[Node]] = {}
    for whole, (gain, value) in zip(arrays["forest_nodes"].tolist(), arrays["forest_numbers"].tolist(), strict=True):
        trees.setdefault(whole[0], []).append(Node(*whole[1:], gain=gain, value=value))
    return Forest(float(arrays["forest_start"][0]), tuple(tuple(nodes) for nodes in trees.values()))


def tree_values(tree: Sequence[Node], bits: Mapping[int, NDArray[np.bool_]], rows: int) -> NDArray[np.float64]:
    """The leaf's value of each row in one tree; bits as of `Forest.margins`."""
    at = np.zeros(rows, np.int64)
    values = np.array([node.value for node in tree])
    for number, node in enumerate(tree):
        if node.party != LEAF:
            # Nodes come after their parents.
            here = np.flatnonzero(at == number)
            at[here] = np.where(bits[node.party][node.number, here], node.left, node.right)
    return values[at]


@dataclass(frozen=True)
class OwnSplits:
    """The splits of one party's columns, which nobody else has: by number, the column's name, the largest value that
    goes left, and whether rows that lack the column do.
    """

    columns: tuple[str, ...] = ()
    thresholds: tuple[float, ...] = field(default=(), repr=False)
    missing_left: tuple[bool, ...] = field(default=(), repr=False)

    def __len__(self) -> int:
        return len(self.columns)

    def with_split(self, binned: BinnedColumns, column: int, place: int, missing_left: bool) -> "OwnSplits":
        """With one more; its arguments are those of `BinnedColumns.goes_left`."""
        edges = binned.edges[column]
        return OwnSplits(
            (*self.columns, binned.names[column]),
            (*self.thresholds, float(edges[place]) if place < len(edges) else np.inf),
            (*self.missing_left, missing_left),
        )

    def bits(self, columns: Columns, rows: int) -> NDArray[np.bool_]:
        """Whether each split sends each row left, ``[splits, rows]``."""
        found = np.empty((len(self), rows), np.bool_)
        for number, name in enumerate(self.columns):
            values = columns[name]
            found[number] = np.where(np.isnan(values), self.missing_left[number], values <= self.thresholds[number])
        return found
