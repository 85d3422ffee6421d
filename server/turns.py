"""Wakes the clients that wait for an attempt's next phase: those of one attempt, when its phase has changed, and nobody
else. A bell for every commit would wake a thousand clients for each of a thousand messages.
"""

import asyncio
from weakref import WeakValueDictionary


class PhaseTurns:
    """Take `next_turn` before looking at an attempt's row, and await it after having looked. A hint: rows decide."""

    def __init__(self) -> None:
        self._waiting: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()

    def next_turn(self, attempt: str) -> asyncio.Event:
        """Set when the attempt's phase changes next, as far as this process knows."""
        event = self._waiting.get(attempt)
        if event is None:
            event = self._waiting[attempt] = asyncio.Event()
        return event

    def waited_for(self) -> frozenset[str]:
        """The attempts whose next phase somebody waits for."""
        return frozenset(self._waiting)

    def turned(self, attempt: str) -> None:
        """Say that an attempt's phase has changed: call it when the change is committed."""
        event = self._waiting.pop(attempt, None)
        if event is not None:
            event.set()

    def turned_all(self) -> None:
        """Wake everybody: the coordinator closes."""
        for attempt in list(self._waiting):
            self.turned(attempt)
