"""Wakes the clients that wait for an attempt's next phase: those of one attempt, when its phase has changed, and nobody
else. A bell for every commit would wake a thousand clients for each of a thousand messages.
"""

import asyncio
from weakref import WeakValueDictionary


class Turn(asyncio.Event):
    """Set when something changes.

    brought: what came, where whoever sets it hands it over.
    """

    brought: object = None


class PhaseTurns:
    """Take `next_turn` before looking at an attempt's row, and await it after having looked. A hint: rows decide."""

    def __init__(self) -> None:
        self._waiting: WeakValueDictionary[str, Turn] = WeakValueDictionary()

    def next_turn(self, attempt: str) -> Turn:
        """Set when the attempt's phase changes next, as far as this process knows."""
        event = self._waiting.get(attempt)
        if event is None:
            event = self._waiting[attempt] = Turn()
        return event

    def waited_for(self) -> frozenset[str]:
        """The attempts whose next phase somebody waits for."""
        return frozenset(self._waiting)

    def turned(self, attempt: str, brought: object = None) -> None:
        """Say that an attempt's phase has changed: call it when the change is committed.

        brought: handed over to those who wait.
        """
        event = self._waiting.pop(attempt, None)
        if event is not None:
            event.brought = brought
            event.set()

    def turned_all(self) -> None:
        """Wake everybody: the coordinator closes."""
        for attempt in list(self._waiting):
            self.turned(attempt)
