"""What the fields of a feature and of a label must be: rules, each with what is said where it does not hold."""

import math
from typing import Literal, Protocol, cast, get_args

DType = Literal["float32", "int32", "int16", "int8", "uint8"]
Encoding = Literal["utf-8"]
Others = Literal["refused", "dropped"]
RawLabel = str | int | float
RefusalRule = tuple[bool, str]

LONGEST_NAME = 128
MOST_ELEMENTS = 1 << 24
HIGHEST_RANK = 7
MOST_TEXTS = 100_000
LONGEST_TEXT = 1_024
MOST_NORMALISED = 2**53
"""Below this are bounds, offsets and scales."""


class FeatureFields(Protocol):
    """What the rules need to know of a feature (schema.Feature)."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def size(self) -> int: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...
    @property
    def offset(self) -> float | tuple[float, ...]: ...
    @property
    def scale(self) -> float | tuple[float, ...]: ...
    @property
    def encoding(self) -> str | None: ...
    @property
    def vocabulary(self) -> tuple[str, ...] | None: ...
    @property
    def is_text(self) -> bool: ...


class LabelFields(Protocol):
    """What the rules need to know of a label (schema.Label)."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def size(self) -> int: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    @property
    def classes(self) -> tuple[RawLabel, ...] | None: ...
    @property
    def column(self) -> str | None: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...
    @property
    def others(self) -> str: ...
    @property
    def constant(self) -> int | None: ...


def range_of(dtype: str) -> tuple[int, int]:
    """The least and the greatest whole number of a dtype such as int16 or uint8."""
    signed, bits = dtype.startswith("i"), int(dtype.lstrip("uint"))
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)


def rules_of_feature(feature: FeatureFields) -> list[tuple[bool, str]]:
    rules = [
        (_is_name(feature.name), f"its name needs 1 to {LONGEST_NAME} characters"),
        (feature.dtype in get_args(DType), f"its dtype must be one of {', '.join(get_args(DType))}"),
        *_rules_of_shape(feature.shape, feature.columns),
        (_is_range(feature.low, feature.high), "low and high must be finite numbers (or None) with low ≤ high"),
    ]
    if not all(good for good, _ in rules):
        return rules
    size = feature.size
    read, holds = (1, "text is read from one column") if feature.is_text else (size, f"its shape has {size} elements")
    return [
        *rules,
        *(_rules_of_text(feature) if feature.is_text else ()),
        (_has_room(feature), f"no number from low to high is one of {feature.dtype}"),
        *_rules_of_columns(feature.columns, size, read, holds),
        (_is_normalisation(feature.offset, size), f"its offset must be one finite number or {size} of them"),
        (_is_normalisation(feature.scale, size), f"its scale must be one finite number or {size} of them"),
    ]


def _has_room(feature: FeatureFields) -> bool:
    if feature.dtype == "float32":
        return True
    least, most = range_of(feature.dtype)
    low = least if feature.low is None else math.ceil(feature.low)
    high = most if feature.high is None else math.floor(feature.high)
    return max(low, least) <= min(high, most)


def rules_of_label(label: LabelFields) -> list[tuple[bool, str]]:
    classes, constant = cast(object, label.classes), cast(object, label.constant)
    listed = cast(tuple[object, ...], classes) if isinstance(classes, tuple) else ()
    alone = (label.classes, label.column, label.low, label.high) == (None,) * 4
    shaped = _rules_of_shape(label.shape, label.columns)
    if not all(good for good, _ in shaped):
        return shaped
    size = label.size
    return [
        (_is_name(label.name), f"its name needs 1 to {LONGEST_NAME} characters"),
        (label.dtype in ("int32", "float32"), "its dtype must be int32 or float32"),
        (label.column is None or _is_name(label.column), f"its column needs 1 to {LONGEST_NAME} characters"),
        (_is_range(label.low, label.high), "low and high must be finite numbers (or None) with low ≤ high"),
        (classes is None or isinstance(classes, tuple), "its classes must be a list or None"),
        (classes is None or label.dtype == "int32", "classes need the dtype int32"),
        (classes is None or (label.low is None and label.high is None), "give classes or a range, not both"),
        (classes is None or 2 <= len(listed) <= 1_000_000, "it needs at least two classes"),
        (all(_is_number(c) or _is_name(c) for c in listed), "its classes must be texts or finite numbers"),
        (_are_distinct(listed), "it names a class twice"),
        (label.others in get_args(Others), f"others must be one of {', '.join(get_args(Others))}"),
        (
            label.others == "refused" or classes is not None,
            "rows of other labels can only be dropped where classes say so",
        ),
        (
            constant is None or (_is_number(constant) and isinstance(constant, int)),
            "its constant must be a whole number",
        ),
        (constant is None or alone, "a constant label has no classes, column or range"),
        (label.shape == () or classes is None, "classes need the shape (); give class indices, and high as the last"),
        (label.shape == () or label.column is None, "column is for the shape (); give columns, one for each element"),
        (label.shape == () or constant is None, "a constant label has the shape ()"),
        (label.shape != () or label.columns == (), "columns are for a shape; give column"),
        *_rules_of_columns(label.columns, size, size, f"its shape has {size} elements"),
    ]


def _rules_of_shape(shape: object, columns: object) -> list[RefusalRule]:
    whole = isinstance(shape, tuple) and all(_is_whole(n) for n in cast(tuple[object, ...], shape))
    few = whole and len(cast(tuple[object, ...], shape)) <= HIGHEST_RANK
    texts = isinstance(columns, tuple) and all(_is_name(c) for c in cast(tuple[object, ...], columns))
    return [
        (few, f"its shape must be at most {HIGHEST_RANK} whole numbers ≥ 1"),
        (texts, f"its columns must be names of 1 to {LONGEST_NAME} characters"),
    ]


def _rules_of_columns(columns: tuple[str, ...], size: int, read: int, holds: str) -> list[RefusalRule]:
    """read: how many columns an example of this size is read from; holds: why."""
    return [
        (size <= MOST_ELEMENTS, f"an example has at most {MOST_ELEMENTS} elements, not {size}"),
        (len(columns) in (0, read), f"{holds} but it names {len(columns)} columns"),
        (len(set(columns)) == len(columns), "it names a column twice"),
    ]


def _rules_of_text(feature: FeatureFields) -> list[RefusalRule]:
    vocabulary = cast(object, feature.vocabulary)
    listed = cast(tuple[object, ...], vocabulary) if isinstance(vocabulary, tuple) else ()
    bare = (feature.low, feature.high, feature.offset, feature.scale) == (None, None, 0.0, 1.0)
    bytes_of = feature.dtype == "uint8" and len(feature.shape) == 1 and feature.size <= LONGEST_TEXT
    return [
        (vocabulary is None or feature.encoding is None, "give an encoding or a vocabulary, not both"),
        (
            feature.encoding in (None, *get_args(Encoding)),
            f"its encoding must be {', '.join(get_args(Encoding))} or None",
        ),
        (feature.encoding is None or bytes_of, f"bytes of text are uint8 of shape (L,), with L at most {LONGEST_TEXT}"),
        (
            vocabulary is None or (feature.dtype == "int32" and feature.shape == ()),
            "places in a vocabulary are int32 of shape ()",
        ),
        (vocabulary is None or isinstance(vocabulary, tuple), "its vocabulary must be a list of texts"),
        (vocabulary is None or 1 <= len(listed) <= MOST_TEXTS, f"its vocabulary needs 1 to {MOST_TEXTS} texts"),
        (
            all(isinstance(text, str) and 0 < len(text) <= LONGEST_TEXT and text == text.strip() for text in listed),
            f"a text of its vocabulary needs 1 to {LONGEST_TEXT} characters, without spaces at its ends",
        ),
        (len(set(listed)) == len(listed), "its vocabulary names a text twice"),
        (bare, "text has no range and no normalisation"),
    ]


def _are_distinct(classes: tuple[object, ...]) -> bool:
    texts = {str(raw) for raw in classes}
    numbers = [raw for raw in classes if isinstance(raw, int | float)]
    return len(texts) == len(classes) and len(set(numbers)) == len(numbers)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and value.isprintable()


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_ELEMENTS


def _is_number(value: object) -> bool:
    # Neither NaN nor an infinity is below the bound; asking isfinite of a huge whole number would overflow.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MOST_NORMALISED


def _is_range(low: object, high: object) -> bool:
    edges = [edge for edge in (low, high) if edge is not None]
    return all(_is_number(edge) for edge in edges) and cast(list[float], edges) == sorted(cast(list[float], edges))


def _is_normalisation(value: object, size: int) -> bool:
    if isinstance(value, tuple):
        items = cast(tuple[object, ...], value)
        return len(items) == size and all(_is_number(item) for item in items)
    return _is_number(value)
