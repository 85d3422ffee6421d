"""``mindspore.numpy``: the array functions of coterie, which give Tensors here."""

from typing import TYPE_CHECKING, Any

from coterie.compute import numpy as _functions
from coterie.compute.mindspore.tensor import Tensor, giving_tensors

if TYPE_CHECKING:
    from coterie.compute.numpy import *  # noqa: F403  the same names, for type checkers


def array(obj: Any, dtype: Any = None) -> Tensor:
    """A Tensor of these numbers."""
    return Tensor(obj, dtype)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        found = getattr(_functions, name)
        return giving_tensors(found) if callable(found) and not isinstance(found, type) else found


def __dir__() -> list[str]:
    return sorted({"array", *(name for name in dir(_functions) if not name.startswith("_"))})
