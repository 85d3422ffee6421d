"""What one round of a simulation has sent, and who took part in it."""

from dataclasses import dataclass, field

from coterie.aggregation.experiment import Experiment
from coterie.protocol.participants import Participant
from coterie.simulation.work import Trained


@dataclass
class RoundTraffic:
    """Bytes that would have crossed the wire in one round: updates up; weights, and a plan to each newcomer, down. And
    the clients whose updates count.
    """

    up: int = 0
    down: int = 0
    clients: list[Participant] = field(default_factory=list[Participant])

    def took_part(self, experiment: Experiment, trained: Trained, lag: int = 0) -> None:
        """Note a client whose update counts, as far as the experiment lets it be told."""
        if experiment.privacy is None:
            loss = trained.loss if experiment.secure is None else None
            self.clients.append(Participant(client=str(trained.number), lag=lag, loss=loss))

    def participants(self) -> tuple[Participant, ...]:
        """In the order of their numbers."""
        return tuple(sorted(self.clients, key=lambda one: int(one.client)))
