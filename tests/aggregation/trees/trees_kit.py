"""Tables that several parties share, for trees, and a plain trainer that knows nothing of parties."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import frexp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.trees.binning import BinnedColumns, bin_columns, no_columns
from coterie.aggregation.vertical.trees.forest import LEAF, Forest, Node, OwnSplits
from coterie.aggregation.vertical.trees.terms import FRACTION_BITS, TreeTerms

ROWS = 160


@dataclass(frozen=True)
class Shared:
    """Columns by party, and labels."""

    columns: Mapping[str, Mapping[str, NDArray[np.float64]]]
    labels: NDArray[np.float64]

    def binned(self, bins: int) -> dict[str, BinnedColumns]:
        """In bins; a party without columns has none."""
        return {
            party: bin_columns(columns, bins) if columns else no_columns(len(self.labels))
            for party, columns in self.columns.items()
        }


def shared_table(
    widths: Mapping[str, int], *, rows: int = ROWS, missing: float = 0.1, regression: bool = False, seed: int = 0
) -> Shared:
    """Columns of which the label depends on all, some of few values, with some missing."""
    rng = np.random.default_rng(seed)
    whole = rng.normal(size=(rows, sum(widths.values())))
    whole[:, ::3] = np.round(whole[:, ::3])
    score = whole.sum(axis=1) + whole[:, 0] * whole[:, -1] + rng.normal(size=rows) * 0.3
    whole[rng.random(whole.shape) < missing] = np.nan
    labels = score if regression else (score > 0).astype(np.float64)
    columns: dict[str, dict[str, NDArray[np.float64]]] = {}
    at = 0
    for party, width in widths.items():
        columns[party] = {f"{party[0]}{index}": whole[:, at + index] for index in range(width)}
        at += width
    return Shared(columns, labels)


def rows_of_trees(terms: TreeTerms, forest: Forest, splits: Mapping[str, OwnSplits]) -> list[list[Any]]:
    """A forest as nested lists, with the names and thresholds that only all parties together know."""

    def of(tree: tuple[Node, ...], number: int) -> list[Any]:
        node = tree[number]
        if node.party == LEAF:
            return [node.value]
        own, place = splits[terms.parties[node.party]], node.number
        what = (own.columns[place], own.thresholds[place], own.missing_left[place])
        return [what, of(tree, node.left), of(tree, node.right)]

    return [of(tree, 0) for tree in forest.trees]


def brute_force(terms: TreeTerms, shared: Shared, bins: int, trees: int) -> list[list[Any]]:
    """Trees of the joined table by trying every split with fractions: no histograms, no bins' numbers, no float64 in
    any choice. Only the edges at which a column may be cut are taken from `bin_columns`, and NumPy's exp.
    """
    table = {name: values for columns in shared.columns.values() for name, values in columns.items()}
    edges = {name: bin_columns({name: values}, bins).edges[0].tolist() for name, values in table.items()}
    labels, mean = shared.labels, float(shared.labels.mean())
    margins = np.full(len(labels), np.log(mean / (1 - mean)))
    l2 = Fraction(terms.l2)
    grown: list[list[Any]] = []
    for _ in range(trees):
        share = 1.0 / (1.0 + np.exp(-margins))
        slopes, curves = share - labels, share * (1 - share)
        bits = FRACTION_BITS - frexp(max(np.abs(slopes).max(), np.abs(curves).max()))[1]
        g = [Fraction(round(Fraction(float(value)) * 2**bits), 2**bits) for value in slopes]
        h = [Fraction(round(Fraction(float(value)) * 2**bits), 2**bits) for value in curves]
        added = np.zeros(len(labels))

        def score(rows: list[int], g: list[Fraction] = g, h: list[Fraction] = h) -> tuple[Fraction, Fraction]:
            gradient, hessian = sum((g[row] for row in rows), Fraction(0)), sum((h[row] for row in rows), Fraction(0))
            return gradient * gradient / (hessian + l2), hessian

        def grow(
            rows: list[int], depth: int, g: list[Fraction] = g, h: list[Fraction] = h, added: Any = added
        ) -> list[Any]:
            best: tuple[Fraction, Any, list[int], list[int]] | None = None
            whole = score(rows)[0]
            for name, values in table.items() if depth else ():
                for edge in (*edges[name], np.inf):
                    for missing_left in (False, True):
                        left = [r for r in rows if (missing_left if np.isnan(values[r]) else values[r] <= edge)]
                        right = sorted({*rows} - {*left})
                        (a, heavy), (b, heavier) = score(left), score(right)
                        if left and right and min(heavy, heavier) >= terms.min_child_weight:
                            gain = a + b - whole
                            if gain > (best[0] if best else 0):
                                best = (gain, (name, edge, missing_left), left, right)
            if best is None:
                gradient, hessian = sum(g[row] for row in rows), sum(h[row] for row in rows)
                value = float(-Fraction(terms.learning_rate) * gradient / (hessian + l2))
                added[rows] = value
                return [value]
            return [best[1], grow(best[2], depth - 1), grow(best[3], depth - 1)]

        grown.append(grow(list(range(len(labels))), terms.depth))
        margins += added
    return grown
