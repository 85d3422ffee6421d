"""Reading JSON without trust: every field present, none unknown, each of its type and within its bounds."""

import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar, cast

from coterie import errors

Value = TypeVar("Value")

LONGEST_TEXT = 256
LONGEST_LIST = 100_000


class Fields:
    """The fields of one JSON object that has exactly the names given. Every method raises errors.PlanRefused, naming
    the place.
    """

    def __init__(self, value: object, place: str, names: Collection[str]) -> None:
        if not isinstance(value, dict):
            raise refused(f"{place} must be an object.")
        fields = cast(dict[str, Any], value)
        missing, unknown = sorted(set(names) - set(fields)), sorted(set(fields) - set(names))
        if missing:
            raise refused(f"{place} lacks the field {missing[0]!r}.")
        if unknown:
            raise refused(f"{place} has the unknown field {unknown[0][:64]!r}.")
        self._fields, self.place = fields, place

    def raw(self, name: str) -> Any:
        """The value as it is."""
        return self._fields[name]

    def text(self, name: str, *, choices: Collection[str] = (), pattern: str = "") -> str:
        """Text of 1 to 256 characters, one of ``choices`` or matching ``pattern`` where given."""
        value = self._fields[name]
        if not isinstance(value, str) or not 0 < len(value) <= LONGEST_TEXT:
            raise refused(f"{self.place}.{name} must be text of 1 to {LONGEST_TEXT} characters.")
        if choices and value not in choices:
            raise refused(f"{self.place}.{name} must be one of {', '.join(choices)}, not {value[:64]!r}.")
        if pattern and not re.fullmatch(pattern, value):
            raise refused(f"{self.place}.{name} must match {pattern}, not {value[:64]!r}.")
        return value

    def integer(self, name: str, low: int, high: int) -> int:
        """A whole number in low..high."""
        return _integer(self._fields[name], f"{self.place}.{name}", low, high)

    def number(self, name: str, low: float, high: float) -> float:
        """A finite number in low..high."""
        value = _number(self._fields[name], f"{self.place}.{name}")
        if not low <= value <= high:
            raise refused(f"{self.place}.{name} must be in {low}..{high}, not {value}.")
        return value

    def integers(self, name: str, low: int, high: int) -> tuple[int, ...]:
        """A list of whole numbers in low..high."""
        return self.items(name, lambda item, place: _integer(item, place, low, high))

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of distinct texts."""
        values = self.items(name, _text)
        if len(set(values)) != len(values):
            raise refused(f"{self.place}.{name} names something twice.")
        return values

    def numbers(self, name: str) -> Mapping[str, float]:
        """An object of finite numbers."""
        return self.mapping(name, _number)

    def items(self, name: str, read: Callable[[object, str], Value]) -> tuple[Value, ...]:
        """A list, each item read by ``read(item, place)``."""
        value = self._fields[name]
        if not isinstance(value, list) or len(cast(list[object], value)) > LONGEST_LIST:
            raise refused(f"{self.place}.{name} must be a list of at most {LONGEST_LIST} items.")
        return tuple(read(item, f"{self.place}.{name}[{at}]") for at, item in enumerate(cast(list[object], value)))

    def mapping(self, name: str, read: Callable[[object, str], Value]) -> Mapping[str, Value]:
        """An object, each value read by ``read(value, place)``, in the order of the sorted keys."""
        value = self._fields[name]
        if not isinstance(value, dict) or len(cast(dict[str, object], value)) > LONGEST_LIST:
            raise refused(f"{self.place}.{name} must be an object of at most {LONGEST_LIST} fields.")
        items = cast(dict[str, object], value)
        return {
            _text(key, f"{self.place}.{name}"): read(items[key], f"{self.place}.{name}.{key[:64]}")
            for key in sorted(items)
        }

    def part(self, name: str, read: Callable[[object], Value]) -> Value:
        """A value of another part of coterie; what it refuses is refused here, with its reason."""
        try:
            return read(self._fields[name])
        except errors.InputError as error:
            raise refused(f"{self.place}.{name}: {error.message}") from error


def refused(message: str) -> errors.PlanRefused:
    """The refusal of a manifest."""
    return errors.PlanRefused(message, code="plan_manifest")


def _text(value: object, place: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_TEXT:
        raise refused(f"{place} must be text of 1 to {LONGEST_TEXT} characters.")
    return value


def _integer(value: object, place: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise refused(f"{place} must be a whole number in {low}..{high}, not {str(value)[:64]}.")
    return value


def _number(value: object, place: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise refused(f"{place} must be a finite number, not {str(value)[:64]}.")
    return float(value)
