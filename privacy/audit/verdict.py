"""What an audit answers: a claim is refuted, or it is not although it could have been, or the audit cannot tell."""

from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["refuted", "not refuted", "cannot tell"]


def verdict_of(epsilon: float, cap: float, claimed: float | None) -> Verdict | None:
    """The answer for a claim, None where nothing was claimed.

    epsilon: what is proven, a lower bound.
    cap: the highest that this audit could have proven, had everything that was looked for been seen: a claim above it
        could never have been refuted, so that nothing was learned of it.
    """
    if claimed is None:
        return None
    if epsilon > claimed:
        return "refuted"
    return "not refuted" if cap > claimed else "cannot tell"
