"""Buffered rounds without a clock: which clients are at work, and in which order they come back.

Every task takes a time drawn from the experiment's seed: |x| for a standard normal x, which the authors of FedBuff
found closest to what real fleets do (Nguyen et al., 2022, section 5). Only the order matters, so a time has no unit.
Making a version takes none, which is why nothing ever waits between two rounds here, as it may on a coordinator.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from coterie.protocol.canonical import sha256_hex


@dataclass(frozen=True, order=True)
class Flight:
    """A task that is out. Ordered by when it comes back.

    number: of its client.
    place: of its base (see `Round`).
    """

    due: float
    sequence: int
    number: int = field(compare=False)
    round: int = field(compare=False)
    place: int = field(compare=False)
    base: str = field(compare=False)


@dataclass
class Air:
    """The tasks of a buffered round.

    flights: those that are out, as a heap.
    landed: those that came back, and wait until the buffer is full.
    """

    now: float = 0.0
    sequence: int = 0
    flights: list[Flight] = field(default_factory=list[Flight])
    landed: list[Flight] = field(default_factory=list[Flight])

    @property
    def busy(self) -> frozenset[int]:
        """The clients that are at work."""
        return frozenset(flight.number for flight in self.flights)

    def start(self, free: Sequence[int], count: int, *, round: int, place: int, base: str, seed: int) -> int:
        """Send out up to ``count`` clients, drawn by lot from those that are free. Returns how many went.

        free: their numbers, rising.
        """
        text = f"{seed}/task/{self.sequence}"
        random = np.random.Generator(np.random.PCG64(int(sha256_hex(text.encode()), 16)))
        chosen: list[int] = random.choice(len(free), min(count, len(free)), replace=False).tolist() if free else []
        for place_of_client in chosen:
            due = self.now + abs(float(random.standard_normal()))
            self.sequence += 1
            heapq.heappush(self.flights, Flight(due, self.sequence, free[place_of_client], round, place, base))
        return len(chosen)

    def land(self) -> Flight | None:
        """The task that comes back next, or None when none is out. It is among those that landed now, and time moves on
        to that moment.
        """
        if not self.flights:
            return None
        flight = heapq.heappop(self.flights)
        self.now = flight.due
        self.landed.append(flight)
        return flight

    def close(self, oldest: int | None = None) -> None:
        """Take back the tasks whose place is older than this, or all of them."""
        self.flights = [flight for flight in self.flights if oldest is not None and flight.place >= oldest]
        heapq.heapify(self.flights)
