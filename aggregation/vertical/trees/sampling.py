"""Which rows a tree is grown on: all, or those of GOSS (Ke et al., "LightGBM", NeurIPS 2017, algorithm 2).

The label owner draws from a seed that it alone has: who could draw the same would know of each row that it was taken
for its large gradient, and not by chance.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.trees.terms import TreeTerms
from coterie.randomness import long_words


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows of a tree.

    rows: their numbers, rising.
    pairs: ``[rows, 2]``, gradient and hessian of each, those of a random row multiplied by how many it stands for.
    """

    rows: NDArray[np.int64]
    pairs: NDArray[np.float64]


def sample_rows(
    gradients: NDArray[np.float64],
    hessians: NDArray[np.float64],
    usable: NDArray[np.bool_],
    terms: TreeTerms,
    seed: bytes,
) -> Sample:
    """The rows of one tree, of those that are usable. seed: of this tree alone."""
    rows = np.flatnonzero(usable)
    pairs = np.stack([gradients[rows], hessians[rows]], axis=1)
    if terms.top_share == 1:
        return Sample(rows, pairs)
    order = np.argsort(-np.abs(pairs[:, 0]), kind="stable")
    top = min(len(rows), ceil(terms.top_share * len(rows)))
    rest = order[top:]
    count = min(len(rest), ceil(terms.other_share * len(rows)))
    if count:
        lots = long_words(seed, 0, len(rest))
        drawn = rest[np.argsort(lots, kind="stable")[:count]]
        pairs[drawn] *= len(rest) / count
    else:
        drawn = rest
    taken = np.sort(np.concatenate([order[:top], drawn]))
    return Sample(rows[taken], pairs[taken])
