"""What attempts at secure aggregation are driven with, and which rounds wait for their sums."""

from dataclasses import dataclass
from typing import Literal

from coterie.aggregation.engine import Work, work_due
from coterie.server.bell import Bell
from coterie.server.metrics import Metrics
from coterie.server.rounds.transitions import Rounds
from coterie.server.secure.machines import Machines
from coterie.server.secure.opening import Opening
from coterie.server.secure.turns import Turns
from coterie.server.store.blobs import BlobStore
from coterie.server.store.engine import Database
from coterie.server.store.experiments import OpenRound

Kind = Literal["train", "evaluate"]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What attempts are driven with."""

    database: Database
    blobs: BlobStore
    rounds: Rounds
    machines: Machines
    turns: Turns
    metrics: Metrics
    bell: Bell
    opening: Opening


def summed_now(found: OpenRound) -> Kind | None:
    """Whose updates a round waits to see the sum of; None while it collects, and where updates come in clear."""
    match work_due(found.value):
        case Work.SUM:
            return "train"
        case Work.SUM_EVALUATIONS:
            return "evaluate"
        case _:
            return None
