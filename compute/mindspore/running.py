"""A network while it runs as a module: what its Cells and Parameters may do then."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from coterie.compute.nn.mode import Mode


@dataclass(frozen=True)
class Running:
    """A call of a module that a network became.

    network: its name, for messages. mode: of the call. cells, parameters: the ids of those that are the network's.
    moving: the ids of the Parameters that it may write.
    """

    network: str
    mode: Mode
    cells: frozenset[int]
    parameters: frozenset[int]
    moving: frozenset[int]


_RUNNING: ContextVar[Running | None] = ContextVar("coterie_mindspore_running", default=None)


def running() -> Running | None:
    """The call that is being made around here, if any."""
    return _RUNNING.get()


@contextmanager
def as_running(call: Running) -> Generator[None]:
    """The lines inside belong to this call."""
    token = _RUNNING.set(call)
    try:
        yield
    finally:
        _RUNNING.reset(token)
