"""The updates of a round under the coordinator's own noise: each is clipped, all count alike, and their sum is noised
before anybody sees it.
"""

import numpy as np

from coterie import errors
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.private.central import CentralNoise, ClippedSum, State
from coterie.aggregation.server_optimizers import ServerOptimizer
from coterie.aggregation.update_sections import join, length_of, means_of, split, sums_of
from coterie.aggregation.version import next_version
from coterie.simulation.collect import Aggregate, Lag, checked
from coterie.simulation.versions import Versions
from coterie.simulation.work import Trained


class NoisedCollector:
    """Takes the updates of one round and makes a version of their noised mean. state: the server's, in which an
    adaptive clipping norm stands.
    """

    def __init__(self, manifest: Manifest, base: str, noise: CentralNoise, state: State) -> None:
        self._manifest = manifest
        self._base = base
        self._noise = noise
        self._means = means_of(manifest.sections)
        self._sum = ClippedSum(length_of(self._means), noise, state)

    def add(self, trained: Trained, lag: Lag | None = None) -> bool:
        """Clip the update and add it. One that cannot be used counts as zeros, since to tell it apart would tell of its
        client's rows; so would a count of them.
        """
        try:
            vector = join(self._means, checked(self._manifest, trained, self._base))
        except errors.UpdateRefused:
            vector = np.zeros(length_of(self._means))
        self._sum.add(vector)
        return True

    def flush(self) -> None:
        """Nothing that was given is held."""

    def result(self, versions: Versions, server: ServerOptimizer, state: State) -> Aggregate:
        """The next version. Raises errors.UpdateRefused where its weights are not finite."""
        found = self._sum.noised()
        sums = {spec.name: np.zeros(spec.length) for spec in sums_of(self._manifest.sections)}
        after = next_version(
            self._manifest,
            base=versions.vector(self._base),
            sections=split(self._means, found.mean) | sums,
            clients=self._noise.expected,
            weight=float(self._noise.expected),
            server=server,
            state=state,
        )
        return Aggregate(
            version=versions.add(after.weights),
            state={**after.state, **found.state},
            metrics={},
            rejected=0,
        )
