"""A lower bound of ε from ONE run (Steinke, Nasr, Jagielski: "Privacy Auditing with One (1) Training Run", 2023).

A fair coin decides for every canary whether it is in the run. Whoever sees the result guesses for some canaries whether
they were in. A run that is (ε, δ)-private makes many right guesses improbable (their theorem 5.2):

    P[v or more of r guesses right] ≤ β + 2 m δ · max_i (P[Bin(r, q) ≥ v − i] − β) / i

with m canaries, q = 1 / (1 + e^−ε), β = P[Bin(r, q) ≥ v]. The largest ε for which that is still below the allowed
chance of a mistake is refuted with that confidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from coterie import errors
from coterie.privacy.audit.binomial import upper_tails

MOST_EPSILON = 20.0
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Audit:
    """What an audit proves: with `confidence`, no (ε, delta) below `epsilon` is true of the run.

    canaries, guesses, correct: what it is proven from. claimed: what the run claimed, None where it claimed nothing.
    """

    canaries: int
    guesses: int
    correct: int
    delta: float
    confidence: float
    epsilon: float
    claimed: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the claim survives: nothing above it is proven. True where nothing was claimed."""
        return self.claimed is None or self.epsilon <= self.claimed

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**asdict(self), "holds": self.holds}


def epsilon_lower_bound(
    canaries: int, guesses: int, correct: int, delta: float, *, confidence: float = CONFIDENCE
) -> float:
    """The largest ε that is refuted, in 0..20; 0 where nothing is.

    Raises errors.ArgumentValueError for impossible numbers.
    """
    if not (0 < guesses <= canaries and 0 <= correct <= guesses):
        raise errors.ArgumentValueError(
            f"An audit has 0 < guesses <= canaries and 0 <= correct <= guesses, not {canaries} canaries, {guesses} "
            f"guesses and {correct} correct."
        )
    if not (0 <= delta < 1 and 0 < confidence < 1):
        raise errors.ArgumentValueError(f"delta must be in [0, 1) and confidence in (0, 1), not {delta}, {confidence}.")
    mistake = 1 - confidence
    if _chance(0.0, canaries, guesses, correct, delta) > mistake:
        return 0.0
    low, high = 0.0, MOST_EPSILON
    while high - low > 1e-9:
        middle = (low + high) / 2
        refuted = _chance(middle, canaries, guesses, correct, delta) < mistake
        low, high = (middle, high) if refuted else (low, middle)
    return low


def audit_scores(
    scores: Sequence[float],
    included: Sequence[bool],
    delta: float,
    *,
    guesses: int | None = None,
    claimed: float | None = None,
    confidence: float = CONFIDENCE,
) -> Audit:
    """Guess by scores, and count: the highest half of the guesses says *in*, the lowest half *out*.

    scores: of each canary, higher the more the result looks as if it were in. included: the coins. guesses: how many of
    the canaries to guess (the others are abstained from); to be fixed before looking at scores, a third when None.
    Raises errors.ArgumentValueError for scores that are no numbers, or for fewer than two canaries.
    """
    values, coins = np.asarray(scores, np.float64), np.asarray(included, np.bool_)
    if values.shape != coins.shape or values.ndim != 1 or len(values) < 2 or not np.isfinite(values).all():
        raise errors.ArgumentValueError(
            "An audit needs one finite score and one coin for each of two or more canaries."
        )
    count = max(2, math.ceil(len(values) / 3)) if guesses is None else guesses
    order = np.argsort(values, kind="stable")
    out, said_in = order[: count // 2], order[len(order) - (count - count // 2) :]
    correct = int((~coins[out]).sum() + coins[said_in].sum())
    bound = epsilon_lower_bound(len(values), count, correct, delta, confidence=confidence)
    return Audit(len(values), count, correct, delta, confidence, bound, claimed)


def _chance(epsilon: float, canaries: int, guesses: int, correct: int, delta: float) -> float:
    """The right side of the theorem."""
    tails = upper_tails(guesses, 1 / (1 + math.exp(-epsilon)))
    beta = float(tails[correct])
    if delta == 0 or correct == 0:
        return min(1.0, beta)
    # P[… ≥ v − i] for i = 1..v.
    gained = (tails[:correct][::-1] - beta) / np.arange(1, correct + 1)
    return min(1.0, beta + 2 * canaries * delta * float(gained.max()))
