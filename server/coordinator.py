"""The coordinator as one value: what every route works with."""

from dataclasses import dataclass

from coterie.server.board import Board
from coterie.server.credentials.identity import Identity
from coterie.server.downloads.downloads import Downloads
from coterie.server.incoming import IncomingBodies
from coterie.server.metrics import Metrics
from coterie.server.presence import Presence
from coterie.server.rounds.transitions import Rounds
from coterie.server.secure.machines import Machines
from coterie.server.settings import Settings
from coterie.server.signals import Signals
from coterie.server.storage import Storage


@dataclass(frozen=True, kw_only=True)
class Coordinator:
    """An open coordinator. Rows and blobs are the state; everything else here can be rebuilt from them."""

    settings: Settings
    storage: Storage
    identity: Identity
    presence: Presence
    signals: Signals
    downloads: Downloads
    incoming: IncomingBodies
    rounds: Rounds
    board: Board
    machines: Machines
    metrics: Metrics
