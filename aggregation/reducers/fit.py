"""Whether a reducer fits an experiment, which is said before it runs and not in its first round."""

from coterie import errors
from coterie.aggregation.reducers.text import reducer

# Updates of these methods hold another number beside the change, by which their server multiplies or divides: the
# length of both together means nothing, and to bound it bounds no step.
_BESIDE = {
    "fednova": "how far a client's steps go",
    "qfedavg": "the curvature that the change is divided by",
    "fedexp": "the square of its length",
    "ifca": "which of several models a client moves",
}
# Of these a client's update is no estimate of one common change, coordinate by coordinate either.
_APART = frozenset({"ifca"})


def check_reducer(text: str, min_updates: int, algorithm: str) -> None:
    """Raise errors.ExperimentError unless rounds of at least ``min_updates`` updates can use this reducer: what
    `reducer` raises, ``reducer_updates`` (such as 2f ≥ n), ``reducer_reference`` or ``reducer_method``.
    """
    rule = reducer(text)
    if rule.reference == "trusted":
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
    apart = algorithm in _APART and rule.needs == "updates"
    if apart or (algorithm in _BESIDE and rule.measures):
        raise errors.ExperimentError(
            f"The reducer {rule.name} compares or measures whole updates, and those of {algorithm} hold "
            f"{_BESIDE[algorithm]} beside the change.",
            hint="Choose mean." if algorithm in _APART else "Choose mean, median, trimmed_mean(f) or meamed(f) alone.",
            code="reducer_method",
        )
