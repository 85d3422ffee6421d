"""What Python reads besides its arguments, so that it can be told whether that has changed."""

from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import numpy as np

from coterie.compute.array import Array

_WITHOUT_PARTS = frozenset({type(None), bool, int, float, str, bytes})


class Surroundings:
    """What a function of Python reads: its arguments and what stands around it, with all that these hold: elements,
    attributes, what functions hold by closure or read in its own module. Not what C code hides.
    """

    def __init__(self, fn: FunctionType, given: Any) -> None:
        self._fn, self._given = fn, given
        self._before = self._seen()

    def has_changed(self) -> bool:
        """Whether anything of it is another object, or array of other numbers, than when this was made."""
        (parts, numbers), (now, found) = self._before, self._seen()
        return len(parts) != len(now) or any(a is not b for a, b in zip(parts, now, strict=True)) or numbers != found

    def _seen(self) -> tuple[list[Any], list[int]]:
        """All objects, kept so that none can take the place of another, and hashes of the numbers of NumPy's arrays."""
        found: list[Any] = []
        numbers: list[int] = []
        visited: set[int] = set()
        waiting: list[Any] = [self._fn, self._given]
        while waiting:
            each = waiting.pop()
            found.append(each)
            if type(each) in _WITHOUT_PARTS or id(each) in visited:
                continue
            visited.add(id(each))
            if issubclass(type(each), np.ndarray):
                numbers.append(hash(each.tobytes()))
            waiting += _parts(each, self._fn.__globals__)
        return found, numbers


def _parts(value: Any, module: Mapping[str, Any]) -> Iterator[Any]:
    """What a value holds. Nothing is asked of it that it could answer in a way of its own."""
    kind = cast("type[Any]", type(value))
    if issubclass(kind, (type, ModuleType, Array)):
        return
    if issubclass(kind, (list, tuple, set, frozenset, deque)):
        yield from cast("list[Any]", value)
    elif issubclass(kind, dict):
        yield from value
        yield from value.values()
    elif kind is FunctionType:
        yield from (_attribute(cell, "cell_contents") for cell in value.__closure__ or ())
        if value.__globals__ is module:
            yield from (module[name] for name in sorted(_names(value.__code__)) if name in module)
    elif kind is MethodType:
        yield from (value.__func__, value.__self__)
    elif kind is partial:
        yield from (value.func, *value.args, *value.keywords.values())
    elif (inner := _attribute(value, "__wrapped__")) is not None:  # what was compiled or kept of it is no change
        yield inner
        return
    yield from (_attribute(value, name) for name in _attributes(cast("type[Any]", kind)))


def _attribute(value: Any, name: str) -> Any:
    try:
        return object.__getattribute__(value, name)
    except (AttributeError, ValueError):  # it has none now
        return None


def _attributes(kind: type) -> tuple[str, ...]:
    """Where objects of a class hold what they hold."""
    slots = (vars(each).get("__slots__", ()) for each in kind.__mro__)
    return "__dict__", *(name for names in slots for name in ((names,) if isinstance(names, str) else names))


def _names(code: CodeType) -> set[str]:
    """The names that code, and functions made in it, read in their module, and others."""
    return set(code.co_names).union(*(_names(held) for held in code.co_consts if isinstance(held, CodeType)))
