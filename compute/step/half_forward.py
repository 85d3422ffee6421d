"""A model that is called in half precision by a step that is float32 otherwise."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from coterie.compute.array import Array
from coterie.compute.nn.calling import forward
from coterie.compute.nn.mode import Mode
from coterie.compute.nn.module import Module
from coterie.compute.optim.optimizer import Arrays
from coterie.compute.step.precision import Half, compute_in

_ONLY = "x"


def half_forward(
    dtype: Half, module: Module, params: Arrays, x: Any, mode: Mode, *, named: Callable[[str, Arrays], Arrays]
) -> tuple[Any, dict[str, Array]]:
    """`forward` of a module without running statistics, computed in half precision; its results are float32.

    What the module asks to have minimised beside the loss reaches ``mode.penalise``, from half precision too.
    x: the only feature's array, or arrays by name.
    named(what, arrays): the arrays by name as the module gets them, which may tell what is not there.
    """
    batch = {_ONLY: x} if isinstance(x, Array) else dict(cast(Arrays, x))

    def computed(parameters: Arrays, features: Arrays) -> tuple[Any, dict[str, Array], list[Array]]:
        terms: list[Array] = []
        inner = mode if mode.penalise is None else replace(mode, penalise=terms.append)
        given: Any = features[_ONLY] if isinstance(x, Array) else named("feature", features)
        output, after = forward(module, named("parameter", parameters), given, inner)
        return output, after, terms

    output, after, terms = compute_in(dtype, computed)(dict(params), batch)
    if mode.penalise is not None:
        for term in terms:
            mode.penalise(term)
    return output, after
