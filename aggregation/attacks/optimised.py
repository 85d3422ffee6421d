"""Attacks whose strength is searched for against the rule that they are up against.

Shejwalkar, Houmansadr: "Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for Federated
Learning" (2021), section IV: who knows the rule takes the strength by which it is moved farthest. Allouah, Farhadkhani,
Guerraoui, Gupta, Pinot, Stephan: "Fixing by Mixing" (2023) judges rules by two attacks of one number so chosen, ALIE
and inner product manipulation.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from coterie import errors
from coterie.aggregation.attacks.attack import Forge, Updates
from coterie.aggregation.reducers import Vector

AttackedRule = Callable[[Updates], Vector]
"""All updates of a round ``[n, d]``, the attackers' last → their aggregate ``[d]``: a rule with its steps."""
Family = Callable[[float], Forge]
"""A strength → the attack of that strength."""
# What rounding makes of one and the same aggregate is no gain.
ROUNDING = 1e-6


@dataclass(frozen=True)
class LineSearch:
    """Which strengths are tried: from ``start`` on, further by a step from the best so far. The step doubles as long as
    that gains, and from the first miss on shrinks by ``ratio`` each time.

    steps: the first step of each search, one search after another.
    evaluations: how many strengths one tries.

    A rule that a large strength no longer moves hides what smaller ones do, so the default begins with three sizes of
    step. ``steps=(10.0,)`` is the search of ByzFL 0.0.11. Raises errors.ArgumentValueError for what is no search.
    """

    steps: tuple[float, ...] = (10.0, 1.0, 0.1)
    evaluations: int = 20
    start: float = 0.0
    ratio: float = 0.8

    def __post_init__(self) -> None:
        steps = bool(self.steps) and all(math.isfinite(step) and step > 0 for step in self.steps)
        if not (steps and self.evaluations >= 1 and math.isfinite(self.start) and 0 < self.ratio < 1):
            raise errors.ArgumentValueError(
                f"{self} is not a valid search: it needs finite steps above 0, at least one evaluation, a finite "
                "start and a "
                "ratio between 0 and 1."
            )

    def strongest(self, moved: Callable[[float], float]) -> float:
        """The strength that moves farthest of those tried. What lies between them is not seen, so no more is said."""
        found = [self._farthest_from_start(first, moved) for first in self.steps]
        return max(found, key=lambda one: one[0])[1]

    def _farthest_from_start(self, step: float, moved: Callable[[float], float]) -> tuple[float, float]:
        """How far the best strength moves, and that strength."""
        best, farthest, gains = self.start, moved(self.start), True
        for _ in range(self.evaluations - 1):
            far = moved(best + step)
            if far > farthest + ROUNDING * abs(farthest):
                best, farthest = best + step, far
            else:
                gains = False
            step *= 2 if gains else self.ratio
        return farthest, best


def optimised(family: Family, judge: AttackedRule, search: LineSearch | None = None) -> Forge:
    """The attack of the family whose strength moves the judge's aggregate farthest from the honest mean (Euclidean
    distance), searched for anew in every round.

    A strength at which the rule refuses to aggregate (errors.UpdateRefused) counts as moving nothing.
    """
    chosen = LineSearch() if search is None else search

    def forge(honest: Updates, own: Updates, generator: np.random.Generator) -> Updates:
        mean = honest.mean(axis=0, dtype=np.float64)

        def distance_moved(strength: float) -> float:
            sent = family(strength)(honest, own, generator)
            try:
                far = float(np.linalg.norm(judge(np.concatenate([honest, sent])) - mean))
            except errors.UpdateRefused:
                return 0.0
            return far if math.isfinite(far) else 0.0

        return family(chosen.strongest(distance_moved))(honest, own, generator)

    return forge
