"""A draft of a data schema: columns whose statistics, texts and classes nobody knows yet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, cast, get_args

from coterie import errors
from coterie.aggregation.preparation.hashing import LONGEST
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.schema_rules import LONGEST_NAME

Scaling: TypeAlias = Literal["standard", "robust", "range"]
"""What a number is normalised to: mean 0 and deviation 1; median 0 and quartiles 1 apart; 0 to 1."""


@dataclass(frozen=True)
class Number:
    """A feature of numbers that is to be normalised, each element of it by its own statistics.

    columns: of a CSV, one for each element; the name when empty.
    shape: of one row; that of the columns when empty.
    low, high: as in `Feature`.
    """

    name: str
    columns: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    scaling: Scaling = "standard"
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if self.scaling not in get_args(Scaling):
            raise _invalid(f"{self.name!r}: scaling must be one of {', '.join(get_args(Scaling))}")
        if len(self.columns) > 1 and not self.shape:
            object.__setattr__(self, "shape", (len(self.columns),))

    @property
    def elements(self) -> int:
        """Numbers of one row."""
        return math.prod(self.shape)

    @property
    def feature(self) -> Feature:
        """As it is declared."""
        return Feature(name=self.name, shape=self.shape, columns=self.columns, low=self.low, high=self.high)


@dataclass(frozen=True)
class Category:
    """A feature or a label whose cells are texts.

    column: of a CSV; the name when None.
    among: the texts that there can be, which are then counted and none else looked for; None to find them. A text of
        more than `LONGEST` bytes is not found.
    """

    name: str
    column: str | None = None
    among: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        listed = cast(object, self.among)
        if listed is None:
            return
        texts: list[object] = list(cast(Sequence[object], listed)) if isinstance(listed, tuple | list) else []
        object.__setattr__(self, "among", tuple(texts))
        if not texts or not all(isinstance(text, str) and _has_room(text) for text in texts):
            raise _invalid(f"{self.name!r}: among must be texts of 1 to {LONGEST} bytes")
        if len(set(texts)) != len(texts) or any(text != cast(str, text).strip() for text in texts):
            raise _invalid(f"{self.name!r}: among names a text twice, or one with spaces at its ends")

    @property
    def feature(self) -> Feature:
        """As it is declared: bytes."""
        columns = () if self.column is None else (self.column,)
        return Feature(name=self.name, dtype="uint8", shape=(LONGEST,), columns=columns, encoding="utf-8")


@dataclass(frozen=True)
class Draft:
    """Features and label, of which some are to be prepared. A `Feature` and a `Label` stay as they are.

    Raises errors.ConfigurationError (``schema_invalid``) for what is none of these, and as `DataSchema` does.
    """

    features: tuple[Number | Category | Feature, ...]
    label: Category | Label

    def __post_init__(self) -> None:
        parts = cast(Sequence[object], self.features)
        if not isinstance(parts, tuple) or not all(isinstance(part, Number | Category | Feature) for part in parts):
            raise _invalid("features must be a tuple of Number, Category and Feature")
        if not isinstance(cast(object, self.label), Category | Label):
            raise _invalid("the label must be a Category or a Label")
        self.declared  # noqa: B018  what cannot be declared is refused here

    @property
    def numbers(self) -> tuple[Number, ...]:
        """Those that are normalised."""
        return tuple(part for part in self.features if isinstance(part, Number))

    @property
    def categories(self) -> tuple[Category, ...]:
        """Columns of text, declared texts first; the label's among them."""
        label = (self.label,) if isinstance(self.label, Category) else ()
        found = (*(part for part in self.features if isinstance(part, Category)), *label)
        return tuple(sorted(found, key=lambda category: category.among is None))

    @cached_property
    def declared(self) -> DataSchema:
        """What devices join under: numbers as they are, texts as bytes. A label that is text is a feature here, and
        rows have none.
        """
        features = tuple(part if isinstance(part, Feature) else part.feature for part in self.features)
        if isinstance(self.label, Label):
            return DataSchema(features, self.label)
        return DataSchema((*features, self.label.feature), Label(name=_unused(self), constant=0))


def _has_room(text: str) -> bool:
    data = text.encode("utf-8", "replace")
    # Half of a surrogate pair has no bytes.
    return 0 < len(data) <= LONGEST and data.decode() == text


def _unused(draft: Draft) -> str:
    """A name for rows without label that no column has."""
    taken = {part.name for part in (*draft.features, draft.label)}
    name = "unlabelled"
    while name in taken and len(name) < LONGEST_NAME:
        name += "_"
    return name


def _invalid(message: str) -> errors.ConfigurationError:
    return errors.ConfigurationError(f"In the draft of a schema: {message}.", code="schema_invalid")
