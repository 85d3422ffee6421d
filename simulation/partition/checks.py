"""What partitioners are given, checked: numbers, columns, seeds, how many rows there are."""

from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.aggregation.number import is_number
from coterie.errors import ConfigurationError
from coterie.protocol.arrays import ArraysByName

RowIndices = NDArray[np.int64]


class Change(Protocol):
    """Something done to a client's rows after they were dealt out (see `coterie.simulation.partition.changes`)."""

    def apply(self, rows: ArraysByName, client: int, clients: int) -> dict[str, NDArray[Any]]:
        """The rows of this one of so many clients, changed."""
        ...

    def to_json(self) -> dict[str, Any]:
        """What it is, for the manifest: its kind, which is no field, and its fields."""
        ...


def stream(seed: object) -> np.random.Generator:
    """The generator of a partitioner. Raises ConfigurationError (``partition_invalid``) for a seed that names none."""
    number = whole(seed, "seed")
    require(number >= 0, f"seed must be a whole number from 0, not {number}")
    return np.random.Generator(np.random.PCG64(number))


def column(values: ArrayLike, what: str) -> NDArray[Any]:
    """One value for each row, ``[rows]`` or ``[rows, 1]``.

    Raises ConfigurationError (``partition_invalid``) for other shapes, such as one-hot labels, for NaN (and NaT), which
    is like nothing and so would fall to nobody, and for values that cannot be sorted, such as None among texts.
    """
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise refuse(f"{what} must be one value for each row, all of one shape") from error
    flat = array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1)
    require(flat, f"{what} must be one value for each row, not an array of the shape {list(array.shape)}")
    array = array.reshape(-1)
    try:
        # Only what is missing differs from itself.
        missing = np.flatnonzero(array != array)
        if array.dtype.kind == "O":
            np.sort(array)
    except TypeError as error:
        raise refuse(
            f"{what} hold values that cannot be compared with each other: {error}",
            hint="Leave rows without a value out, and make all values of one kind, such as texts.",
        ) from error
    if len(missing):
        raise refuse(f"{what} hold {array[missing[0]]} in row {int(missing[0])}", hint="Leave such rows out.")
    return array


def whole(value: object, what: str) -> int:
    """A whole number, also one of NumPy's.

    Raises ConfigurationError (``partition_invalid``) for anything else, fractions and truth values among them.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise refuse(f"{what} must be a whole number, not {_format_value(value)}")
    return int(cast(int, value))


def real(value: object, what: str) -> float:
    """A number, also one of NumPy's. Raises ConfigurationError (``partition_invalid``) for anything else."""
    if not is_number(value):
        raise refuse(f"{what} must be a number, not {_format_value(value)}")
    return float(cast(float, value))


def _format_value(value: object) -> str:
    return f"{' '.join(str(value).split())[:40]!r} ({type(value).__name__})"


def fill(parts: list[list[int]], minimum: int) -> None:
    """Give clients below the minimum rows of the largest ones."""
    for part in parts:
        while len(part) < minimum:
            part.append(max(parts, key=len).pop())


def require(holds: bool, what: str) -> None:
    """Raise ConfigurationError (``partition_invalid``) unless it holds."""
    if not holds:
        raise refuse(what)


def refuse(what: str, *, hint: str | None = None) -> ConfigurationError:
    """The refusal of a partition that cannot be made like that."""
    return ConfigurationError(f"{what[0].upper()}{what[1:]}.", hint=hint, code="partition_invalid")


def check(count: int, clients: int, minimum: int = 1, *, what: str = "rows") -> None:
    """Raise ConfigurationError unless every client can have at least so many of them."""
    for number, name in ((count, f"the number of {what}"), (clients, "clients"), (minimum, "minimum")):
        whole(number, name)
    if clients < 1 or minimum < 1:
        raise refuse(f"clients and minimum must be at least 1, got {clients} and {minimum}")
    if count < clients * minimum:
        raise too_few(
            f"{count} {what} cannot give {clients} client{'s' if clients > 1 else ''} at least {minimum} each."
        )


def too_few(what: str) -> ConfigurationError:
    """The refusal of a partition that would leave a client without rows."""
    return ConfigurationError(
        what,
        hint="Use fewer clients, ask for a minimum number of rows, or for less skew.",
        code="partition_empty",
    )
