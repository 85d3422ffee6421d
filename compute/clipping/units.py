"""Whether a function is traced on one unit of a batch, which must not be taken for the batch."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from coterie.compute.source import user_source
from coterie.errors import InputError

_UNIT: ContextVar[bool] = ContextVar("coterie_unit", default=False)


@contextmanager
def one_unit() -> Generator[None]:
    """While it is open, the examples that a function sees are one unit: an example, or a microbatch."""
    token = _UNIT.set(True)
    try:
        yield
    finally:
        _UNIT.reset(token)


def require_whole_batch(layer: str) -> None:
    """For a layer whose output for one example depends on the others. Raises InputError inside :func:`one_unit`."""
    if _UNIT.get():
        raise InputError(
            f"{user_source()}: {layer} normalises over the batch, so no example has a gradient of its own to clip.",
            hint="Use GroupNorm or LayerNorm under differential privacy.",
        )
