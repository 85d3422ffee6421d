"""A bell: wakes whoever waits for something to have changed. Nothing is lost when the bell rings between looking and
waiting.
"""

import asyncio
from typing import Final

SOON_S: Final = 0.05
"""So long changes that can wait are gathered, so that whoever looks sees them all in one look."""


class Bell:
    """Ring it after a change; take `next_ring` before looking, and await it after having looked."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._soon: asyncio.TimerHandle | None = None

    def ring(self) -> None:
        """Wake everybody who waits."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        self._event.set()
        self._event = asyncio.Event()

    def ring_soon(self) -> None:
        """Wake everybody within SOON_S, for a change that makes nothing due at once."""
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(SOON_S, self.ring)

    def next_ring(self) -> asyncio.Event:
        """Set when the bell rings next."""
        return self._event


async def wait(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for an event, at most so long. False when the time ran out."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
