"""What the open round of a simulation has so far. A new round begins with a new value, so nothing is carried over."""

from dataclasses import dataclass, field

from coterie.aggregation.server_optimizers import OptimizerState
from coterie.protocol.arrays import FloatArrays
from coterie.protocol.participants import Participant
from coterie.simulation.collect import Collector, Lag
from coterie.simulation.ring import RingSurvey
from coterie.simulation.work import Trained


@dataclass
class CollectedRound:
    """What clients brought back, and what it cost.

    named: whether a record may name the clients whose updates count.
    with_losses: whether it may tell their losses.
    bytes_up, bytes_down: that would have crossed the wire: updates up; weights, and a plan to each newcomer, down.
    diverged: clients whose training gave numbers that are not finite.
    client_states: of the clients whose updates count: what a committed round keeps, with their losses.
    server_state: of the server's optimizer, once the version is made.
    """

    named: bool = False
    with_losses: bool = False
    bytes_up: int = 0
    bytes_down: int = 0
    diverged: int = 0
    client_states: dict[int, tuple[FloatArrays, float | None]] = field(
        default_factory=dict[int, tuple[FloatArrays, float | None]]
    )
    collector: Collector | None = None
    survey: RingSurvey | None = None
    server_state: OptimizerState | None = None
    _participants: list[Participant] = field(default_factory=list[Participant])

    def add(self, trained: Trained, collector: Collector, lag: Lag | None = None) -> None:
        """Count what a client brought back from training.

        lag: of a client that began on an older version.
        """
        if collector.add(trained, lag):
            self.client_states[trained.number] = trained.state, trained.loss
            if self.named:
                loss = trained.loss if self.with_losses else None
                versions = 0 if lag is None else lag.versions
                self._participants.append(Participant(client=str(trained.number), lag=versions, loss=loss))
        self.diverged += trained.diverged
        self.bytes_up += trained.size

    def participants(self) -> tuple[Participant, ...]:
        """The clients whose updates count, in the order of their numbers; none where a record may not name them."""
        return tuple(sorted(self._participants, key=lambda one: int(one.client)))
