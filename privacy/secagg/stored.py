"""Reading back what a machine of secure aggregation has stored."""

from collections.abc import Mapping
from typing import Any, TypeVar

from coterie import errors
from coterie.protocol.conversion import from_json

State = TypeVar("State")


def restored(kind: type[State], value: Mapping[str, Any], *, whose: str, hint: str) -> State:
    """A state of this kind as it was stored.

    Raises errors.StorageError (``secagg_state``) for whatever cannot be read, without a word of what it holds: states
    hold keys.
    """
    try:
        return from_json(kind, value, code="secagg_state")
    except errors.CoterieError:
        raise errors.StorageError(
            f"The stored state of {whose} in secure aggregation cannot be read.", hint=hint, code="secagg_state"
        ) from None
