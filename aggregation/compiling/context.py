"""How the step of a plan asks for the context of a method's objective."""

from collections.abc import Callable
from typing import Protocol

from coterie.aggregation.compiling.calls import Arrays
from coterie.aggregation.horizontal.algorithm import Objective
from coterie.compute.array import Array


class ObjectiveContext(Protocol):
    """What a method's objective may read, but for the parameters that it is differentiated by."""

    def __call__(
        self,
        *,
        params: Arrays,
        represent: Callable[[Arrays], Array],
        prediction: Array,
        label: Array,
        weight: Array,
        predict: Callable[[Arrays], Array],
        loss: Callable[[Array], Array],
    ) -> Objective: ...
