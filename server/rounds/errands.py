"""Background tasks by key; failures are logged."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import structlog

from coterie.errors import CoterieError
from coterie.server.bell import Bell

RETRY_S = 1.0
log = structlog.get_logger("coterie.server.rounds")


@dataclass(frozen=True)
class Errands:
    """Each is one conditional transaction, so running it twice is harmless and a restart loses nothing. The bell rings
    when one has ended: what is due still is started again.
    """

    bell: Bell
    _tasks: dict[Hashable, asyncio.Task[None]] = field(default_factory=dict[Hashable, "asyncio.Task[None]"])

    def start(self, key: Hashable, act: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Start an errand, unless one of this key is under way. After an error it is under way a little longer."""
        if key in self._tasks:
            return

        async def errand() -> None:
            try:
                await act(*arguments)
            except Exception as error:
                ours = isinstance(error, CoterieError)
                details = {"why": error.message, "hint": error.hint} if ours else {"exc_info": error}
                log.error("round cannot go on yet", errand=str(key), again_s=RETRY_S, **details)
                await asyncio.sleep(RETRY_S)
            finally:
                self._tasks.pop(key, None)
                self.bell.ring()

        self._tasks[key] = asyncio.create_task(errand(), name=str(key))

    async def close(self) -> None:
        """Leave what is under way; a restart does it again."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
