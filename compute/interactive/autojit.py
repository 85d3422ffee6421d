"""Compile what is hot: a function runs line by line until it has been called often enough with one signature."""

from collections import OrderedDict
from collections.abc import Callable
from functools import update_wrapper
from types import MethodType
from typing import Any, cast

from coterie.compute import tree
from coterie.compute.array import as_array
from coterie.compute.interactive.jit import Compiled, signature_of
from coterie.compute.interactive.mode import get_mode
from coterie.compute.recorder import RECORDER
from coterie.compute.signature import in_order, require_function
from coterie.compute.trace import is_array
from coterie.errors import InputError

# Signatures whose calls are counted; the one not seen for longest is forgotten first.
_COUNTED = 256


class AutoCompiled:
    """What :func:`autojit` returns. ``compilations`` never exceeds its limit."""

    def __init__(self, fn: Callable[..., Any], after: int, limit: int) -> None:
        update_wrapper(self, fn)  # first: it brings attributes, which of a compiled function are these
        self._fn = fn
        self._compiled = Compiled(fn)
        self._after, self._limit = after, limit
        self._calls: OrderedDict[Any, int] = OrderedDict()
        self._hot: set[Any] = set()

    @property
    def compilations(self) -> int:
        """How many signatures have been compiled."""
        return self._compiled.compilations

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """In the body of a class it is a method like any other."""
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *positional: Any, **named: Any) -> Any:
        """The result of the function, as arrays; the same whether it was compiled or not."""
        arguments = in_order(self._fn, positional, named)
        if RECORDER.get() is not None or get_mode() == "eager":
            return self._compiled(*arguments)
        leaves, structure = tree.flatten(arguments)
        arrays = [as_array(leaf) if is_array(leaf) else None for leaf in leaves]
        try:
            signature = signature_of(structure, leaves, arrays)
        except InputError:
            signature = None  # an argument that cannot be part of one: such calls are never compiled
        if signature is not None and self._is_hot(signature):
            return self._compiled(*arguments)
        given = [leaf if array is None else array for leaf, array in zip(leaves, arrays, strict=True)]
        return self._fn(*tree.unflatten(structure, given))

    def _is_hot(self, signature: Any) -> bool:
        if signature in self._hot:
            return True
        count = self._calls.pop(signature, 0)
        if count >= self._after and len(self._hot) < self._limit:
            self._hot.add(signature)
            return True
        self._calls[signature] = count + 1
        if len(self._calls) > _COUNTED:
            self._calls.popitem(last=False)
        return False


def autojit(fn: Callable[..., Any], *, after: int = 2, limit: int = 16) -> AutoCompiled:
    """The function, compiled by itself where that pays: from the call after ``after`` calls of one signature (see
    ``jit``), and for at most ``limit`` signatures; all other calls run line by line. Also a decorator.

    What the function does besides its result, such as printing, happens on calls that run line by line and not on
    compiled ones. Python that is no graph runs on the host, as under ``jit``. Raises InputError for a number below 1.
    """
    if not all(isinstance(cast(object, number), int) and number >= 1 for number in (after, limit)):
        raise InputError(f"autojit: after and limit must be whole numbers of at least 1, got {after!r} and {limit!r}.")
    require_function("autojit", fn)
    return AutoCompiled(fn, after, limit)
