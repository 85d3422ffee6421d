"""A bell: wakes whoever waits for something to have changed. Nothing is lost when the bell rings between looking and
waiting.
"""

import asyncio


class Bell:
    """Ring it after a change; take `next_ring` before looking, and await it after having looked."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake everybody who waits."""
        self._event.set()
        self._event = asyncio.Event()

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
