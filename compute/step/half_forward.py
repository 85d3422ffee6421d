"""A model that is called in half precision by a step that is float32 otherwise."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from coterie.compute.array import Array
from coterie.compute.nn.calling import forward
from coterie.compute.nn.mode import Mode
from coterie.compute.nn.module import Module
from coterie.compute.optim.optimizer import Arrays
from coterie.compute.step.precision import Precision, compute_in

_ONLY = "x"


def forward_in(precision: Precision, module: Module) -> Callable[[Arrays, Any, Mode], tuple[Any, dict[str, Array]]]:
    """`forward` of a module in half precision: ``(params, x, mode) → (output, buffers after it)``, both float32.

    Parameters and float features are rounded; buffers go in as they are. What the module asks to have minimised beside
    the loss reaches ``mode.penalise`` as float32.
    """
    buffers = {name for name, spec in module.specs().items() if spec.role == "buffer"}

    def call(params: Arrays, x: Any, mode: Mode) -> tuple[Any, dict[str, Array]]:
        batch = {_ONLY: x} if isinstance(x, Array) else dict(cast(Arrays, x))
        statistics = {name: params[name] for name in params if name in buffers}

        def computed(rounded: Arrays, halves: Arrays) -> tuple[Any, dict[str, Array], list[Array]]:
            terms: list[Array] = []
            inner = mode if mode.penalise is None else replace(mode, penalise=terms.append)
            features: Any = halves[_ONLY] if isinstance(x, Array) else halves
            output, after = forward(module, {**rounded, **statistics}, features, inner)
            return output, after, terms

        learned = {name: params[name] for name in params if name not in buffers}
        output, after, terms = compute_in(precision.dtype, computed)(learned, batch)
        if mode.penalise is not None:
            for term in terms:
                mode.penalise(term)
        return output, after

    return call
