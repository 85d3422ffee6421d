"""What a trace must not bake in: numbers drawn from the process's own generators."""

import random
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np

from coterie.compute.source import user_source
from coterie.errors import TraceError


@contextmanager
def undrawn() -> Generator[None]:
    """Raise TraceError when the lines inside draw from ``random`` or ``np.random``: in a graph each number would be the
    same in every call. Both generators are left as they were, so that Python run instead draws what it would have.
    """
    before = _states()
    try:
        yield
    finally:
        drawn = _states() != before
        if drawn:
            _restore(before)
    if drawn:
        raise TraceError(
            f"{user_source()}: the function draws random numbers, which would be constants of the graph.",
            hint="Draw them outside and pass them as arguments.",
        )


def _states() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state()
    return random.getstate(), (name, np.asarray(keys).tobytes(), *rest)


def _restore(states: tuple[Any, ...]) -> None:
    python, (name, keys, *rest) = states
    random.setstate(python)
    np.random.set_state((name, np.frombuffer(keys, np.uint32), *rest))
