"""The evaluations of virtual clients in a secret sum: what `coterie.aggregation.secure` gets on a coordinator, without
masks. Masks cancel in the sum exactly, so that leaving them out changes no bit.
"""

from dataclasses import dataclass, field

import numpy as np

from coterie import errors
from coterie.aggregation.fold.ring import Summed
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.secure import secure_evaluation
from coterie.privacy.secagg.encoding import vector_spec
from coterie.privacy.secagg.ring import RingVector, reduced
from coterie.protocol.metrics import MetricSums
from coterie.protocol.secagg import SecureTerms
from coterie.simulation.work import ClientEvaluation


@dataclass
class RingSum:
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


@dataclass
class RingSurvey:
    """The evaluations of one round on their way into a sum.

    base: digest of the version that is measured.
    """

    manifest: Manifest
    base: str
    running: RingSum

    def add(self, measured: ClientEvaluation) -> bool:
        """Take in a client's vector. Whether there is one."""
        if measured.refused is None:
            self.running.add(measured.update)
        return measured.refused is None

    def result(self) -> MetricSums:
        """What the clients measured together. Raises errors.UpdateRefused, also for too few clients."""
        summed = self.running.summed()
        fewest = self.running.terms.min_clients
        if summed.survivors < fewest:
            raise errors.UpdateRefused(
                f"{summed.survivors} clients have evaluated; a sum is opened only over {fewest} or more.",
                code="too_few_clients",
            )
        return secure_evaluation(
            self.manifest,
            terms=self.running.terms,
            base=self.base,
            total=summed.total,
            survivors=summed.survivors,
        )
