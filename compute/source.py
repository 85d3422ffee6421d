"""Where in the user's own code an operation was asked for."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from traceback import walk_tb
from types import FrameType

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
        if _package(frame) not in _OURS:
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


def source_of(error: BaseException) -> str:
    """The innermost line outside coterie that an error passed on its way up, as "file:line"; "" when there is none."""
    lines = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in walk_tb(error.__traceback__)
        if _package(frame) not in _OURS
    ]
    return lines[-1] if lines else ""


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
