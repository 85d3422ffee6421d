"""Values as JSON and back, by what the fields of a frozen dataclass are annotated as: a field by its name, a tuple as a
list, a mapping as an object with text for keys, bytes as hex, an enumeration as its value.

Reading is strict: no text is taken for a number, no fraction or truth value for a whole number, and what is none of the
fields is refused. Bounds stand beside a field's type (`Annotated[int, Field(ge=1)]`) and hold for what is read.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from math import isfinite
from typing import Annotated, Any, TypeVar, cast

from pydantic import ConfigDict, Field, PlainSerializer, TypeAdapter, ValidationError

from coterie import errors

Item = TypeVar("Item")
Kind = TypeVar("Kind")
Refusal = TypeVar("Refusal", bound=errors.CoterieError)

Sorted = Annotated[frozenset[Item], PlainSerializer(sorted)]
"""A set as a list that rises, so that equal sets are equal text."""
FiniteOrNull = Annotated[float, PlainSerializer(lambda number: number if isfinite(number) else None)]
"""A number that is null where it is infinite or NaN."""
UnlessNone = Field(exclude_if=lambda value: value is None)
"""Beside the type of a field that is left out where it is None."""
UnlessEmpty = Field(exclude_if=lambda value: not value)
"""Beside the type of a field that is left out where it holds nothing."""


def to_json(value: object) -> Any:
    """A value as JSON values, which `from_json` of its type reads."""
    return _adapter(type(value)).dump_python(value, mode="json", warnings=False)


def to_text(value: object) -> str:
    """A value as JSON text, which `from_text` of its type reads; NaN and infinities keep their names."""
    return _adapter(type(value)).dump_json(value, warnings=False).decode()


def from_json(
    kind: type[Kind], value: object, *, refusal: type[errors.CoterieError] = errors.InputError, code: str
) -> Kind:
    """The value of this kind that `to_json` writes as just these JSON values: every field there, and no other.

    refusal, code: of the error that is raised for anything else, naming the place. What the kind itself raises, it
        raises here.
    """
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise refusal(f"This is not a valid {kind.__name__}: it holds what JSON cannot.", code=code) from None
    found = from_text(kind, text, refusal=refusal, code=code)
    written = to_json(found)
    if written != value:
        place, why = _difference(written, value)
        raise refusal(f"This is not a valid {kind.__name__}: {place or '/'}: {why}.", code=code)
    return found


def from_text(
    kind: type[Kind],
    text: str | bytes,
    *,
    refusal: type[errors.CoterieError] = errors.InputError,
    code: str = "stored_invalid",
) -> Kind:
    """What `to_text` wrote. Fields that have a default may be absent.

    refusal, code: of the error that is raised for anything else, naming the place. What the kind itself raises, it
        raises here.
    """
    try:
        found = _adapter(kind).validate_json(text)
    except ValidationError as error:
        raise refused(kind.__name__, _names(kind), error, refusal, code) from None
    except refusal:
        raise
    except errors.InputError as error:
        raise refusal(f"This is not a valid {kind.__name__}: {error.message}", code=code) from error
    if found is None:
        raise refusal(f"This is not a valid {kind.__name__}: it is null.", code=code)
    return found


def refused(what: str, names: Collection[str], error: ValidationError, refusal: type[Refusal], code: str) -> Refusal:
    """pydantic's exception as coterie says it: the first fault in words, and all in the details ``errors``.

    what: the name of what was to be read.
    names: its fields.
    """
    found = _faults(error)
    unknown = [fault for fault in found if fault["detail"] == _UNKNOWN]
    found = [*unknown, *(fault for fault in found if fault not in unknown)]
    first = f"{found[0]['pointer'] or '/'}: {found[0]['detail']}"
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return refusal(
        f"This is not a valid {what}: {first.rstrip('.')}{more}.",
        hint=_hint_for(found[0], names),
        code=code,
        errors=found,
    )


def _faults(error: ValidationError) -> list[dict[str, str]]:
    """What is wrong with a value, as RFC 6901 pointers and sentences; never echoes the values."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [
        {
            "pointer": _pointer(fault["loc"]),
            "detail": _UNKNOWN if fault["type"] in _UNKNOWN_TYPES else fault["msg"].removeprefix("Value error, "),
        }
        for fault in [fault for fault in found if fault["type"] not in _CONSEQUENCES][:32]
    ]


_SHOULD = "Input should "
_UNKNOWN = "there is no such field"
_UNKNOWN_TYPES = frozenset(("extra_forbidden", "unexpected_keyword_argument"))
# A default that could not be worked out because another field is wrong: that field's own fault says enough.
_CONSEQUENCES = frozenset(("default_factory_not_called",))
_STRICT = ConfigDict(
    strict=True, extra="forbid", ser_json_bytes="hex", val_json_bytes="hex", ser_json_inf_nan="constants"
)


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    # A dataclass takes this configuration from a type that holds it; alone, pydantic lets it have its own only.
    return TypeAdapter(cast(Any, kind | None), config=_STRICT)


def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(getattr(kind, "__dataclass_fields__", ()))


def _hint_for(fault: Mapping[str, str], names: Collection[str]) -> str | None:
    """What to do about a fault, where its own words tell it."""
    name, detail = fault["pointer"].removeprefix("/").replace("/", "."), fault["detail"]
    if detail == _UNKNOWN:
        near = errors.nearest(name, names)
        return f"Did you mean {near}?" if near else f"Leave it out; there are {', '.join(names)}."
    if detail == "Field required":
        return f"Give {name}."
    return f"Let {name} {detail.removeprefix(_SHOULD)}." if name and detail.startswith(_SHOULD) else None


def _pointer(place: Iterable[int | str]) -> str:
    return "".join("/" + str(part)[:64].replace("~", "~0").replace("/", "~1") for part in place)


def _difference(written: object, value: object, place: str = "") -> tuple[str, str]:
    """Where a value is first not what is written of it, and why."""
    if isinstance(written, dict) and isinstance(value, dict):
        ours, theirs = cast(dict[str, object], written), cast(dict[str, object], value)
        for name in [*ours, *theirs]:
            if name not in theirs or name not in ours:
                return place + _pointer((name,)), "Field required" if name in ours else "leave it out: it says nothing"
            if ours[name] != theirs[name]:
                return _difference(ours[name], theirs[name], place + _pointer((name,)))
    if isinstance(written, list) and isinstance(value, list):
        for at, (one, other) in enumerate(zip(cast(list[object], written), cast(list[object], value), strict=False)):
            if one != other:
                return _difference(one, other, f"{place}/{at}")
    return place, "this is not how such a value is written"
