"""The notation: axes, indices made of them, and expressions over elements of tensors. Building one computes nothing."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.source import user_source
from coterie.errors import InputError

Kind: TypeAlias = Literal["sum", "max", "min"]


@dataclass(frozen=True, slots=True)
class Index:
    """A position along one axis of a tensor: offset + the sum of factor * axis. ``terms`` have distinct axes."""

    terms: tuple[tuple[Axis, int], ...]
    offset: int = 0

    @property
    def alone(self) -> Axis | None:
        """The axis of an index that is just that."""
        return self.terms[0][0] if len(self.terms) == 1 and self.terms[0][1] == 1 and not self.offset else None

    def __add__(self, other: Index | Axis | int) -> Index:
        more = as_index(other)
        factors = dict(self.terms)
        for axis, factor in more.terms:
            factors[axis] = factors.get(axis, 0) + factor
        return Index(tuple((a, f) for a, f in factors.items() if f), self.offset + more.offset)

    def __mul__(self, factor: int) -> Index:
        if not isinstance(factor, int):  # pyright: ignore[reportUnnecessaryIsInstance]  users write without a checker
            raise InputError(f"{user_source()}: an index is multiplied by {factor!r}.", hint="Use a fixed integer.")
        return Index(tuple((a, f * factor) for a, f in self.terms if factor), self.offset * factor)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: Index | Axis | int) -> Index:
        return self + as_index(other) * -1

    def __rsub__(self, other: Index | Axis | int) -> Index:
        return as_index(other) + self * -1

    def __str__(self) -> str:
        parts = [str(a) if f == 1 else f"{f}*{a}" for a, f in self.terms]
        return " + ".join(parts + ([str(self.offset)] if self.offset or not parts else []))


@dataclass(frozen=True, slots=True)
class Axis:
    """A letter that runs over 0, 1, ... Two axes of one name are one. Arithmetic on it gives an :class:`Index`."""

    name: str

    def __add__(self, other: Index | Axis | int) -> Index:
        return as_index(self) + other

    def __mul__(self, factor: int) -> Index:
        return as_index(self) * factor

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Index:
        return as_index(self) * -1

    def __sub__(self, other: Index | Axis | int) -> Index:
        return as_index(self) - other

    def __rsub__(self, other: Index | Axis | int) -> Index:
        return as_index(other) - self

    def __str__(self) -> str:
        return self.name


class Expression:
    """A number for every position of its free axes."""

    __slots__ = ()

    def parts(self) -> tuple[Expression, ...]:
        """The expressions that it is made of."""
        return ()

    def free(self) -> tuple[Axis, ...]:
        """The axes on which it depends, in order of appearance."""
        return tuple(dict.fromkeys(axis for part in self.parts() for axis in part.free()))

    def accesses(self) -> Iterator[Access]:
        """All elements of tensors in it, in order of appearance."""
        for part in self.parts():
            yield from part.accesses()

    def __add__(self, other: Operand) -> Expression:
        return _binary("+", self, other)

    def __radd__(self, other: Operand) -> Expression:
        return as_expression(other) + self

    def __sub__(self, other: Operand) -> Expression:
        return _binary("-", self, other)

    def __rsub__(self, other: Operand) -> Expression:
        return as_expression(other) - self

    def __mul__(self, other: Operand) -> Expression:
        return _binary("*", self, other)

    def __rmul__(self, other: Operand) -> Expression:
        return as_expression(other) * self

    def __truediv__(self, other: Operand) -> Expression:
        return _binary("/", self, other)

    def __rtruediv__(self, other: Operand) -> Expression:
        return as_expression(other) / self

    def __pow__(self, other: Operand) -> Expression:
        return _binary("**", self, other)

    def __neg__(self) -> Expression:
        return self * -1

    def __bool__(self) -> bool:
        raise InputError(f"{user_source()}: {self} has no truth value; it stands for many numbers.")


Operand: TypeAlias = "Expression | float"

# By name: for numbers, so that they stay numbers and take the dtype of the array beside them; and for arrays.
_BINARY: dict[str, tuple[Callable[[Any, Any], Any], Callable[..., Array]]] = {
    "+": (operator.add, xp.add),
    "-": (operator.sub, xp.subtract),
    "*": (operator.mul, xp.multiply),
    "/": (lambda a, b: a / b, xp.divide),
    "**": (lambda a, b: a**b, xp.pow),
}


def _binary(name: str, left: Expression, other: Operand) -> Expression:
    right = as_expression(other)
    for_numbers, for_arrays = _BINARY[name]
    if isinstance(left, Number) and isinstance(right, Number):
        return Number(for_numbers(left.value, right.value))
    return Pointwise(name, for_arrays, (left, right))


@dataclass(frozen=True, slots=True, eq=False)
class Number(Expression):
    """A number that is the same everywhere."""

    value: float

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True, eq=False)
class Access(Expression):
    """One element of a tensor."""

    tensor: Tensor
    indices: tuple[Index, ...]

    def free(self) -> tuple[Axis, ...]:
        return tuple(dict.fromkeys(axis for index in self.indices for axis, _ in index.terms))

    def accesses(self) -> Iterator[Access]:
        yield self

    def __str__(self) -> str:
        return f"{self.tensor.name}[{', '.join(map(str, self.indices))}]"


@dataclass(frozen=True, slots=True, eq=False)
class Pointwise(Expression):
    """An array function of every position by itself."""

    name: str
    function: Callable[..., Array]
    operands: tuple[Expression, ...]

    def parts(self) -> tuple[Expression, ...]:
        return self.operands

    def __str__(self) -> str:
        told = [str(operand) for operand in self.operands]
        return f"{self.name}({', '.join(told)})" if self.name.isidentifier() else f"({f' {self.name} '.join(told)})"


@dataclass(frozen=True, slots=True, eq=False)
class Reduction(Expression):
    """The sum, maximum or minimum over some axes. They are its own: the same letter outside takes its positions apart,
    though as many of them.
    """

    kind: Kind
    axes: tuple[Axis, ...]
    body: Expression

    def parts(self) -> tuple[Expression, ...]:
        return (self.body,)

    def free(self) -> tuple[Axis, ...]:
        return tuple(axis for axis in self.body.free() if axis not in self.axes)

    def __str__(self) -> str:
        return f"{self.kind}({' '.join(map(str, self.axes))}: {self.body})"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A name for an operand or the result; ``A[i, k]`` is an element. Two tensors of one name are one."""

    name: str

    def __getitem__(self, indices: Any) -> Access:
        listed = cast("tuple[Any, ...]", indices) if isinstance(indices, tuple) else (indices,)
        return Access(self, tuple(as_index(index) for index in listed))


def as_index(x: Any) -> Index:
    """An axis, an integer or an index as an index. Raises InputError for anything else."""
    if isinstance(x, Index):
        return x
    if isinstance(x, Axis):
        return Index(((x, 1),))
    if isinstance(x, int) and not isinstance(x, bool):
        return Index((), x)
    raise InputError(f"{user_source()}: {x!r} is not an index.", hint="Use axes, integers, and sums of them: 2*i + k.")


def as_expression(x: Any) -> Expression:
    """A number or an expression as an expression. Raises InputError for anything else."""
    if isinstance(x, Expression):
        return x
    if isinstance(x, (int, float)) and not isinstance(x, bool):
        return Number(x)
    raise InputError(
        f"{user_source()}: {x!r} cannot stand in an expression.", hint="Use elements of tensors, A[i, k], and numbers."
    )


def _names(text: str) -> list[str]:
    names = text.replace(",", " ").split()
    names = list(names[0]) if len(names) == 1 and names[0].isalpha() else names
    if not names or len(set(names)) < len(names) or not all(name.isidentifier() for name in names):
        raise InputError(f"{user_source()}: {text!r} is not a list of names.", hint='Write "i j k".')
    return names


def axes(names: str) -> tuple[Axis, ...]:
    """Axes of these names: "i j k", or "ijk" for single letters."""
    return tuple(Axis(name) for name in _names(names))


def tensors(names: str) -> tuple[Tensor, ...]:
    """Tensors of these names: "A B C", or "ABC" for single letters."""
    return tuple(Tensor(name) for name in _names(names))


def _over(kind: Kind, over: Axis | Sequence[Axis], body: Operand) -> Expression:
    listed = (over,) if isinstance(over, Axis) else tuple(over)
    expression = as_expression(body)
    if absent := [axis.name for axis in listed if axis not in expression.free()]:
        raise InputError(f"{user_source()}: {expression} does not depend on {', '.join(absent)}.")
    return Reduction(kind, listed, expression)


def sum_over(over: Axis | Sequence[Axis], body: Operand) -> Expression:
    """The sum over one axis or several; of a product, a contraction (a matrix product where it can be one)."""
    return _over("sum", over, body)


def max_over(over: Axis | Sequence[Axis], body: Operand) -> Expression:
    """The maximum over one axis or several."""
    return _over("max", over, body)


def min_over(over: Axis | Sequence[Axis], body: Operand) -> Expression:
    """The minimum over one axis or several."""
    return _over("min", over, body)


def pointwise(function: Callable[..., Array]) -> Callable[..., Expression]:
    """An array function that works element by element, for expressions: ``relu = pointwise(ops.relu)``."""

    def applied(*operands: Operand) -> Expression:
        return Pointwise(str(getattr(function, "__name__", "f")), function, tuple(map(as_expression, operands)))

    return applied


exp = pointwise(xp.exp)
log = pointwise(xp.log)
sqrt = pointwise(xp.sqrt)
tanh = pointwise(xp.tanh)
maximum = pointwise(xp.maximum)
minimum = pointwise(xp.minimum)
