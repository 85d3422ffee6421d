"""Where in the user's own code an operation was asked for."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from traceback import walk_tb
from types import FrameType
from typing import ParamSpec, TypeVar

# Frames of these packages are never the user's: a line of ours, or of a library that merely called back into us.
_OURS = ("coterie", "numpy", "contextlib", "functools", "dataclasses", "importlib")
# Below these nobody's model is written: a command line, or a thread, that called us.
_CALLERS = ("asyncio", "click", "concurrent", "threading", "typer")

_replayed: ContextVar[str | None] = ContextVar("coterie_replayed_source", default=None)
_asked: ContextVar[str | None] = ContextVar("coterie_operation", default=None)

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def user_source() -> str:
    """The innermost line outside coterie on the call stack, as "file:line"; while a graph is replayed, the line of the
    node being replayed; "your code" where a command or a thread runs and none of its lines is on the stack.
    """
    replayed = _replayed.get()
    if replayed is not None:
        return replayed
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  the only way to a caller's line that costs microseconds
    while frame is not None:
        package = _package(frame)
        if package in _CALLERS:
            break
        if package not in _OURS:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "your code"


@contextmanager
def replaying(source: str) -> Generator[Callable[[str], object]]:
    """Attribute the operations inside to an earlier line of the user's. What is given goes on to another line."""
    token = _replayed.set(source)
    try:
        yield _replayed.set
    finally:
        _replayed.reset(token)


def operation(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A decorator for a function that is made of others: errors inside name it, which the user called, and not them."""

    @wraps(function)
    def named(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        if _asked.get() is not None:
            return function(*args, **kwargs)
        token = _asked.set(function.__name__)
        try:
            return function(*args, **kwargs)
        finally:
            _asked.reset(token)

    return named


def asked_operation(name: str) -> str:
    """The function that the user called, if one is open that is made of others; else this operation."""
    return _asked.get() or name


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
