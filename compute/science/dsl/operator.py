"""An equation over elements as a function of arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.compute.array import Array, as_array, refuse
from coterie.compute.science.dsl.evaluate import evaluate
from coterie.compute.science.dsl.expression import Access, Axis, Expression, Operand, Tensor, as_expression
from coterie.compute.science.dsl.sizes import solve
from coterie.compute.source import user_source
from coterie.errors import InputError, ShapeError


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """result = value, for all positions. Calling it computes the result of the operands in their order."""

    result: Access
    value: Expression
    operands: tuple[Tensor, ...]
    sizes: Mapping[Axis, int]

    @property
    def __name__(self) -> str:
        return self.result.tensor.name

    def __call__(self, *operands: Any) -> Array:
        """The result. Raises InputError for a wrong number of operands, ShapeError, with the user's line, for shapes
        that do not fit the equation.
        """
        if len(operands) != len(self.operands):
            names = ", ".join(tensor.name for tensor in self.operands)
            raise InputError(f"{user_source()}: {self} takes {names} and got {len(operands)} operands.")
        arrays = dict(zip(self.operands, map(as_array, operands), strict=True))
        accesses = [*self.value.accesses()]
        sizes = solve(accesses, {tensor: array.shape for tensor, array in arrays.items()}, self.sizes)
        if isinstance(sizes, str):
            refuse(ShapeError, self.__name__, list(arrays.values()), f"{sizes}.", f"It is {self}.")
        return evaluate(self.value, arrays, sizes, self.result.free())

    def __str__(self) -> str:
        return f"{self.result} = {self.value}"


def define(
    result: Access,
    value: Operand,
    *,
    operands: Sequence[Tensor] | None = None,
    sizes: Mapping[Axis, int] | None = None,
) -> Operator:
    """The operator of an equation: ``define(C[i, j], sum_over(k, A[i, k] * B[k, j]))`` is a function of A and B.

    operands: their order; that of appearance when absent. sizes: of axes that no operand tells, such as one that only
    the result has, or that shall run less far. Raises InputError for a result that is not indexed by different axes,
    for free axes that it lacks, and for operands that are not those of the equation.
    """
    expression = as_expression(value)
    given = dict(sizes or {})
    plain = [index.alone for index in result.indices]
    if None in plain or len(set(plain)) < len(plain):
        raise InputError(
            f"{user_source()}: the result {result} is not indexed by different axes.", hint="Write C[i, j]."
        )
    if open_axes := [axis.name for axis in expression.free() if axis not in plain]:
        raise InputError(
            f"{user_source()}: {result} does not have the axis {', '.join(open_axes)} of {expression}.",
            hint="Sum over it, or give it to the result.",
        )
    if unsized := [str(axis) for axis in plain if axis not in expression.free() and axis not in given]:
        raise InputError(f"{user_source()}: nothing says how far {', '.join(unsized)} runs.", hint="Give sizes={...}.")
    found = tuple(dict.fromkeys(access.tensor for access in expression.accesses()))
    if operands is not None and set(operands) != set(found):
        raise InputError(
            f"{user_source()}: the operands of {expression} are {', '.join(t.name for t in found)}.",
            hint="Name each once.",
        )
    return Operator(result, expression, found if operands is None else tuple(operands), given)
