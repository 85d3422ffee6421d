"""Secret sums of virtual clients: what `coterie.aggregation.secure` gets on a coordinator, without masks.

A client's vector in the ring is what it would be on a device; the sum is added modulo the same powers of two. Masks
cancel in it exactly, so that leaving them out changes no bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from coterie import errors
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.private.central import CentralNoise
from coterie.aggregation.secure import Summed, opened, secure_evaluation, version_of
from coterie.aggregation.server_optimizers import ServerOptimizer, State
from coterie.aggregation.update_sections import nothing_usable
from coterie.privacy.secagg.encoding import vector_spec
from coterie.privacy.secagg.parameters import FEWEST_CLIENTS
from coterie.privacy.secagg.ring import RingVector, reduced
from coterie.protocol.metrics import MetricSums
from coterie.protocol.secagg import SecureTerms
from coterie.simulation.collect import Aggregate, Lag
from coterie.simulation.versions import Versions
from coterie.simulation.work import Measured, Trained


@dataclass
class RunningSum:
    """A sum in the rings of an attempt, and of how many clients it is."""

    terms: SecureTerms
    survivors: int = 0
    _total: RingVector = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._total = np.zeros(vector_spec(self.terms.sections).length, np.uint32)

    def add(self, words: bytes) -> None:
        """Take in one client's vector."""
        self._total += np.frombuffer(words, np.uint32)
        self.survivors += 1

    def summed(self) -> Summed:
        """The sum, each coordinate modulo its own ring."""
        return Summed(reduced(self._total, vector_spec(self.terms.sections)), self.survivors)


@dataclass(frozen=True, kw_only=True)
class Opening:
    """How the sums of a round become a version. base: the version's digest; groups: how many sums there are; expected:
    the public number of clients; rule: of the groups' means; central: the coordinator's own noise.
    """

    terms: SecureTerms
    base: str
    groups: int
    expected: int
    rule: str
    central: CentralNoise | None


class RingCollector:
    """Takes the vectors of one round's clients and makes a version of their sums. Clients go into the groups in turn:
    they come in an order drawn by lot.
    """

    def __init__(self, manifest: Manifest, opening: Opening, order: Sequence[int]) -> None:
        """order: the round's clients, as a lot has drawn them."""
        self._manifest = manifest
        self._opening = opening
        self._group = {number: place % opening.groups for place, number in enumerate(order)}
        self._sums = [RunningSum(opening.terms) for _ in range(opening.groups)]
        self._refused: list[str] = []

    def add(self, trained: Trained, lag: Lag | None = None) -> bool:
        """Add a client's vector to its group's sum. Whether there is one."""
        if trained.update is None or trained.refused is not None:
            self._refused.append(trained.refused or "it sent nothing for a sum.")
            return False
        self._sums[self._group[trained.number]].add(trained.update)
        return True

    def flush(self) -> None:
        """Nothing that was given is held."""

    def result(self, versions: Versions, server: ServerOptimizer, state: State) -> Aggregate:
        """The next version. Raises errors.UpdateRefused as `secure_aggregate` does."""
        asked = self._opening
        enough = [group for group in self._sums if group.survivors >= max(asked.terms.min_clients, FEWEST_CLIENTS)]
        dropped = sum(group.survivors for group in self._sums) - sum(group.survivors for group in enough)
        if not enough:
            raise nothing_usable(len(self._group), self._refused)
        found = opened(
            self._manifest,
            asked.terms,
            [group.summed() for group in enough],
            base=asked.base,
            expected=asked.expected,
            state=state,
            rule=asked.rule,
            central=asked.central,
        )
        after = version_of(self._manifest, found, versions.vector(asked.base), server, state)
        return Aggregate(
            version=versions.add(after.weights),
            state=after.state,
            metrics=found.metrics,
            rejected=len(self._refused) + dropped,
            clipped=found.clipped,
        )


@dataclass
class RingSurvey:
    """The evaluations of one round on their way into a sum. base: digest of the version that is measured."""

    manifest: Manifest
    base: str
    running: RunningSum

    def add(self, measured: Measured) -> bool:
        """Take in a client's vector. Whether there is one."""
        if measured.refused is None:
            self.running.add(measured.update)
        return measured.refused is None

    def result(self) -> MetricSums:
        """What the clients measured together. Raises errors.UpdateRefused, also for too few clients."""
        summed = self.running.summed()
        fewest = max(self.running.terms.min_clients, FEWEST_CLIENTS)
        if summed.survivors < fewest:
            raise errors.UpdateRefused(
                f"{summed.survivors} clients have evaluated; a sum is opened from {fewest} on.",
                code="too_few_clients",
            )
        return secure_evaluation(
            self.manifest,
            terms=self.running.terms,
            base=self.base,
            total=summed.total,
            survivors=summed.survivors,
        )
