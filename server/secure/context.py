"""Shared dependencies of driver and jobs."""

from dataclasses import dataclass, field

from coterie.server.metrics import Metrics
from coterie.server.rounds.transitions import Rounds
from coterie.server.secure.machines import Machines
from coterie.server.storage import Storage


@dataclass(frozen=True, kw_only=True)
class RoundContext:
    """Rows and bytes, the transitions of rounds, the machines of attempts in memory, and the counters."""

    storage: Storage
    rounds: Rounds
    metrics: Metrics
    machines: Machines = field(default_factory=Machines)
