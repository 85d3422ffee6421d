"""A privacy ledger as panels of curves: how ε grew, and what was allowed."""

import math
from collections.abc import Sequence

from coterie.aggregation.report.panels import Panel, Points, Series
from coterie.privacy.ledger.budget import TotalEpsilon, events_of
from coterie.privacy.ledger.events import EACH, YEAR, Bound
from coterie.privacy.ledger.state import Charge, CostState, State

_PLACES = 60
_DELTA = 1e-5
_SHOWN = 11


def budget_panels(state: State, accountant: TotalEpsilon) -> tuple[Panel, ...]:
    """One panel of all that was spent, by the order of payment, then one for each experiment by its rounds, the newest
    experiments last.

    ε is told at the δ of the limit that it is held against (1e-5 where there is none), at 60 places of a curve at most.
    Empty where nothing was spent.
    """
    spent = sorted(
        (charge for charge in state.charges.values() if charge.state is CostState.SPENT), key=lambda one: one.at
    )
    if not spent:
        return ()
    year = state.limits.get(YEAR)
    found = [_panel("ε of all experiments, by payments", spent, range(1, len(spent) + 1), year, accountant)]
    for name in [name for name in state.experiments if any(one.experiment == name for one in spent)][-_SHOWN:]:
        charges = [one for one in spent if one.experiment == name]
        bound = state.limits.get(name) or state.limits.get(EACH)
        found.append(_panel(f"ε of {name}, by rounds", charges, [one.round for one in charges], bound, accountant))
    return tuple(found)


def _panel(
    title: str, charges: Sequence[Charge], places: Sequence[int], bound: Bound | None, accountant: TotalEpsilon
) -> Panel:
    delta = bound.delta if bound else _DELTA
    points: list[tuple[int, float]] = []
    for count in _spread_numbers(len(charges)):
        epsilon = accountant(events_of(charges[:count]), delta)
        if math.isfinite(epsilon):
            points.append((places[count - 1], epsilon))
    series = [Series(f"spent, at δ {delta:g}", tuple(points))]
    if bound is not None:
        allowed: Points = ((places[0], bound.epsilon), (places[-1], bound.epsilon))
        series.append(Series("allowed", allowed, faint=True))
    return Panel(title, tuple(series), from_zero=True)


def _spread_numbers(count: int) -> list[int]:
    """At most `_PLACES` of 1 … count, the first and the last among them."""
    if count <= _PLACES:
        return list(range(1, count + 1))
    return sorted({1 + round(step * (count - 1) / (_PLACES - 1)) for step in range(_PLACES)})
