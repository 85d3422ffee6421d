"""What wakes whoever waits in this process."""

import asyncio
from dataclasses import dataclass, field

from coterie.server.bell import Bell, NewestWaits
from coterie.server.turns import PhaseTurns


@dataclass(frozen=True, kw_only=True)
class Signals:
    """What wakes those who wait.

    bell: rings after every commit.
    turns: of the phases of attempts.
    messages: of the boxes of sessions.
    waits: of devices in attempts.
    closing: set when the coordinator closes.
    """

    bell: Bell
    turns: PhaseTurns = field(default_factory=PhaseTurns)
    messages: PhaseTurns = field(default_factory=PhaseTurns)
    waits: NewestWaits = field(default_factory=NewestWaits)
    closing: asyncio.Event = field(default_factory=asyncio.Event)

    def hang_up(self) -> None:
        """End whatever waits for news: event streams and the long polls of attempts are answered now."""
        self.closing.set()
        self.bell.ring()
        self.turns.turned_all()
        self.messages.turned_all()
