"""The mode, and the host's random numbers."""

from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np

from coterie.compute.array import Array
from coterie.compute.interactive.mode import set_mode
from coterie.compute.nn.initialisers import stream, unit
from coterie.errors import ArgumentValueError

GRAPH_MODE = 0
PYNATIVE_MODE = 1


def set_context(*, mode: int) -> None:
    """GRAPH_MODE compiles what is called at the top: a network, a gradient function, an optimizer, a function under
    ``jit``. PYNATIVE_MODE runs it line by line on NumPy. It is coterie's :func:`~coterie.compute.set_mode`, which
    starts with graphs. Raises ArgumentValueError for another mode.
    """
    if mode not in (GRAPH_MODE, PYNATIVE_MODE):
        raise ArgumentValueError(f"There is no mode {mode!r}.", hint="Choose GRAPH_MODE or PYNATIVE_MODE.")
    set_mode("graph" if mode == GRAPH_MODE else "eager")


@dataclass
class _Draws:
    """A seed, and how many streams of it have been used."""

    seed: int
    count: int = 0


_DRAWS: ContextVar[_Draws | None] = ContextVar("coterie_mindspore_draws", default=None)


def set_seed(seed: int) -> None:
    """First values of parameters and masks of Dropout that follow in this context depend on this number alone."""
    _DRAWS.set(_Draws(seed))


def fresh_stream() -> np.random.Philox:
    """A random stream that nothing else has used since the seed was set (0 at the start)."""
    draws = _DRAWS.get()
    if draws is None:
        draws = _Draws(0)
        _DRAWS.set(draws)
    draws.count += 1
    return stream(draws.seed, f"mindspore/{draws.count}")


def uniform(shape: tuple[int, ...]) -> Array:
    """Fresh numbers in [0, 1), float32."""
    return Array(unit(shape, fresh_stream()).astype(np.float32))
