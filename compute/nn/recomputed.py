"""A part of a model whose intermediate values are computed again in the backward pass instead of being kept."""

from collections.abc import Callable
from dataclasses import replace

from coterie.compute.array import Array
from coterie.compute.control.derived import checkpoint
from coterie.compute.nn.mode import Mode


def recomputed(call: Callable[[Array, Mode], Array], x: Array, mode: Mode) -> Array:
    """``call(x, mode)``. Where ``mode.recompute`` asks for it, the gradient keeps x alone of this part and computes the
    rest once more.

    call: of a part of a model, with the parameters that it needs around it; running statistics that it records, and
    what it asks to have minimised, reach ``mode`` as they would without.
    """
    if not mode.recompute:
        return call(x, mode)
    moved: list[Array] = []

    def run(x: Array) -> tuple[Array, list[Array], list[Array]]:
        after: list[Array] = []
        terms: list[Array] = []
        moved.clear()

        def record(before: Array, value: Array) -> None:
            moved.append(before)
            after.append(value)

        inner = replace(
            mode,
            recompute=False,
            record=None if mode.record is None else record,
            penalise=None if mode.penalise is None else terms.append,
        )
        return call(x, inner), after, terms

    y, after, terms = checkpoint(run)(x)
    if mode.record is not None:
        for before, value in zip(moved, after, strict=True):
            mode.record(before, value)
    if mode.penalise is not None:
        for term in terms:
            mode.penalise(term)
    return y
