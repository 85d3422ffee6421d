"""Noise that falls as training settles: one factor per round, for ``schedule=`` of ``UserLevel`` and ``ExampleLevel``.

The rules are those that users of MindArmour know (``Time``, ``Step`` and ``Exp`` of its adaptive noise); the cost of
all factors is summed exactly (`rounds.whole_cost`), and with ``epsilon`` the first round's noise follows from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from coterie import errors

LEAST = 1e-3
"""A factor below this is refused."""


def time_decay(rounds: int, rate: float) -> tuple[float, ...]:
    """1 / (1 + rate · t) for t = 0, 1, …"""
    _check(rounds, rate)
    return _noisy(1 / (1 + rate * t) for t in range(rounds))


def exponential_decay(rounds: int, rate: float) -> tuple[float, ...]:
    """exp(−rate · t)."""
    _check(rounds, rate)
    return _noisy(math.exp(-rate * t) for t in range(rounds))


def step_decay(rounds: int, rate: float, every: int = 1) -> tuple[float, ...]:
    """(1 − rate) to the power of t // every: less noise after every so many rounds. rate below 1."""
    _check(rounds, rate)
    if rate >= 1 or every < 1:
        raise errors.ExperimentError(
            f"step_decay needs a rate below 1 and every >= 1, not {rate} and {every}.", code="privacy_invalid"
        )
    return _noisy((1 - rate) ** (t // every) for t in range(rounds))


def _check(rounds: int, rate: float) -> None:
    if rounds < 1 or not (math.isfinite(rate) and rate >= 0):
        raise errors.ExperimentError(
            f"A schedule needs at least one round and a rate of at least 0, not {rounds} and {rate}.",
            code="privacy_invalid",
        )


def _noisy(factors: Iterable[float]) -> tuple[float, ...]:
    found = tuple(factors)
    if min(found) < LEAST:
        raise errors.ExperimentError(
            f"This schedule ends at {min(found):.1e} of the first round's noise, less than {LEAST:g}: the last rounds "
            "would cost all of the budget. Lower its rate.",
            code="privacy_invalid",
        )
    return found
