"""What a robust rule is made of: steps before it that mix updates, and the rule itself. Pure functions of numbers.

Steps and most rules give *combinations* of the updates, so all that they need is the Gram matrix ``G = X Xᵀ`` of the
updates X ``[n, d]``: a step gives A ``[m, n]`` and the next one sees ``A G Aᵀ``, the Gram matrix of ``A X``; a rule
gives w ``[n]``, and the aggregate is ``w X``. Rules by coordinate see blocks of columns instead.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.aggregation.reducers.reducer import Reference, Vector
from coterie.protocol.arrays import Matrix

Lanes = npt.NDArray[np.float32]
"""``[columns, n]``: for each coordinate the values of all updates, sorted."""


MAJORITY = "with f attackers allowed for, 2f ≥ n leaves no honest majority to follow"
"""Why most parts need as many updates as they do."""

GeneratorFactory = Callable[[], np.random.Generator]
"""A generator that the updates decide; see `coterie.aggregation.reducers.source.generator`."""


@dataclass(frozen=True)
class MixingStep:
    """Mixes updates before a rule sees them: ``mix(G, draw)`` is A; only steps that draw call draw.

    fewest: the least number of updates it takes, and because of what.
    before(m): how many it takes to give m.
    up_to(m): how many it takes at most to give no more than m.
    """

    mix: Callable[[Matrix, GeneratorFactory], Matrix]
    fewest: int = 1
    because: str = MAJORITY
    before: Callable[[int], int] = lambda count: count
    up_to: Callable[[int], int] = lambda count: count


@dataclass(frozen=True)
class Combination:
    """A rule that combines: ``weights(G)`` is w. With ``reference`` the last row and column of G, and the last weight,
    are those of the reference.

    most: the greatest number of updates that it can take, and beyond: why no more; None when there is no such number.
    """

    weights: Callable[[Matrix], Vector]
    fewest: int = 1
    reference: Reference | None = None
    because: str = MAJORITY
    most: int | None = None
    beyond: str = ""


@dataclass(frozen=True)
class ByCoordinate:
    """A rule for each coordinate alone: ``reduce(sorted lanes)`` is ``[columns]``.

    choose(G): the places of the updates that it looks at, all when None.
    """

    reduce: Callable[[Lanes], Vector]
    fewest: int = 1
    choose: Callable[[Matrix], npt.NDArray[np.intp]] | None = None
    because: str = MAJORITY


UpdateRule = Combination | ByCoordinate
