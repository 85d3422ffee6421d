"""A bell: wakes whoever waits for something to have changed. Nothing is lost when the bell rings between looking and
waiting.
"""

import asyncio
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
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


class NewestWaits:
    """Of those who wait under one name the newest alone goes on: whoever asks again has lost the answer before."""

    def __init__(self) -> None:
        self._ends: dict[str, asyncio.Event] = {}

    @contextmanager
    def newest(self, name: str) -> Generator[asyncio.Event]:
        """Gives what is set when somebody newer waits under the name."""
        before, end = self._ends.get(name), asyncio.Event()
        if before is not None:
            before.set()
        self._ends[name] = end
        try:
            yield end
        finally:
            if self._ends.get(name) is end:
                del self._ends[name]


@dataclass
class Waited:
    """How long somebody has waited for something to change."""

    seconds: float = 0.0


# Of the request that is being answered: those who wait know nothing of requests.
_WAITED: ContextVar[Waited | None] = ContextVar("waited", default=None)


@contextmanager
def counting_waits() -> Generator[Waited]:
    """Gives how long this task has waited meanwhile, and the tasks that it began."""
    found = Waited()
    token = _WAITED.set(found)
    try:
        yield found
    finally:
        _WAITED.reset(token)


@contextmanager
def waiting() -> Generator[None]:
    """Meanwhile somebody waits for something to change, or for more of it."""
    began = time.perf_counter()
    try:
        yield
    finally:
        if (found := _WAITED.get()) is not None:
            found.seconds += time.perf_counter() - began


async def wait_for_either(events: Sequence[asyncio.Event], seconds: float) -> None:
    """Wait for the first of some events, at most so long."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        with waiting():
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()


async def wait(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for an event, at most so long. False when the time ran out."""
    try:
        with waiting():
            async with asyncio.timeout(seconds):
                await event.wait()
    except TimeoutError:
        return False
    return True
