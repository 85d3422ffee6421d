"""What a trace must not bake in: random numbers."""

import random
from collections.abc import Callable, Generator
from contextlib import contextmanager
from inspect import getclosurevars
from typing import Any, TypeAlias

import numpy as np

from coterie.compute.source import user_source
from coterie.errors import TraceError

_State: TypeAlias = tuple[Callable[[], Any], Callable[[Any], None]]  # reads and writes the state of a generator


@contextmanager
def undrawn(fn: Callable[..., Any], *, hint: str = "Draw them outside and pass them as arguments.") -> Generator[None]:
    """Raise TraceError when the lines inside draw from ``random``, ``np.random`` or a generator that ``fn`` itself
    reads from around it: in a graph each number would be the same in every call. The generators are left as they were,
    so that Python run instead draws what it would have. hint: what to do instead.
    """
    process: list[_State] = [(random.getstate, random.setstate), (np.random.get_state, np.random.set_state)]
    states = process + _held(fn)
    before = [read() for read, _ in states]
    told = list(map(repr, before))
    try:
        yield
    finally:
        drawn = [repr(read()) for read, _ in states] != told
        if drawn:
            for (_, write), state in zip(states, before, strict=True):
                write(state)
    if drawn:
        raise TraceError(
            f"{user_source()}: the function draws random numbers, which would be constants of the graph.",
            hint=hint,
        )


def _held(fn: Callable[..., Any]) -> list[_State]:
    try:
        around = getclosurevars(fn)
    except (TypeError, ValueError):  # no function of Python, or a name that has no value yet
        return []
    return [_state(value) for value in (*around.nonlocals.values(), *around.globals.values()) if _draws(value)]


def _draws(value: object) -> bool:
    return isinstance(value, np.random.Generator | np.random.RandomState | random.Random)


def _state(generator: Any) -> _State:
    if isinstance(generator, random.Random):
        return generator.getstate, generator.setstate
    if isinstance(generator, np.random.RandomState):
        return generator.get_state, generator.set_state

    def write(state: Any) -> None:
        generator.bit_generator.state = state

    return lambda: generator.bit_generator.state, write
