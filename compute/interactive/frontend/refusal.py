"""Functions whose decisions cannot be rewritten tell so when they decide on a traced array."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from coterie.compute.recorder import RECORDER
from coterie.errors import TraceError


def explained(fn: Callable[..., Any], reason: str) -> Callable[..., Any]:
    """The same function; where it asks whether a traced array is true, the error says why that was not rewritten."""

    @wraps(fn)
    def told(*positional: Any, **named: Any) -> Any:
        if RECORDER.get() is None:
            return fn(*positional, **named)
        try:
            return fn(*positional, **named)
        except TraceError as error:
            if error.details.get("wanted") != "whether it is true" or "function" in error.details:
                raise
            name = getattr(fn, "__qualname__", "the function")
            raise TraceError(
                error.message,
                hint=f"The control flow of {name} was not rewritten: {reason}; or use where(condition, a, b).",
                **{**error.details, "function": name},
            ) from error

    return told
