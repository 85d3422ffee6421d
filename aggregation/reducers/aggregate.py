"""`aggregate`: a reducer over updates that are at hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.reducers.reducer import Reducer, Vector
from coterie.aggregation.reducers.source import InMemory, canonical, check_finite, stacked
from coterie.aggregation.reducers.text import reducer

MOST_WEIGHT = 1e200


def aggregate(
    rule: Reducer | str,
    updates: Sequence[npt.ArrayLike] | npt.NDArray[Any],
    weights: Sequence[float] | None = None,
    *,
    reference: npt.ArrayLike | None = None,
) -> Vector:
    """The aggregate of updates ``[n, d]``, as a float64 vector ``[d]``.

    rule: a reducer, or its text.
    updates: float32 vectors (others are converted), not copied when they are one matrix.
    weights: one for each update, 1 when None; rules that need every single update ignore all but whether it is zero.
    reference: the trusted update that fltrust needs, or the aggregate of the round before, where centered_clipping goes
        on (from zero when None). Other rules see no reference.
    Guarantees: the order of the updates does not matter.
    Raises errors.ExperimentError as `reducer` does; errors.InputError (``updates_shape``, ``reference_missing``);
    errors.UpdateRefused: ``not_finite``, ``too_few_updates`` (2f ≥ n), ``bad_weight``, ``zero_weight``.
    """
    chosen = rule if isinstance(rule, Reducer) else reducer(rule)
    rows = stacked(updates)
    claims = [1.0] * len(rows) if weights is None else _claims(weights)
    if len(claims) != len(rows):
        raise errors.InputError(f"{len(rows)} updates have {len(claims)} weights.", code="updates_shape")
    if reference is not None and chosen.beside is not None:
        chosen = chosen.beside(_reference(reference))
    if chosen.over is None or not all(claim == 1.0 for claim in claims):
        return _one_by_one(chosen, rows, claims)
    return chosen.over(InMemory(rows, canonical(rows)))


def _reference(values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """The reference as a vector; it is no update, so what is wrong with it is said of it."""
    try:
        vector = np.asarray(values, np.float32)
    except (TypeError, ValueError) as error:
        raise errors.InputError(f"The reference must be numbers: {error}.", code="updates_shape") from error
    if vector.ndim != 1 or not vector.size:
        raise errors.InputError(
            f"The reference must be one vector, as long as the updates; its shape is {list(vector.shape)}.",
            code="updates_shape",
        )
    if not np.isfinite(vector).all():
        at = int(np.argmin(np.isfinite(vector)))
        raise errors.UpdateRefused(f"The reference holds {vector[at]} at element {at}.", code="not_finite")
    return vector


def _claims(weights: Sequence[float]) -> list[float]:
    try:
        claims = np.asarray(weights, np.float64).reshape(-1)
    except (TypeError, ValueError, OverflowError) as error:
        raise errors.UpdateRefused(f"Weights must be numbers: {error}.", code="bad_weight") from error
    # A weight times the largest float32, summed over all, must stay a float64.
    if not (np.isfinite(claims).all() and (claims >= 0).all() and claims.sum() < MOST_WEIGHT):
        raise errors.UpdateRefused(
            f"Weights must be finite and not negative, and together below {MOST_WEIGHT:g}.", code="bad_weight"
        )
    return claims.tolist()


def _one_by_one(rule: Reducer, rows: npt.NDArray[np.float32], claims: Sequence[float]) -> Vector:
    acc = rule.init(rows.shape[1])
    try:
        for row, claim in zip(rows, claims, strict=True):
            acc = rule.add(acc, ((0, row),), claim)
    except errors.UpdateRefused:
        # What takes in one update at a time cannot say which it was.
        check_finite(rows)
        raise
    total = rule.result(acc)
    if not np.isfinite(total).all():
        check_finite(rows)
    return total
