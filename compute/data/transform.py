"""What a pipeline does to rows: one base class for every operation, built in or a user's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from coterie.compute.data.random_stream import RandomStream
from coterie.errors import ArgumentTypeError


@dataclass(frozen=True, slots=True)
class Context:
    """What an operation may know besides its row.

    random: the row's own numbers. epoch: the pass. signals: the values of sync points, by name.
    """

    random: RandomStream
    epoch: int = 0
    signals: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Transform(ABC):
    """An operation on one row.

    It is a value (a frozen dataclass of its settings), so that it can be sent to a worker process, and depends on its
    arguments alone: chance comes from ``context.random``. It may be called by many threads at once.
    """

    @abstractmethod
    def apply(self, value: Any, context: Context) -> Any:
        """The new value.

        value: the value of the column that the operation is mapped over, a tuple of the values of several, or the whole
        row as a dict. It may be changed in place. Raises DataError for a value that it cannot take.
        """

    def __str__(self) -> str:
        return repr(self)


@dataclass(frozen=True)
class Function(Transform):
    """A plain function as an operation: called with the column's value, with the values of several, or with the row."""

    function: Callable[..., Any]

    def apply(self, value: Any, context: Context) -> Any:
        return self.function(*cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else self.function(value)

    def __str__(self) -> str:
        return getattr(self.function, "__qualname__", repr(self.function))


# By their number of columns, so that type checkers know what a lambda's arguments are.
Operation = Transform | Callable[[Any], Any] | Callable[[Any, Any], Any] | Callable[[Any, Any, Any], Any]


def as_transform(where: str, operation: Operation) -> Transform:
    """The operation itself, or the function as one. Raises ArgumentTypeError for what is neither."""
    if isinstance(operation, Transform):
        return operation
    if isinstance(operation, type) or not callable(operation):
        raise ArgumentTypeError(
            f"{where}: an operation must be a function or a Transform, got {operation!r}.",
            hint="Give it an instance of a class: map(RandomFlip(), 'image').",
        )
    return Function(operation)
