"""The fold under the coordinator's own noise: each update is clipped, all count alike, and their sum is noised before
anybody sees it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from coterie.aggregation.fold.fold import Distribute, Fold, Folded, Tally
from coterie.aggregation.fold.part import CountedUpdate
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.private.central import CentralNoise, ClippedSum
from coterie.aggregation.update_sections import join, length_of, means_of, split, sums_of
from coterie.protocol.arrays import ArraysByName


@dataclass(frozen=True)
class ClippedState:
    """The sum of clipped vectors."""

    sum: ClippedSum = field(repr=False)
    tally: Tally = field(default_factory=Tally)


def noised_fold(manifest: Manifest, noise: CentralNoise, server: ArraysByName) -> Fold[ClippedState, CountedUpdate]:
    """The fold of one round.

    server: the server's state, in which an adaptive clipping norm stands.

    An update whose values cannot be used counts as zeros. No usable update is as good as any number of them: the round
    is noise alone. Sums are not released.
    """
    means = means_of(manifest.sections)
    length = length_of(means)

    def add(state: ClippedState, parts: Sequence[CountedUpdate], spread: Distribute) -> ClippedState:
        state.tally.take(parts)
        for part in parts:
            if part.silent:
                state.sum.add(np.zeros(length))
            else:
                state.sum.add(join(means, {spec.name: part.values(spec.name) for spec in means}))
        return state

    def merge(left: ClippedState, right: ClippedState) -> ClippedState:
        left.tally.join(right.tally)
        left.sum.join(right.sum)
        return left

    def result(state: ClippedState, server: ArraysByName, spread: Distribute) -> Folded:
        found = state.sum.noised()
        return Folded(
            sections=split(means, found.mean)
            | {spec.name: np.zeros(spec.length) for spec in sums_of(manifest.sections)},
            clients=noise.expected,
            weight=float(noise.expected),
            metrics={},
            state=found.state,
        )

    return Fold(lambda: ClippedState(ClippedSum(length, noise, server)), add, merge, result)
