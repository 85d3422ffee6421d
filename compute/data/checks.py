"""What a pipeline requires of the arguments that build it."""

from collections.abc import Mapping
from typing import cast

import numpy as np

from coterie.errors import ArgumentTypeError, ArgumentValueError


def check_whole(where: str, least: int | None = 1, **values: object) -> None:
    """Require whole numbers of at least ``least``. Raises ArgumentValueError naming the first that is none."""
    for name, value in values.items():
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or (least is not None and cast(int, value) < least):
            bound = "" if least is None else f" of at least {least}"
            raise ArgumentValueError(f"{where}: {name} must be a whole number{bound}, got {value!r}.")


def check_name(where: str, *names: object) -> None:
    """Require names of columns. Raises ArgumentTypeError."""
    for name in names:
        if not isinstance(name, str) or not name:
            raise ArgumentTypeError(f"{where}: a name must be a text that is not empty, got {name!r}.")


def check_named(where: str, **values: object) -> None:
    """Require mappings by name, or None. Raises ArgumentTypeError naming the first that is none."""
    for name, value in values.items():
        if value is not None and not isinstance(value, Mapping):
            raise ArgumentTypeError(
                f"{where}: {name} must be a mapping by name, got a {type(value).__name__}.",
                hint=f'Write {name}={{"x": ..., "y": ...}}.',
            )
