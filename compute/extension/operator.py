"""Derivatives of single operators, given what flows in from above."""

from collections.abc import Callable, Sequence
from typing import Any

from coterie.compute import tree
from coterie.compute.array import Array, as_array
from coterie.compute.autodiff import vjp
from coterie.compute.source import user_source
from coterie.errors import ArgumentValueError


def operator_vjp(operator: Callable[..., Any], wrt: int | Sequence[int] = 0) -> Callable[..., Any]:
    """The operator that takes the upstream gradient and the operands of another one, and returns its gradients.

    operator: any function of arrays, a primitive of one's own among them. wrt: the operands to differentiate with
    respect to; an int gives one gradient, a sequence a tuple of them. The result is called as (upstream, *operands),
    with an upstream gradient like the operator's result (a tree of them for several). It is an operator itself:
    applying ``operator_vjp`` again gives derivatives of the next order, for the upstream gradient (position 0) too.

    Raises ArgumentValueError for a position that no operand has, ShapeError for an upstream gradient that is not like
    the result, DTypeError for an operand that is not a float.
    """
    positions = (wrt,) if isinstance(wrt, int) else tuple(wrt)

    def backward(upstream: Any, *operands: Any) -> Any:
        if wrong := [p for p in positions if not 0 <= p < len(operands)]:
            raise ArgumentValueError(
                f"{user_source()}: operator_vjp: there is no operand {wrong[0]} among {len(operands)}.",
                hint="Positions count from 0, without the upstream gradient.",
            )
        arrays: list[Any] = [tree.map_tree(as_array, operand) for operand in operands]

        def chosen(*given: Array) -> Any:
            placed = dict(zip(positions, given, strict=True))
            return operator(*(placed.get(index, array) for index, array in enumerate(arrays)))

        gradients = vjp(chosen, *(arrays[position] for position in positions))[1](upstream)
        return gradients[0] if isinstance(wrt, int) else gradients

    return backward
