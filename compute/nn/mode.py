"""Whether a model is training, and where its randomness comes from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from coterie.compute.array import Array

UniformSource: TypeAlias = Callable[[tuple[int, ...]], Array]
Recorder: TypeAlias = Callable[[Array, Array], None]
Penaliser: TypeAlias = Callable[[Array], None]


@dataclass(frozen=True)
class Mode:
    """How a module is called.

    training: whether layers such as Dropout act. uniform: called with a shape, gives fresh numbers in [0, 1) of that
    shape, float32. Graphs draw no random numbers: inside a trace ``uniform`` adds a graph input that the host fills at
    every step. weight: how much each example of the batch counts, [B]; None means all alike. Only layers that look at
    the batch as a whole need it: a row of weight 0 must not move their statistics. record: called with a buffer, as the
    module was given it, and its new value; modules stay pure, and ``forward`` collects what they report. None: new
    values are dropped. penalise: called with a value for each example, [B], that is to be minimised beside the loss (a
    teacher's opinion, the cost of an activation); training adds them up. None: such terms are not computed. recompute:
    whether parts of the model are to keep their inputs alone for the backward pass, and to compute the rest once more
    (see ``recomputed``).
    """

    training: bool
    uniform: UniformSource | None = None
    weight: Array | None = None
    record: Recorder | None = None
    penalise: Penaliser | None = None
    recompute: bool = False


EVAL = Mode(training=False)


def train(uniform: UniformSource | None = None, weight: Array | None = None) -> Mode:
    """The mode of a training step. Without ``uniform``, a model that needs random numbers is refused when it asks for
    them.
    """
    return Mode(training=True, uniform=uniform, weight=weight)
