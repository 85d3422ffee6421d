"""How many tasks to offer when some of those who take one never answer."""

from functools import cache
from math import ceil, exp, lgamma, log, log1p, sqrt

from coterie.errors import InputError

CONFIDENCE = 0.99


def selection_for(goal: int, factor: float) -> int:
    """ceil(goal * factor), as it is in decimal: 11 for 10 * 1.1, which is 11.000000000000002 in binary."""
    return ceil(round(goal * factor, 6))


@cache
def smallest_selection(goal: int, dropout: float, confidence: float = CONFIDENCE) -> int:
    """The smallest n with P[Bin(n, 1 - dropout) >= goal] >= confidence.

    goal: answers wanted, at least 1.
    dropout: the chance that one task brings none, in [0, 1), independent of the others.
    confidence: in (0, 1). The tail is summed term by term, to float64's rounding; no normal approximation.
    Raises errors.InputError (``selection_invalid``).
    """
    if goal < 1 or not 0 <= dropout < 1 or not 0 < confidence < 1:
        raise InputError(
            f"No number of tasks reaches a goal of {goal}, a dropout of {dropout} and a confidence of {confidence}.",
            hint="Give a goal of at least 1, a dropout in [0, 1) and a confidence in (0, 1).",
            code="selection_invalid",
        )
    if dropout == 0:
        return goal
    low, high = goal, goal
    while _probability_too_few(high, goal, dropout) > 1 - confidence:
        low, high = high + 1, 2 * high
    while low < high:
        middle = (low + high) // 2
        if _probability_too_few(middle, goal, dropout) > 1 - confidence:
            low = middle + 1
        else:
            high = middle
    return high


def _probability_too_few(offered: int, goal: int, dropout: float) -> float:
    """P[Bin(offered, 1 - dropout) < goal].

    The terms fall away from the largest one; those below its 10^-18th part are left out, so a million tasks need some
    thousands of terms.
    """
    keep, lose = log1p(-dropout), log(dropout)
    mean = offered * (1 - dropout)
    width = ceil(10 * sqrt(mean * dropout) + 50)
    first = max(0, min(goal - 1, int(mean)) - width)
    term = _log_choose(offered, first) + first * keep + (offered - first) * lose
    total = 0.0
    for count in range(first, goal):
        total += exp(term)
        term += log((offered - count) / (count + 1)) + keep - lose
    return min(total, 1.0)


def _log_choose(whole: int, part: int) -> float:
    return lgamma(whole + 1) - lgamma(part + 1) - lgamma(whole - part + 1)
