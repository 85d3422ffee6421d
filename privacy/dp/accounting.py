"""What events cost together: `total_cost(events, delta)`.

    total_cost((Gaussian(1.1, count=1000), Gaussian(10.0, count=1000)), delta=1e-5).epsilon

Three accountants, of which the least valid ε counts:

- exact: Gaussian sums alone have a normal privacy loss, and their ε is known in closed form (`normal`);
- the composition of privacy loss distributions by `dp-accounting` (`loss_distribution`), where that is installed and
  every event's distribution is known;
- Rényi divergences in closed form (`renyi`), always: the only one for distributed noise.

No amplification by sampling is claimed but where an event is itself a `SampledGaussian`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

from coterie import errors
from coterie.privacy.dp import loss_distribution, normal, renyi
from coterie.privacy.dp.events import Approximate, Concentrated, Gaussian, PrivacyEvent, Pure, SampledGaussian, merged
from coterie.protocol.conversion import FiniteOrNull

Relation: TypeAlias = Literal["add_or_remove", "replace_one"]
"""Which data sets are neighbours: one has a unit that the other lacks, or has another unit in its place."""
Accountant: TypeAlias = Literal["auto", "pld", "rdp"]
_WORTH_REFINING = 100.0
"""Above this epsilon nothing is hidden, and loss distributions as wide as that take minutes and gigabytes."""
Method: TypeAlias = Literal["nothing", "exact", "pld", "rdp"]


@dataclass(frozen=True)
class PrivacyCost:
    """(epsilon, delta) of what was released. Infinite where the events' own failures exceed delta.

    epsilon_pld: from the privacy loss distribution (exact where method is ``exact``), None where it is not known or
        dp-accounting is not installed.
    epsilon_rdp: from Rényi divergences.
    method: what `epsilon` comes from.
    """

    epsilon: FiniteOrNull
    delta: float
    epsilon_pld: FiniteOrNull | None
    epsilon_rdp: FiniteOrNull
    relation: Relation
    method: Method


def total_cost(
    events: Iterable[PrivacyEvent],
    delta: float,
    *,
    relation: Relation = "add_or_remove",
    accountant: Accountant = "auto",
) -> PrivacyCost:
    """The cost of these events together. Cached; at most a second where a sampled event is new, else microseconds.

    accountant: ``auto`` takes the best at hand; ``pld`` insists on the loss distribution; ``rdp`` uses Rényi bounds
        alone.
    Raises errors.ArgumentValueError for a delta that is not in (0, 1), and errors.ConfigurationError
    (``extra_missing``) for ``pld`` without dp-accounting.
    """
    if not 0 < delta < 1:
        raise errors.ArgumentValueError(f"delta must be above 0 and below 1, not {delta}.")
    return _spent(merged(events), float(delta), relation, accountant)


@lru_cache(maxsize=4096)
def _spent(events: tuple[PrivacyEvent, ...], delta: float, relation: Relation, accountant: Accountant) -> PrivacyCost:
    if not events:
        return PrivacyCost(0.0, delta, 0.0, 0.0, relation, "nothing")
    if relation == "replace_one":
        doubled = _replaced(events)
        if doubled is None:
            return _as_a_pair(events, delta)
        events = doubled
    left = delta - sum(e.count * e.delta for e in events if isinstance(e, Approximate | Concentrated))
    if left <= 0:
        return PrivacyCost(math.inf, delta, None, math.inf, relation, "rdp")
    by_renyi = _by_renyi(events, left)
    if accountant == "rdp":
        return PrivacyCost(by_renyi, delta, None, by_renyi, relation, "rdp")
    normal_only = all(isinstance(event, Gaussian) or _only_fails(event) for event in events)
    if normal_only:
        mu = math.sqrt(sum(event.count / event.multiplier**2 for event in events if isinstance(event, Gaussian)))
        exact = normal.epsilon_of(mu, left)
        return PrivacyCost(exact, delta, exact, by_renyi, relation, "exact")
    known = not any(isinstance(event, Concentrated) for event in events) and by_renyi <= _WORTH_REFINING
    if accountant == "pld" or (known and loss_distribution.available()):
        by_loss = loss_distribution.epsilon_of([event for event in events if not _only_fails(event)], left)
        best, method = min((by_loss, "pld"), (by_renyi, "rdp"))
        return PrivacyCost(best, delta, by_loss, by_renyi, relation, "pld" if method == "pld" else "rdp")
    return PrivacyCost(by_renyi, delta, None, by_renyi, relation, "rdp")


def _only_fails(event: PrivacyEvent) -> bool:
    """Whether it costs its delta and nothing else."""
    match event:
        case Approximate():
            return event.epsilon == 0
        case Concentrated():
            return event.rho == 0 and event.xi == 0
        case _:
            return False


def _by_renyi(events: tuple[PrivacyEvent, ...], delta: float) -> float:
    orders = renyi.orders_for(events)
    best = renyi.epsilon_of([sum(renyi.cost(event, order) for event in events) for order in orders], orders, delta)
    # Pure epsilons add up, which is better than Rényi's bound where they are few or large.
    if all(isinstance(event, Pure | Approximate) for event in events):
        best = min(best, sum(event.count * event.epsilon for event in events if isinstance(event, Pure | Approximate)))
    return best


def _replaced(events: tuple[PrivacyEvent, ...]) -> tuple[PrivacyEvent, ...] | None:
    """The same releases, priced for replacing a unit; None where an event has no such price of its own."""
    found: list[PrivacyEvent] = []
    for event in events:
        match event:
            case Gaussian():
                found.append(Gaussian(event.multiplier / 2, event.count))
            case Concentrated(whole_orders=False):
                # Bun and Steinke 2016, proposition 27, for a group of two.
                found.append(Concentrated(4 * event.rho, 3 * event.xi, event.delta, False, event.count))
            case Pure() | Approximate():
                found.append(event)
            case SampledGaussian() | Concentrated():
                return None
    return tuple(found)


def _as_a_pair(events: tuple[PrivacyEvent, ...], delta: float) -> PrivacyCost:
    """Replacing is removing and adding: (ε, δ') twice is (2 ε, (1 + e^ε) δ'), for the largest δ' that fits delta."""
    low, high = math.log(1e-300), math.log(delta / 2)
    best = math.inf
    for _ in range(24):
        middle = (low + high) / 2
        found = _spent(events, math.exp(middle), "add_or_remove", "rdp").epsilon_rdp
        if found == math.inf:
            low = middle
        elif found + middle + math.log1p(math.exp(-found)) <= math.log(delta):
            best, low = min(best, 2 * found), middle
        else:
            high = middle
    return PrivacyCost(best, delta, None, best, "replace_one", "rdp")
