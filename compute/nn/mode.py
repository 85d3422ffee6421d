"""Whether a model is training, and where its randomness comes from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from coterie.compute.array import Array

UniformSource: TypeAlias = Callable[[tuple[int, ...]], Array]


@dataclass(frozen=True)
class Mode:
    """How a module is called.

    training: whether layers such as Dropout act. uniform: called with a shape, gives fresh numbers in [0, 1) of that
    shape, float32. Graphs draw no random numbers: inside a trace ``uniform`` adds a graph input that the host fills at
    every step.
    """

    training: bool
    uniform: UniformSource | None = None


EVAL = Mode(training=False)


def train(uniform: UniformSource | None = None) -> Mode:
    """The mode of a training step. Without ``uniform``, a model that needs random numbers is refused when it asks for
    them.
    """
    return Mode(training=True, uniform=uniform)
