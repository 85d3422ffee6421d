"""What `coterie query` asks: a kind of question, what it takes, and the question that a command line makes of it."""

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from coterie.errors import ExperimentError, InputError

if TYPE_CHECKING:
    from coterie.aggregation.analytics import Query
    from coterie.protocol.schema import DataSchema


class Kind(StrEnum):
    """What can be asked."""

    COUNT = "count"
    MEAN = "mean"
    HISTOGRAM = "histogram"
    QUANTILES = "quantiles"
    HEAVY_HITTERS = "heavy-hitters"


# What a question takes beside its column; those with no value in it have none that fits every column.
_TAKES: dict[Kind, dict[str, Any]] = {
    Kind.COUNT: {},
    Kind.MEAN: {"low": None, "high": None},
    Kind.HISTOGRAM: {"low": None, "high": None, "bins": 32},
    Kind.QUANTILES: {"levels": (0.25, 0.5, 0.75), "low": None, "high": None, "bins": 64, "rounds": 3},
    Kind.HEAVY_HITTERS: {"bits": None, "fraction": None, "step": 4},
}
# What lies below an edge has the noise of all counts beside it: see docs/analytics.md.
_NOISED = {Kind.QUANTILES: {"bins": 4, "rounds": 6}}
_MOST_CLASSES = 256


def make_query(kind: Kind, column: str, schema: "DataSchema", options: dict[str, Any], *, noised: bool) -> "Query[Any]":
    """The query.

    options: what the command says, None where it says nothing.
    noised: whether --epsilon is among it.

    Raises InputError (``usage``) for what is missing; ExperimentError (``query_invalid``) for what cannot be asked.
    """
    from coterie.aggregation import analytics

    columns = {one.name: one for one in (*schema.features, schema.label)}
    if column not in columns:
        raise ExperimentError(
            f"There is no column {column[:64]!r}; the schema has {', '.join(columns)}.",
            hint="Name a feature, or the label.",
            code="query_invalid",
        )
    bounds = _bounds(schema, column)
    usual: dict[str, Any] = {**_TAKES[kind], **(_NOISED.get(kind, {}) if noised else {})}
    wanted: dict[str, Any] = {name: value if options[name] is None else options[name] for name, value in usual.items()}
    wanted |= {name: bound for name, bound in bounds.items() if name in wanted and wanted[name] is None}
    if kind is Kind.HISTOGRAM and column == schema.label.name and schema.label.is_class:
        wanted |= _one_bin_each(bounds, options)
    missing = [name for name, value in wanted.items() if value is None]
    if missing:
        of_range = "The schema has no bounds for this column; values outside the range are clipped to it."
        of_ids = "For ids below 1024 of which those count that are 5 % of all: --bits 10 --fraction 0.05"
        raise InputError(
            f"{kind.value} of {column!r} needs {' and '.join(f'--{name}' for name in missing)}.",
            hint=of_ids if kind is Kind.HEAVY_HITTERS else of_range,
            code="usage",
        )
    match kind:
        case Kind.COUNT:
            return analytics.count(column)
        case Kind.MEAN:
            elements = {one.name: one.size for one in (*schema.features, schema.label)}
            return analytics.mean(column, elements=elements[column], **wanted)
        case Kind.HISTOGRAM:
            return analytics.histogram(column, **wanted)
        case Kind.QUANTILES:
            return analytics.quantiles(column, wanted.pop("levels"), **wanted)
        case Kind.HEAVY_HITTERS:
            return analytics.heavy_hitters(column, **wanted)


def in_python(question: "Query[Any]") -> str:
    """The call of `coterie.aggregation.analytics` that makes this question, with all its numbers."""
    numbers = {name: int(value) if value.is_integer() else value for name, value in question.rule.parameters.items()}
    levels = tuple(numbers.pop(name) for name in sorted(numbers) if name[0] == "q" and name[1:].isdecimal())
    words = [repr(question.column), *([repr(levels)] if levels else [])]
    return f"{question.rule.name}({', '.join([*words, *(f'{name}={value!r}' for name, value in numbers.items())])})"


def _bounds(schema: "DataSchema", column: str) -> dict[str, float | None]:
    """Between which values a column lies, as the schema says it; a class counts as its index."""
    label = schema.label
    if column == label.name and label.classes is not None:
        return {"low": 0.0, "high": len(label.classes) - 1.0}
    known = next((one for one in schema.features if one.name == column), label)
    return {"low": known.low, "high": known.high}


def _one_bin_each(bounds: dict[str, float | None], options: dict[str, Any]) -> dict[str, Any]:
    """The histogram of a label of whole numbers, where nothing else is asked: a bin for each of them."""
    low, high = bounds["low"], bounds["high"]
    if low is None or high is None or any(options[name] is not None for name in ("low", "high", "bins")):
        return {}
    count = round(high - low) + 1
    return {"high": high + 1, "bins": count} if count <= _MOST_CLASSES else {}


def levels_of(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise InputError(
            f"--levels must be numbers from 0 to 1 separated by commas, not {text[:64]!r}.",
            hint="For example --levels 0.5,0.9",
            code="usage",
        ) from None


def refuse_idle(kind: Kind, options: dict[str, Any]) -> None:
    """An option that the question does not have would pass for one that it heeds."""
    for name, value in options.items():
        if value is not None and name not in _TAKES[kind]:
            takes = " ".join(f"--{one}" for one in _TAKES[kind])
            hint = f"It takes {takes}." if takes else "It takes a column alone."
            raise InputError(f"--{name} has no effect on {kind.value}.", hint=hint, code="usage")
