"""What a simulated run has spent of privacy so far, as a coordinator's ledger would count it."""

import math
from dataclasses import dataclass, field, replace

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.private.costs import SMALLEST_DELTA, cost_of
from coterie.aggregation.record import RoundRecord
from coterie.aggregation.round import Cause
from coterie.privacy.dp.accounting import total_cost
from coterie.privacy.dp.events import PrivacyEvent
from coterie.privacy.dp.rounds import Draws
from coterie.protocol.privacy import ExampleLevel, UserLevel


@dataclass
class SimulatedSpending:
    """Counts rounds in their order.

    length: of the weights that are noised.
    draws: how a device draws its rows, without which nobody knows what `ExampleLevel` costs. The mutable fields are the
        rounds that were paid for, and with what.
    """

    experiment: Experiment
    length: int
    draws: Draws | None = None
    _paid: list[int] = field(default_factory=list[int])
    _events: list[PrivacyEvent] = field(default_factory=list[PrivacyEvent])

    def counted(self, record: RoundRecord) -> RoundRecord:
        """The record of the next round, with what all rounds so far have spent together; as it was where the experiment
        asks for no privacy, or what it costs is not known.
        """
        privacy, policy = self.experiment.privacy, self.experiment.rounds
        if privacy is None or policy.purpose == "evaluate":
            return record
        if isinstance(privacy, ExampleLevel) and self.draws is None:
            return record
        if not isinstance(privacy, UserLevel) or _released_sum(record):
            secure, before = self.experiment.secure, tuple(self._paid)
            self._events += cost_of(
                privacy, secure, policy, record.round, released=before, length=self.length, draws=self.draws
            )
            self._paid.append(record.round)
        delta = privacy.delta or SMALLEST_DELTA
        epsilon = total_cost(self._events, delta).epsilon
        return replace(record, epsilon=epsilon if math.isfinite(epsilon) else None, delta=delta)


def _released_sum(record: RoundRecord) -> bool:
    """Whether a noised sum of the round came to be: one that failed later is paid for too."""
    return record.state == "committed" or record.cause == Cause.AGGREGATE_FAILED
