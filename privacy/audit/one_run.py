"""A lower bound of ε from ONE run (Steinke, Nasr, Jagielski: "Privacy Auditing with One (1) Training Run", 2023).

A fair coin decides for every canary whether it is in the run. Whoever sees the result guesses for some canaries whether
they were in. A run that is (ε, δ)-private makes many right guesses improbable (their theorem 5.2):

    P[v or more of r guesses right] ≤ β + 2 m δ · max_i (P[Bin(r, q) ≥ v − i] − β) / i

with m canaries, q = 1 / (1 + e^−ε), β = P[Bin(r, q) ≥ v]. The largest ε for which that is still below the allowed
chance of a mistake is refuted with that confidence. That assumes nothing of the mechanism, and has a ceiling: r guesses
that are all right prove no more than `highest` says, however little noise there was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import computed_field

from coterie import errors
from coterie.privacy.audit.binomial import upper_tails
from coterie.privacy.audit.verdict import Verdict, verdict_of

MOST_EPSILON = 20.0
CONFIDENCE = 0.95
CLEAR = 1.25
"""How far above a claim a cap is chosen to lie."""
_COUNTS = tuple(200 * 2**doubled for doubled in range(7))


@dataclass(frozen=True)
class Audit:
    """What an audit proves: with `confidence`, no (ε, delta) below `epsilon` is true of the run.

    canaries, guesses, correct: what it is proven from.
    cap: what it would have proven had every guess been right.
    claimed: what the run claimed, None where it claimed nothing.
    """

    canaries: int
    guesses: int
    correct: int
    delta: float
    confidence: float
    epsilon: float
    cap: float
    claimed: float | None = None

    @computed_field
    @property
    def verdict(self) -> Verdict | None:
        """What it says of the claim; None where nothing was claimed."""
        return verdict_of(self.epsilon, self.cap, self.claimed)


def epsilon_lower_bound(
    canaries: int, guesses: int, correct: int, delta: float, *, confidence: float = CONFIDENCE
) -> float:
    """The largest ε that is refuted, in 0..20; 0 where nothing is.

    Raises errors.ArgumentValueError for impossible numbers.
    """
    if not (0 < guesses <= canaries and 0 <= correct <= guesses):
        raise errors.ArgumentValueError(
            f"An audit needs 0 < guesses <= canaries and 0 <= correct <= guesses, not {canaries} canaries, {guesses} "
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


def audit_guesses(
    canaries: int,
    guesses: int,
    correct: int,
    delta: float,
    *,
    claimed: float | None = None,
    confidence: float = CONFIDENCE,
) -> Audit:
    """What so many right guesses prove. Raises errors.ArgumentValueError for impossible numbers."""
    bound = epsilon_lower_bound(canaries, guesses, correct, delta, confidence=confidence)
    cap = highest(canaries, guesses, delta, confidence=confidence)
    return Audit(canaries, guesses, correct, delta, confidence, bound, cap, claimed)


def highest(canaries: int, guesses: int, delta: float, *, confidence: float = CONFIDENCE) -> float:
    """The bound where every guess is right. Raises errors.ArgumentValueError for impossible numbers."""
    return epsilon_lower_bound(canaries, guesses, guesses, delta, confidence=confidence)


def guesses_for(canaries: int, delta: float, claimed: float | None, *, confidence: float = CONFIDENCE) -> int:
    """How many of the canaries to guess: a third, or as many more as it takes for a cap of a quarter more than the
    claim; all where that is out of reach.
    """
    least = min(canaries, max(2, math.ceil(canaries / 3)))
    wanted = 0.0 if claimed is None else CLEAR * claimed
    if highest(canaries, least, delta, confidence=confidence) > wanted:
        return least
    low, high = least, canaries
    while high - low > 1:
        middle = (low + high) // 2
        enough = highest(canaries, middle, delta, confidence=confidence) > wanted
        low, high = (low, middle) if enough else (middle, high)
    return high


def canaries_for(claimed: float | None, delta: float, *, confidence: float = CONFIDENCE) -> int:
    """How many canaries guessing needs for a claim: the first of 200, 400, … 12 800 whose coins, all guessed, have a
    cap of a quarter more than the claim; where none has, since canaries cost δ, the one whose cap is highest.
    """
    if claimed is None:
        return _COUNTS[0]
    caps = {count: highest(count, count, delta, confidence=confidence) for count in _COUNTS}
    return next((count for count in _COUNTS if caps[count] > CLEAR * claimed), max(_COUNTS, key=caps.__getitem__))


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

    scores: of each canary, higher the more the result looks as if it were in.
    included: the coins.
    guesses: how many of the canaries to guess (the others are abstained from); to be fixed before looking at scores:
        what `guesses_for` says when None.
    Raises errors.ArgumentValueError for scores that are no numbers, or for fewer than two canaries.
    """
    values, coins = np.asarray(scores, np.float64), np.asarray(included, np.bool_)
    if values.shape != coins.shape or values.ndim != 1 or len(values) < 2 or not np.isfinite(values).all():
        raise errors.ArgumentValueError(
            "An audit needs one finite score and one coin for each of two or more canaries."
        )
    count = guesses_for(len(values), delta, claimed, confidence=confidence) if guesses is None else guesses
    order = np.argsort(values, kind="stable")
    out, said_in = order[: count // 2], order[len(order) - (count - count // 2) :]
    correct = int((~coins[out]).sum() + coins[said_in].sum())
    return audit_guesses(len(values), count, correct, delta, claimed=claimed, confidence=confidence)


def _chance(epsilon: float, canaries: int, guesses: int, correct: int, delta: float) -> float:
    """The right side of the theorem."""
    tails = upper_tails(guesses, 1 / (1 + math.exp(-epsilon)))
    beta = float(tails[correct])
    if delta == 0 or correct == 0:
        return min(1.0, beta)
    # P[… ≥ v − i] for i = 1..v.
    gained = (tails[:correct][::-1] - beta) / np.arange(1, correct + 1)
    return min(1.0, beta + 2 * canaries * delta * float(gained.max()))
