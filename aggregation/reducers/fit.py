"""Whether a reducer fits an experiment, which is said before it runs and not in its first round."""

from coterie import errors
from coterie.aggregation.reducers.text import reducer

# Of these methods a client's update is no estimate of one common change.
_APART = {"ifca": "each of its clients moves one of several models"}


def check_reducer(text: str, min_updates: int, algorithm: str) -> None:
    """Raise errors.ExperimentError unless rounds of at least ``min_updates`` updates can use this reducer: what
    `reducer` raises, ``reducer_updates`` (such as 2f ≥ n), ``reducer_reference`` or ``reducer_method``.
    """
    rule = reducer(text)
    if rule.reference:
        raise errors.ExperimentError(
            f"The reducer {rule.name} judges updates by one that was trained on rows which the coordinator trusts, and "
            "no coordinator trains.",
            hint="Use it through aggregate(..., reference=...), or choose nnm(f)+trimmed_mean(f).",
            code="reducer_reference",
        )
    if rule.fewest > min_updates:
        raise errors.ExperimentError(
            f"The reducer {rule.name} needs at least {rule.fewest} updates (2f ≥ n leaves no honest majority), and a "
            f"round may end with {min_updates}.",
            hint=f"Set min_updates to {rule.fewest} or more in the round policy, or lower f.",
            code="reducer_updates",
        )
    if rule.needs == "updates" and algorithm in _APART:
        raise errors.ExperimentError(
            f"The reducer {rule.name} compares updates, and those of {algorithm} cannot be: {_APART[algorithm]}.",
            hint="Choose mean or norm_bound(c).",
            code="reducer_method",
        )
