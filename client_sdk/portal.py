"""The one synchronous edge of the SDK: an event loop in a thread of its own, and calls into it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from coterie.errors import InternalError

Result = TypeVar("Result")


class Portal:
    """Runs coroutines for synchronous code, also where that code itself runs inside an event loop (a notebook).

    The thread starts at the first call and ends with `close`. A KeyboardInterrupt while a call waits cancels the
    coroutine.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether a call has started the thread."""
        return self._loop is not None

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The coroutine's result, or what it raises."""
        future = asyncio.run_coroutine_threadsafe(work, self._running())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[Result]) -> Iterator[Result]:
        """The items of an asynchronous iterator, as they come."""

        async def following() -> tuple[bool, Any]:
            try:
                return True, await anext(items)
            except StopAsyncIteration:
                return False, None

        while True:
            more, item = self.call(following())
            if not more:
                return
            yield item

    def soon(self, function: Callable[[], None]) -> None:
        """Call a function in the loop's thread, without waiting; nothing happens when no loop runs.

        Safe in a signal handler.
        """
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """Cancel what still runs, wait for it, and end the thread. May be called twice."""
        loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            started = threading.Event()
            self._thread = threading.Thread(target=self._serve, args=(started,), name="coterie", daemon=True)
            self._thread.start()
            started.wait()
        if self._loop is None:
            raise InternalError("The event loop's thread did not start.")
        return self._loop

    def _serve(self, started: threading.Event) -> None:
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            self._loop = loop
            loop.call_soon(started.set)
            loop.run_forever()
