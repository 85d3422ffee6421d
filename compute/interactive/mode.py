"""One switch between running compiled functions as graphs and running them as the Python that they are."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, TypeAlias

from coterie.errors import InputError

Mode: TypeAlias = Literal["graph", "eager"]
MODES: tuple[Mode, ...] = ("graph", "eager")

_mode: ContextVar[Mode] = ContextVar("coterie_mode", default="graph")


def set_mode(mode: Mode) -> None:
    """From here on in this context, functions under ``jit`` run as graphs ("graph", as at the start) or line by line on
    NumPy ("eager": a debugger stops in them, print prints numbers). Raises InputError for another name.
    """
    if mode not in MODES:
        raise InputError(f"There is no mode {mode!r}.", hint=f"Choose one of {', '.join(MODES)}.")
    _mode.set(mode)


def get_mode() -> Mode:
    """The mode of this context."""
    return _mode.get()


@contextmanager
def use_mode(mode: Mode) -> Generator[None]:
    """:func:`set_mode` for the lines inside."""
    before = get_mode()
    set_mode(mode)
    try:
        yield
    finally:
        set_mode(before)
