"""What variables of a rewritten function can be: arrays and numbers, anything else, or nothing yet."""

import operator
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

from coterie.compute import tree
from coterie.compute.array import Array, as_array
from coterie.compute.deferred import Deferred
from coterie.compute.ir import Type
from coterie.compute.numpy import elementwise, manipulation
from coterie.compute.primitives import rules
from coterie.compute.recorder import RECORDER, refused
from coterie.compute.source import user_source
from coterie.errors import TraceError


class Undefined:
    """A local name before its first value, or after it lost it."""

    def __init__(self, name: str, why: str = "give it one before the `if` or the loop that assigns it") -> None:
        self._name = name
        self._why = why

    def _no_value(self, *operands: Any) -> NoReturn:
        message = f"{user_source()}: {self._name!r} has no value here"
        if RECORDER.get() is None:
            raise UnboundLocalError(f"{message}.")
        raise refused(TraceError(f"{message}.", hint=f"In a graph a name has one in any case: {self._why}."))

    __getattr__ = __getitem__ = __call__ = __iter__ = __len__ = __bool__ = __float__ = __int__ = __index__ = _no_value
    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __matmul__ = __pow__ = _no_value
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rmatmul__ = __rpow__ = _no_value
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = (
        _no_value
    )
    __neg__ = __pos__ = __abs__ = __invert__ = __contains__ = __next__ = __enter__ = __hash__ = _no_value
    __setitem__ = __delitem__ = __str__ = __repr__ = __format__ = _no_value


class Unset(Undefined):
    """The result of a function whose return was not met yet. A flag beside it says whether it was, so where a graph
    needs an array there may be any.
    """

    def __init__(self) -> None:
        super().__init__("the result", "no return was met")


def is_traced(x: Any) -> bool:
    """Whether a decision on this value has to be part of the graph."""
    return type(x) is not Deferred and isinstance(x, Array) and x.recorder is not None


def is_decided_by_host(test: Any) -> bool:
    """Whether a test is a number that a line of Python gives, of which a graph can decide."""
    return type(test) is Deferred and test.held.size == 1


def is_dynamic(value: Any) -> bool:
    """Whether a value can be carried by a graph: arrays, numbers, and trees of them."""
    leaves = tree.flatten(value)[0]
    return bool(leaves) and all(isinstance(leaf, (Array, bool, int, float)) for leaf in leaves)


def truth(value: Any) -> Array:
    """A bool array of what Python would take for true."""
    array = value.held if type(value) is Deferred else as_array(value)
    if array.size != 1:
        refuse(f"{array.type}, which has {array.size} elements, is asked whether it is true", "Use any() or all()")
    return array if array.type.dtype == "bool" else elementwise.not_equal(array, 0)


def single(test: Array) -> Array:
    """An array of one element without axes."""
    return manipulation.reshape(test, ()) if test.size == 1 else test


_deciding: ContextVar[bool] = ContextVar("coterie_deciding", default=False)


@contextmanager
def deciding() -> Generator[None]:
    """Around what runs only where a traced decision goes that way, and is traced in any case."""
    token = _deciding.set(True)
    try:
        yield
    finally:
        _deciding.reset(token)


def augmented(name: str, target: Any, value: Any) -> Any:
    """``target += value`` and its kind; name: that of the function of :mod:`operator`."""
    if _deciding.get() and hasattr(target, f"__{name}__"):
        refuse(f"a traced decision stands over a change in place of a {type(target).__name__}", "Make a new one")
    return getattr(operator, name)(target, value)


def fitted(value: Any, structure: tree.Structure, types: list[Type]) -> Any:
    """A value in the form that the other way through the code gives it: Python numbers take its dtype, and a result
    that is not set is zeros.
    """
    if isinstance(value, Unset):
        return tree.unflatten(structure, [rules.zeros(type_) for type_ in types])
    leaves, own = tree.flatten(value)
    if own != structure:
        return value
    return tree.unflatten(structure, [_number(leaf, type_) for leaf, type_ in zip(leaves, types, strict=True)])


def _number(leaf: Any, type_: Type) -> Any:
    if isinstance(leaf, Array) or (isinstance(leaf, float) and not type_.is_float):
        return leaf
    return leaf if isinstance(leaf, bool) != (type_.dtype == "bool") else as_array(leaf, type_.dtype)


def refuse(what: str, hint: str = "Give every name an array of one type beforehand") -> NoReturn:
    """Raise TraceError with the user's line."""
    told = f"{user_source()}: {what}, which a graph cannot express."
    raise refused(TraceError(told, hint=f"{hint}, or write it with where(), cond, while_loop or scan."))
