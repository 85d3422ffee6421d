"""One byte string for one JSON value: RFC 8785 (JSON Canonicalization Scheme).

Digests and signatures cover these bytes, so every SDK must produce the same ones. The rules, in full:

- UTF-8, no white space, object keys sorted by their UTF-16 code units (what JavaScript's default sort does).
- Strings escape only ``"``, ``\\`` and the control characters below U+0020: ``\\b \\t \\n \\f \\r`` by their short
  form, others as ``\\u00xx`` in lower case. A lone surrogate is refused.
- Numbers are written as ECMAScript writes a double: the shortest digits that read back to the same double, ``1`` and
  not ``1.0``, an exponent only from 1e21 up and below 1e-6; minus zero is ``0``. So 1 and 1.0 are the same value, as
  they are to a JavaScript reader.
- Whole numbers beyond ±(2**53 - 1), NaN and infinities are refused: a double cannot hold them exactly, or JSON cannot
  hold them at all.

A language whose JSON library follows RFC 8785 needs nothing else; ``vectors/canonical.json`` proves it.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from math import isfinite
from typing import Any, Final, TypeAlias, cast

from coterie import errors

Json: TypeAlias = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

LARGEST_INTEGER = 2**53 - 1
DEEPEST = 64
_Place: TypeAlias = tuple["_Place", str | int] | None
"""Where a value stands: in what, and by which key or number; None for the whole. Only errors write it out."""
_quoted: Final = json.JSONEncoder(ensure_ascii=False).encode


def canonical_json(value: object) -> bytes:
    """The canonical bytes of a JSON value (None, bool, int, float, str, sequences, mappings with string keys).

    Raises errors.InputError (code ``not_canonical``) that names the place of a value JSON cannot carry exactly.
    """
    return _text(value, None, 0).encode("utf-8")


def sha256_hex(data: bytes | bytearray | memoryview) -> str:
    """SHA-256 of the bytes as 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


GENESIS: Final = "0" * 64
"""What a chain of digests has before its first entry."""


def digest_of(value: object) -> str:
    """SHA-256 of the canonical bytes of a JSON value."""
    return sha256_hex(canonical_json(value))


def first_repeated(names: Iterable[str]) -> str | None:
    """The first name that stands there a second time. One pass: a hostile list may hold hundreds of thousands."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def parse_json(data: bytes | bytearray | memoryview, *, limit: int = 1 << 20) -> Json:
    """Read JSON strictly: at most `limit` bytes of UTF-8, no duplicate keys, no NaN or infinity, at most 64 levels.

    Whole numbers beyond ±(2**53 - 1) become floats, as they do in JavaScript, so that ``canonical_json(parse_json(b))``
    is defined for every canonical `b`, and equal to it. Minus zero becomes zero.

    Raises errors.InputError (code ``json_invalid``).
    """
    if len(data) > limit:
        raise _invalid(f"JSON of {len(data)} bytes exceeds the limit of {limit} bytes.")
    try:
        value = json.loads(
            bytes(data).decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_float,
            parse_int=_integer,
        )
    except UnicodeDecodeError as error:
        raise _invalid(f"JSON must be UTF-8; byte {error.start} is not.") from None
    except RecursionError:
        raise _invalid(f"JSON is nested deeper than {DEEPEST} levels.") from None
    except ValueError as error:
        raise _invalid(f"Malformed JSON: {error}.") from None
    if _deeper_than(value, DEEPEST):
        raise _invalid(f"JSON is nested deeper than {DEEPEST} levels.")
    return cast(Json, value)


def _text(value: object, place: _Place, depth: int) -> str:
    if depth > DEEPEST:
        raise _refused(place, f"is nested deeper than {DEEPEST} levels")
    if isinstance(value, str):
        return _string(value, place)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if abs(value) > LARGEST_INTEGER:
            raise _refused(place, "is a whole number beyond ±(2**53 - 1)")
        return int.__repr__(value)
    if isinstance(value, float):
        if not isfinite(value):
            raise _refused(place, f"is {value}, which JSON cannot carry")
        return _number(value)
    if isinstance(value, list | tuple):
        items = cast(list[object], value)
        return "[" + ",".join([_text(item, (place, i), depth + 1) for i, item in enumerate(items)]) + "]"
    # A dictionary is by far the most frequent mapping, and to ask whether something is any mapping takes long.
    if isinstance(value, dict | Mapping):
        return _mapping(cast(Mapping[object, object], value), place, depth)
    raise _refused(place, f"is a {type(value).__name__}, which is not a JSON value")


def _mapping(value: Mapping[object, object], place: _Place, depth: int) -> str:
    entries: dict[str, object] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise _refused(place, f"has a key of type {type(key).__name__}; keys must be strings")
        entries[key] = item
    names = {key: _string(key, place) for key in entries}
    # The two orders differ only beyond the first plane, where UTF-16 has two units for a character.
    ordered = sorted(entries) if "".join(entries).isascii() else sorted(entries, key=_utf16)
    return "{" + ",".join([f"{names[key]}:{_text(entries[key], (place, key), depth + 1)}" for key in ordered]) + "}"


def _utf16(key: str) -> bytes:
    return key.encode("utf-16-be")


def _string(value: str, place: _Place) -> str:
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise _refused(place, "holds a lone surrogate, which is not valid Unicode") from None
    return _quoted(value)


def _number(value: float) -> str:
    """ECMAScript's Number::toString for a finite double; Python's repr supplies the shortest digits."""
    if value == 0:
        return "0"
    parts = Decimal(float.__repr__(abs(value))).as_tuple()
    digits = "".join(map(str, parts.digits)).rstrip("0")
    point = len(parts.digits) + int(parts.exponent)
    count = len(digits)
    if count <= point <= 21:
        text = digits + "0" * (point - count)
    elif 0 < point <= 21:
        text = digits[:point] + "." + digits[point:]
    elif -6 < point <= 0:
        text = "0." + "0" * -point + digits
    else:
        mantissa = digits if count == 1 else digits[0] + "." + digits[1:]
        text = f"{mantissa}e{'+' if point > 0 else '-'}{abs(point - 1)}"
    return "-" + text if value < 0 else text


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        name = first_repeated(name for name, _ in pairs)
        raise ValueError(f"key {str(name)[:64]!r} occurs twice")
    return value


def _constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _float(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"the number {text[:32]} does not fit a double")
    # Minus zero is zero to whoever signs or hashes, so it must be to whoever computes with it.
    return value + 0.0


def _integer(text: str) -> int | float:
    # Beyond ±(2**53 - 1) a double stands in, as for a JavaScript reader; the text is at most 17 characters below that.
    if len(text) <= 17 and abs(value := int(text)) <= LARGEST_INTEGER:
        return value
    return _float(text)


def _deeper_than(value: object, levels: int) -> bool:
    layer: list[object] = [value]
    for _ in range(levels + 1):
        below: list[object] = []
        for item in layer:
            if isinstance(item, dict):
                below.extend(cast(dict[str, object], item).values())
            elif isinstance(item, list):
                below.extend(cast(list[object], item))
        if not below:
            return False
        layer = below
    return True


def _refused(place: _Place, why: str) -> errors.InputError:
    steps: list[str] = []
    while place is not None:
        place, step = place
        steps.append(f"[{step}]" if isinstance(step, int) else f".{step}")
    return errors.InputError(
        f"The value at {('$' + ''.join(reversed(steps)))[:200]} {why}.",
        hint="Send finite numbers, text, lists and objects only.",
        code="not_canonical",
    )


def _invalid(message: str) -> errors.InputError:
    return errors.InputError(message, code="json_invalid")
