"""How large an array may become while a graph of unknown origin runs: a few numbers can ask for more than fits into
memory, and the system may end the process before anything is raised.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import final

_most: ContextVar[int | None] = ContextVar("coterie_most_elements", default=None)


@final
class TooLarge(MemoryError):
    """An operation would give an array of so many elements."""

    def __init__(self, elements: int) -> None:
        super().__init__(f"{elements} elements")
        self.elements = elements


@contextmanager
def at_most(elements: int) -> Generator[None]:
    """Inside, no operation gives an array of more elements: TooLarge is raised before it is computed or recorded."""
    token = _most.set(elements)
    try:
        yield
    finally:
        _most.reset(token)


def check_size(elements: int) -> None:
    """Raises TooLarge for an array of more elements than :func:`at_most` allows; outside of it, any will do."""
    most = _most.get()
    if most is not None and elements > most:
        raise TooLarge(elements)
