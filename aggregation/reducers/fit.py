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


def check_reducer(
    text: str,
    min_updates: int,
    algorithm: str,
    *,
    trusted: str | None = None,
    secret: bool = False,
    most_updates: int | None = None,
) -> None:
    """Raise errors.ExperimentError unless rounds of at least ``min_updates`` updates can use this reducer: what
    `reducer` raises, ``reducer_updates`` (such as 2f ≥ n), ``reducer_reference``, ``reducer_work`` or
    ``reducer_method``.

    trusted: the client by whose update the others are judged; it is one of the round's.
    secret: whether only sums over clients are seen.
    most_updates: with how many a round may end; None when nobody knows.
    """
    rule = reducer(text)
    judges = rule.reference == "trusted"
    if judges and trusted is None:
        raise errors.ExperimentError(
            f"The reducer {rule.name} judges updates by that of a client whose rows are trusted, and none is named.",
            hint="Name it in RoundPolicy(trusted=...), use aggregate(..., reference=...), or choose "
            "nnm(f)+trimmed_mean(f).",
            code="reducer_reference",
        )
    if trusted is not None and not judges:
        raise errors.ExperimentError(
            f"The round policy names the trusted client {trusted[:64]!r}, and the reducer {rule.name} asks for none.",
            hint="Choose the reducer fltrust or monna(f), or leave trusted out.",
            code="reducer_reference",
        )
    if judges and secret:
        raise errors.ExperimentError(
            f"The reducer {rule.name} must see the trusted client's update alone, and under secure aggregation only "
            "sums are ever seen.",
            hint="Set secure_aggregation=False, or choose mean, whose clients bound their own norm.",
            code="reducer_reference",
        )
    fewest = rule.fewest + judges
    if fewest > min_updates:
        # Of a rule without f, one update is enough.
        why = [rule.because] if rule.fewest > 1 else []
        why += ["one is the trusted client's, which judges the others"] if judges else []
        raise errors.ExperimentError(
            f"The reducer {rule.name} needs at least {fewest} updates ({'; '.join(why)}), and a round may end with "
            f"{min_updates}.",
            hint=f"Set min_updates to {fewest} or more in the round policy"
            f"{', or lower f, m or s, whichever it has' if rule.fewest > 1 else ''}.",
            code="reducer_updates",
        )
    seen = (most_updates or 0) - judges
    if rule.most is not None and seen > rule.most:
        raise errors.ExperimentError(
            f"The reducer {rule.name} can take at most {rule.most} updates, and a round may end with {seen}: "
            f"{rule.beyond}.",
            hint="Lower cohort in the round policy or f, put bucketing(s) before it, or choose nnm(f)+trimmed_mean(f).",
            code="reducer_work",
        )
    apart = algorithm in _APART and rule.needs == "updates"
    if apart or (algorithm in _BESIDE and rule.measures):
        raise errors.ExperimentError(
            f"The reducer {rule.name} compares or measures whole updates, and those of {algorithm} hold more "
            f"than the change: {_BESIDE[algorithm]}.",
            hint="Choose mean." if algorithm in _APART else "Choose mean, median, trimmed_mean(f) or meamed(f) alone.",
            code="reducer_method",
        )
