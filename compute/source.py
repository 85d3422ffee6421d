"""Where in the user's own code an operation was asked for."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

# Frames of these packages are never the user's: a line of ours, or of a library that merely called back into us.
_OURS = ("coterie", "numpy", "contextlib", "functools", "dataclasses", "importlib")

_replayed: ContextVar[str | None] = ContextVar("coterie_replayed_source", default=None)


def user_source() -> str:
    """The innermost line outside coterie on the call stack, as "file:line"; while a graph is replayed, the line of the
    node being replayed.
    """
    replayed = _replayed.get()
    if replayed is not None:
        return replayed
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  the only way to a caller's line that costs microseconds
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _OURS:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@contextmanager
def replaying(source: str) -> Generator[None]:
    """Attribute the operations inside to an earlier line of the user's."""
    token = _replayed.set(source)
    try:
        yield
    finally:
        _replayed.reset(token)
