"""The data schema of a population: what every device's rows must look like, checked before a device joins.

Values are the raw ones that devices hold: ranges and classes speak of them. Normalisation ``(x - offset) * scale`` is
part of the schema but is compiled into the graphs, never applied by a device. The checking of arrays is in `rows`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from pydantic import Field, PlainSerializer, PlainValidator, SerializeAsAny, WithJsonSchema

from coterie import errors
from coterie.protocol.canonical import digest_of
from coterie.protocol.checked_rows import CheckedRows
from coterie.protocol.conversion import UnlessEmpty, UnlessNone, from_json, to_json
from coterie.protocol.rows import check_feature, check_label, check_left, check_lengths, with_classes
from coterie.protocol.schema_rules import DType, Encoding, Others, RawLabel, rules_of_feature, rules_of_label

MOST_FEATURES = 1_000
NEEDS_FEATURES = f"it needs 1 to {MOST_FEATURES} features"
"""What is said of a schema without features, or with too many."""
_Number: TypeAlias = SerializeAsAny[float]
"""Written as it is held: 1 stays 1, though 1.0 is the same number."""


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One model input.

    dtype: of the raw values, which devices hold and graphs take as they are. A model is given float32, or int32 (ids)
        for int32, int16 and int8 without normalisation: the same as if the values were int32, in less memory.
    shape: of one example (batches prepend B); () is a single number.
    columns: names of the CSV columns that make up the flattened example, in row-major order, or () for an array
        feature.
    low, high: inclusive bounds of the raw values.
    offset, scale: normalisation ``(x - offset) * scale``, one number or one per element of the flattened example. A
        column of text is read in one of two ways. encoding ``utf-8``: its bytes, uint8 of shape (L,), zeros after them;
        a text that is empty or takes more than L bytes is all zeros.
    vocabulary: the text's place in it, from 1, as int32; 0 for any other text. A cell that is a number counts as its
        text in canonical JSON.
    Raises errors.ConfigurationError (``schema_invalid``).
    """

    name: str
    dtype: DType = "float32"
    shape: tuple[int, ...] = ()
    columns: tuple[str, ...] = ()
    low: _Number | None = None
    high: _Number | None = None
    offset: _Number | tuple[_Number, ...] = 0.0
    scale: _Number | tuple[_Number, ...] = 1.0
    encoding: Annotated[Encoding | None, UnlessNone] = None
    vocabulary: Annotated[tuple[str, ...] | None, UnlessNone] = None

    def __post_init__(self) -> None:
        _require(self.name, rules_of_feature(self))

    @property
    def size(self) -> int:
        """Number of elements of one example."""
        return math.prod(self.shape)

    @property
    def is_text(self) -> bool:
        """Whether it is read from cells of text."""
        return self.encoding is not None or self.vocabulary is not None

    @property
    def is_normalised(self) -> bool:
        """Whether normalisation changes anything."""
        offset, scale = self.normalisation()
        return bool((offset != 0).any() or (scale != 1).any())

    def normalisation(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """(offset, scale) as float32 arrays: of shape () when one number, else of the feature's shape."""
        return self._per_element(self.offset), self._per_element(self.scale)

    def _per_element(self, value: float | tuple[float, ...]) -> npt.NDArray[np.float32]:
        array = np.asarray(value, np.float32)
        return array.reshape(self.shape) if array.ndim else array


@dataclass(frozen=True, kw_only=True)
class Label:
    """What the model learns to tell: one number per example, or an array of them.

    shape: of one example's label (batches prepend B); () is a single number. A class for each token is (T,), a yes or
        no for each of K topics (K,), a class for each pixel (H, W), N boxes (N, 5).
    classes: the raw labels (text or numbers) in class order, mapped to 0 … n-1 (dtype int32 then); None when the data
        holds the number itself: a class index (int32) or a value (float32), within the inclusive bounds low, high.
        Only for the shape ().
    column: the CSV column, `name` when None. Only for the shape ().
    columns: names of the CSV columns that make up the flattened label, in row-major order, or () for an array.
    others: what becomes of rows whose label is none of the classes: they are refused, or dropped before anything sees
        them.
    constant: of rows that have no label: each has this number, and no column is read.
    """

    name: str
    dtype: Literal["int32", "float32"] = "int32"
    shape: Annotated[tuple[int, ...], UnlessEmpty] = ()
    classes: tuple[RawLabel, ...] | None = None
    column: str | None = None
    low: _Number | None = None
    high: _Number | None = None
    others: Annotated[Others, Field(exclude_if=lambda others: others == "refused")] = "refused"
    constant: Annotated[int | None, UnlessNone] = None
    columns: Annotated[tuple[str, ...], UnlessEmpty] = ()

    def __post_init__(self) -> None:
        _require(self.name, rules_of_label(self))

    @property
    def size(self) -> int:
        """Number of elements of one example's label."""
        return math.prod(self.shape)

    @property
    def is_class(self) -> bool:
        """Whether each row has one class, or what may be one: a whole number that is read from the data."""
        return self.dtype == "int32" and self.shape == () and self.constant is None

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns that it is read from, in order; its name for an array."""
        if self.constant is not None:
            return ()
        return self.columns or (self.column or self.name,)

    def lacks(self, labels: Sequence[int]) -> list[int]:
        """Those of these classes that no row can have; all of them where labels are no classes."""
        low, high = (self.low, self.high) if self.classes is None else (0, len(self.classes) - 1)
        if self.constant is not None:
            low = high = self.constant
        low, high = -math.inf if low is None else low, math.inf if high is None else high
        numbers = self.dtype == "int32" and self.shape == ()
        return [label for label in labels if not numbers or not low <= label <= high]


@dataclass(frozen=True)
class DataSchema:
    """Features and label. Equal schemas have equal digests, and only those.

    features: none only where the label is read and another organisation has the features: in a session.
    """

    features: Annotated[tuple[Feature, ...], Field(max_length=MOST_FEATURES)]
    label: Label

    def __post_init__(self) -> None:
        features = cast(object, self.features)
        listed = cast(tuple[object, ...], features) if isinstance(features, tuple) else (None,)
        if not all(isinstance(feature, Feature) for feature in listed) or not isinstance(
            cast(object, self.label), Label
        ):
            raise _invalid("In the data schema: its parts must be a tuple of Features, (Feature(...),), and one Label.")
        names = [*(feature.name for feature in self.features), self.label.name]
        sources = list(self.sources)
        _require(
            None,
            [
                (
                    len(self.features) <= MOST_FEATURES and (self.has_features or self.label.constant is None),
                    NEEDS_FEATURES,
                ),
                (len(set(names)) == len(names), "features and label must have distinct names"),
                (len(set(sources)) == len(sources), "no two features, and not the label, may read the same column"),
            ],
        )

    @property
    def has_features(self) -> bool:
        """Whether there is a feature: what a model of one population needs."""
        return bool(self.features)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """Names to read from a table, in order.

        Each feature's columns (its name when it has none), then the label's unless the label is constant.
        """
        found = [name for feature in self.features for name in (feature.columns or (feature.name,))]
        return (*found, *self.label.sources)

    @cached_property
    def array_names(self) -> tuple[str, ...]:
        """Names of the features and of the label, unless that is constant: of arrays that are given whole."""
        label = () if self.label.constant is not None else (self.label.name,)
        return (*(feature.name for feature in self.features), *label)

    def metadata(self) -> dict[str, str]:
        """What a finished model's file says of it: the label's name and, as a JSON list in the order of the outputs,
        its classes.
        """
        classes = {} if self.label.classes is None else {"classes": json.dumps(self.label.classes, ensure_ascii=False)}
        return {"label": self.label.name, **classes}

    @cached_property
    def texts(self) -> frozenset[str]:
        """Those of `sources` whose cells are text, whatever they look like: 007 is not 7."""
        features = (feature for feature in self.features if feature.is_text)
        found = {name for feature in features for name in (feature.columns or (feature.name,))}
        named = any(isinstance(raw, str) for raw in self.label.classes or ())
        return frozenset(found | (set(self.label.sources) if named else set()))

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the canonical JSON."""
        return digest_of(to_json(self))

    def check(self, arrays: Mapping[str, npt.NDArray[Any]], source: str) -> CheckedRows:
        """Rows that fit: features and the label by name as `[N, *shape]`, in the schema's dtypes, contiguous.
        What this schema has checked before comes back equal.

        arrays: by feature name, or by the names of the feature's columns (`[N]` each; numbers or text); the label
            likewise.
        source: where they come from, for messages. Casts are those of `rows`, none of which changes a value but float64
            → float32 rounding.
        Raises errors.DataError naming the column and the row (the first is 1) of the first bad cell, how many more
        there are, what the schema expects and how to mend it; also for arrays that are missing, surplus, empty or of
        unequal length.
        """
        rows = self.fitting(arrays, source)
        check_left(len(rows[self.label.name]), self.label, source)
        return rows

    def fitting(self, arrays: Mapping[str, npt.NDArray[Any]], source: str) -> CheckedRows:
        """As `check`, but there may be no row left of those that the label's classes choose."""
        if isinstance(arrays, CheckedRows) and arrays.schema == self.digest and frozenset(arrays) == self._names:
            return self._checked_again(arrays, source)
        result = self.cells(arrays, source)
        if self.label.constant is not None:
            return CheckedRows(result, self.digest)
        read = max(len(result[self.label.name]), arrays.read if isinstance(arrays, CheckedRows) else 0)
        return CheckedRows(with_classes(result, self.label), self.digest, read=read)

    def cells(
        self, arrays: Mapping[str, npt.NDArray[Any]], source: str, numbers: npt.NDArray[np.int64] | None = None
    ) -> dict[str, npt.NDArray[Any]]:
        """Every row as `fitting` reads it, also those whose label is none of the classes, with -1 for it.

        numbers: what messages call the rows; 1, 2, … without.
        Raises errors.DataError as `check` does.
        """
        given = self._assign(arrays, source)
        check_lengths({name: array for group in given.values() for name, array in group.items()}, source)
        result = {each.name: check_feature(each, given[each.name], source, numbers=numbers) for each in self.features}
        if self.label.constant is not None:
            rows = len(result[self.features[0].name])
            result[self.label.name] = np.full(rows, self.label.constant, self.label.dtype)
        else:
            result[self.label.name] = check_label(self.label, given[self.label.name], source, numbers=numbers)
        return result

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset((*(feature.name for feature in self.features), self.label.name))

    def _checked_again(self, rows: CheckedRows, source: str) -> CheckedRows:
        """Rows of this schema, of which somebody may have changed values since: places stay places."""
        check_lengths(rows, source, least=0)
        given = {name: {name: array} for name, array in rows.items()}
        found = {each.name: check_feature(each, given[each.name], source, read=True) for each in self.features}
        found[self.label.name] = check_label(self.label, given[self.label.name], source, read=True)
        return CheckedRows(found, self.digest, read=rows.read)

    def _assign(self, arrays: Mapping[str, npt.NDArray[Any]], source: str) -> dict[str, dict[str, npt.NDArray[Any]]]:
        """Feature or label name → the arrays that it is made of."""
        wanted = {feature.name: feature.columns for feature in self.features}
        if self.label.constant is None:
            wanted[self.label.name] = self.label.columns or ((self.label.column,) if self.label.column else ())
        given: dict[str, dict[str, npt.NDArray[Any]]] = {}
        for name, columns in wanted.items():
            whole = name in arrays and not (columns and all(column in arrays for column in columns))
            names = (name,) if whole or not columns else columns
            missing = [column for column in names if column not in arrays]
            if missing:
                raise errors.DataError(
                    f"{source}: {_list_columns(missing)} missing; found {', '.join(sorted(arrays)[:20]) or 'nothing'}.",
                    hint=f"The schema reads {self._reads()}.",
                    code="data_missing",
                    column=missing[0],
                )
            masked = [column for column in names if isinstance(arrays[column], np.ma.MaskedArray)]
            if masked:
                raise errors.DataError(
                    f"{source}: {_list_columns(masked)} masked, and the mask would be silently dropped.",
                    hint="Leave out the masked rows, or fill them, before handing the array over.",
                    code="data_masked",
                    column=masked[0],
                )
            given[name] = {column: _as_array(arrays[column], column, source) for column in names}
        surplus = sorted(set(arrays) - {column for group in given.values() for column in group})
        if surplus:
            raise errors.DataError(
                f"{source}: {_list_columns(surplus)} not in the schema.",
                hint=f"Leave them out; the schema reads {self._reads()}.",
                code="data_surplus",
                column=surplus[0],
            )
        return given

    def _reads(self) -> str:
        return ", ".join(self.sources[:20]) + (" …" if len(self.sources) > 20 else "")

    @staticmethod
    def from_json(value: object) -> "DataSchema":
        """The schema that these JSON values say.

        Raises errors.ConfigurationError (``schema_invalid``); trusts nothing of `value`.
        """
        return from_json(DataSchema, value, refusal=errors.ConfigurationError, code="schema_invalid")


def _require(name: object, rules: list[tuple[bool, str]]) -> None:
    """Raise for the first rule that does not hold.

    name: of the feature or label that it is about; None for all of them together.
    """
    where = "In the data schema" if name is None else f"{str(name)[:64]!r} in the data schema"
    for good, why in rules:
        if not good:
            raise _invalid(f"{where}: {why}.")


def _as_array(value: object, column: str, source: str) -> npt.NDArray[Any]:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise errors.DataError(
            f"{source}: column {column!r} is no array: {error}.",
            hint="Every row needs the same shape; fill up the shorter ones.",
            code="data_shape",
            column=column,
        ) from error


def _list_columns(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"column {shown} is" if len(names) == 1 else f"columns {shown} are"


def _invalid(message: str) -> errors.ConfigurationError:
    return errors.ConfigurationError(message, code="schema_invalid")


def _validate(value: object) -> DataSchema:
    try:
        found = value if isinstance(value, DataSchema) else DataSchema.from_json(value)
    except errors.ConfigurationError as error:
        raise ValueError(error.message) from None
    if not found.has_features:
        raise ValueError(f"In the data schema: {NEEDS_FEATURES}.")
    return found


WireSchema = Annotated[
    DataSchema,
    PlainValidator(_validate),
    PlainSerializer(to_json, return_type=dict[str, Any]),
    WithJsonSchema({"type": "object", "title": "DataSchema", "required": ["features", "label"]}),
]
"""A DataSchema as a field of a message: its JSON on the wire, the value itself in Python."""
