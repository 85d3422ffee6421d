"""Membership inference on a finished model: how well losses tell rows that it was trained on from rows that it was not
(Yeom et al., CSF 2018; reported as in Carlini et al., "Membership Inference Attacks From First Principles", S&P 2022).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coterie import errors
from coterie.privacy.audit.binomial import least_chance, most_chance
from coterie.privacy.audit.verdict import Verdict, verdict_of


@dataclass(frozen=True)
class MembershipInference:
    """How well scores tell the rows that a model was trained on, its members, from rows that it was not.

    members, outsiders: how many rows there are of each kind.
    auc: the chance that a member's score is above an outsider's; 0.5 is blind.
    true_positive_rate: the share of members that are recognised where 1 % of outsiders are taken for members.
    delta: of the claim.
    epsilon: what these errors prove with 95 % confidence: a lower bound of ε at `delta`, from a threshold fixed on one
        half of the rows and tried on the other.
    cap: the highest ε that this many rows could have proven.
    """

    members: int
    outsiders: int
    auc: float
    true_positive_rate: float
    delta: float
    epsilon: float
    cap: float

    def verdict(self, claimed: float | None) -> Verdict | None:
        """What it says of a claim about a row; None where nothing is claimed."""
        return verdict_of(self.epsilon, self.cap, claimed)


def membership(members: Sequence[float], outsiders: Sequence[float], *, delta: float = 1e-5) -> MembershipInference:
    """Judge scores, higher the more a row looks like a member (the negative loss).

    Raises errors.ArgumentValueError for fewer than four rows of a kind, or scores that are no numbers.
    """
    inside, outside = np.asarray(members, np.float64), np.asarray(outsiders, np.float64)
    if min(inside.size, outside.size) < 4 or not (np.isfinite(inside).all() and np.isfinite(outside).all()):
        raise errors.ArgumentValueError("Membership inference needs finite scores of at least four rows of each kind.")
    threshold = float(np.quantile(outside, 0.99))
    return MembershipInference(
        members=inside.size,
        outsiders=outside.size,
        auc=auc(members, outsiders),
        true_positive_rate=float((inside > threshold).mean()),
        delta=delta,
        epsilon=_proven_epsilon(inside, outside, delta),
        cap=_bound(len(inside[1::2]), len(inside[1::2]), 0, len(outside[1::2]), delta),
    )


def auc(members: Sequence[float], outsiders: Sequence[float]) -> float:
    """P[member > outsider] + ½ P[equal]: the area under the receiver's curve."""
    inside, outside = np.sort(np.asarray(members, np.float64)), np.sort(np.asarray(outsiders, np.float64))
    below = np.searchsorted(outside, inside, side="left")
    up_to = np.searchsorted(outside, inside, side="right")
    return float((below + up_to).sum() / (2 * inside.size * outside.size))


def _proven_epsilon(inside: np.ndarray, outside: np.ndarray, delta: float) -> float:
    """log of (true positives − δ) / false positives, both bounded by Clopper and Pearson at 97.5 %."""
    best, threshold = -math.inf, 0.0
    # Every other row chooses the threshold, the rest tries it.
    for candidate in np.quantile(np.concatenate([inside[::2], outside[::2]]), np.linspace(0.02, 0.98, 49)).tolist():
        caught, mistaken = (inside[::2] > candidate).mean(), (outside[::2] > candidate).mean()
        gain = math.log((caught + 1e-3) / (mistaken + 1e-2))
        if gain > best:
            best, threshold = gain, candidate
    caught, mistaken = inside[1::2] > threshold, outside[1::2] > threshold
    return _bound(int(caught.sum()), caught.size, int(mistaken.sum()), mistaken.size, delta)


def _bound(caught: int, inside: int, mistaken: int, outside: int, delta: float) -> float:
    least, most = least_chance(caught, inside, 0.025), most_chance(mistaken, outside, 0.025)
    return max(0.0, math.log((least - delta) / most)) if least > delta else 0.0
