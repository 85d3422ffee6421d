"""What the fields of a manifest may hold, and how one is refused."""

from collections.abc import Mapping
from typing import Annotated, TypeAlias, TypeVar

from pydantic import AfterValidator, Field

from coterie import errors
from coterie.protocol import conversion
from coterie.protocol.canonical import canonical_json, first_repeated, parse_json

Item = TypeVar("Item")
Kind = TypeVar("Kind")

LONGEST_TEXT = 256
LONGEST_LIST = 100_000


def _distinct(texts: tuple[str, ...]) -> tuple[str, ...]:
    if first_repeated(texts) is not None:
        raise ValueError("it names something twice")
    return texts


Text: TypeAlias = Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]
Listed: TypeAlias = Annotated[tuple[Item, ...], Field(max_length=LONGEST_LIST)]
Texts: TypeAlias = Annotated[tuple[Text, ...], Field(max_length=LONGEST_LIST), AfterValidator(_distinct)]
"""Texts of which no two are the same."""
Numbers: TypeAlias = Annotated[Mapping[Text, float], Field(max_length=LONGEST_LIST)]


def read(kind: type[Kind], value: object) -> Kind:
    """A part of a plan from JSON values. Raises errors.PlanRefused (``plan_manifest``), naming the field."""
    return conversion.from_json(kind, value, refusal=errors.PlanRefused, code="plan_manifest")


def read_canonical(kind: type[Kind], data: bytes, *, limit: int) -> Kind:
    """A manifest from its canonical bytes, so that one has one byte string and one digest.

    limit: its most bytes. Raises errors.PlanRefused (``plan_manifest``), also for JSON that is not canonical.
    """
    try:
        value = parse_json(data, limit=limit)
    except errors.InputError as error:
        raise refused(f"The manifest is unreadable: {error.message}") from error
    found = read(kind, value)
    if canonical_json(conversion.to_json(found)) != data:
        raise refused("The manifest is not canonical JSON, so its digest is not that of its meaning.")
    return found


def refused(message: str) -> errors.PlanRefused:
    """The refusal of a manifest."""
    return errors.PlanRefused(message, code="plan_manifest")
