"""Reading back what a machine of secure aggregation has stored."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from coterie import errors

State = TypeVar("State")


def restored(value: Mapping[str, Any], read: Callable[[Mapping[str, Any]], State], *, whose: str, hint: str) -> State:
    """What `read` makes of a stored state.

    Raises errors.StorageError (``secagg_state``) for whatever it cannot read, without a word of what it holds: states
    hold keys.
    """
    try:
        return read(value)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise errors.StorageError(
            f"The stored state of {whose} in secure aggregation cannot be read.", hint=hint, code="secagg_state"
        ) from None
