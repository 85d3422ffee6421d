"""What queries require of their numbers."""

import math
from numbers import Real

from coterie import errors


def number(query: str, name: str, value: float, *, least: float = -math.inf, most: float = math.inf) -> float:
    """A finite number within bounds, as a float. Raises errors.ExperimentError (``query_invalid``) naming it."""
    if not _is_finite(value) or not least <= value <= most:
        raise _refused(query, name, "a finite number", value, least, most)
    return float(value)


def whole(query: str, name: str, value: float, *, least: int, most: int) -> int:
    """A whole number within bounds. Raises errors.ExperimentError (``query_invalid``) naming it."""
    if not _is_finite(value) or value != int(value) or not least <= value <= most:
        raise _refused(query, name, "a whole number", value, least, most)
    return int(value)


def _is_finite(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def span(query: str, low: float, high: float) -> tuple[float, float]:
    """Two finite numbers that rise. Raises errors.ExperimentError (``query_invalid``)."""
    bounds = number(query, "low", low, least=-1e30, most=1e30), number(query, "high", high, least=-1e30, most=1e30)
    if bounds[0] >= bounds[1]:
        raise errors.ExperimentError(
            f"{query}: low must be below high, got {low} and {high}.",
            hint="Give the range in the raw units of the column, as the schema's bounds are.",
            code="query_invalid",
        )
    return bounds


def _refused(query: str, name: str, kind: str, value: float, least: float, most: float) -> errors.ExperimentError:
    bounds = f" in {least:g}..{most:g}" if math.isfinite(most) else ""
    return errors.ExperimentError(f"{query}: {name} must be {kind}{bounds}, got {value!r}.", code="query_invalid")
