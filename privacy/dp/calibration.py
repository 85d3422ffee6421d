"""How much noise a promise needs: the least for a target (ε, δ), for every mechanism."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from coterie import errors
from coterie.privacy.dp import normal, renyi
from coterie.privacy.dp.accounting import Accountant, total_cost
from coterie.privacy.dp.events import Concentrated, PrivacyEvent

_CLOSE = 2e-4
"""How near to the least noise `calibrate` comes, as a share of it; always from above."""
_LEAST, _MOST = 1e-3, 1e6
_MOST_PRICES = 12


def analytic_gaussian(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """The least standard deviation with which a Gaussian makes ONE release of this L2 sensitivity (ε, δ)-private.

    Exact (Balle and Wang, ICML 2018, algorithm 1), for every ε above 0; no rounding below. Raises
    errors.ArgumentValueError for numbers out of range.
    """
    _check(epsilon, delta)
    return sensitivity / normal.mu_of(epsilon, delta)


def concentrated_rho(epsilon: float, delta: float) -> float:
    """The largest ρ for which ρ-zCDP (Rényi divergence ρ α at whole α ≥ 2) is (ε, δ)-private by this package's
    accountant: what distributed noise is calibrated to, over all rounds of a device.
    """
    _check(epsilon, delta)
    orders = renyi.orders_for([Concentrated(1.0, whole_orders=True)])
    low, high = 0.0, epsilon
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        fits = renyi.epsilon_of([middle * order for order in orders], orders, delta) <= epsilon
        low, high = (middle, high) if fits else (low, middle)
    return low


def calibrate(
    events: Callable[[float], Iterable[PrivacyEvent]], epsilon: float, delta: float, *, accountant: Accountant = "auto"
) -> float:
    """The least noise multiplier z for which ``total_cost(events(z), delta)`` is at most epsilon.

    The number that is returned is at most 0.02 % above it.
    events: what is released with a multiplier; its cost may not rise with z. Found by Rényi bounds, which take
        milliseconds, then refined by loss distributions where they are at hand: a few seconds for sampled events.
    Raises errors.ArgumentValueError for numbers out of range, or where no multiplier up to 10⁶ suffices.
    """
    _check(epsilon, delta)

    def by_renyi(multiplier: float) -> float:
        return total_cost(events(multiplier), delta, accountant="rdp").epsilon_rdp

    def best(multiplier: float) -> float:
        return total_cost(events(multiplier), delta, accountant=accountant).epsilon

    if by_renyi(_MOST) > epsilon:
        raise errors.ArgumentValueError(
            f"No noise multiplier up to {_MOST:g} makes this ({epsilon:g}, {delta:g})-private; allow a larger epsilon, "
            "fewer rounds or participations, or a smaller failure probability."
        )
    rough = _halved(by_renyi, epsilon)
    return rough if accountant == "rdp" or rough == _LEAST else _refined(best, epsilon, rough)


def _halved(price: Callable[[float], float], epsilon: float) -> float:
    """By halves of the logarithm: for prices that cost nothing to ask."""
    low, high = _LEAST, _MOST
    if price(low) <= epsilon:
        return low
    while high > low * (1 + _CLOSE):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if price(middle) <= epsilon else (middle, high)
    return high


def _refined(price: Callable[[float], float], epsilon: float, enough: float) -> float:
    """From a multiplier that is enough, by secants of log ε over log z: for prices that take a second each."""
    # Of one Gaussian, ε falls about as 1 / z.
    slope, tried, cost = 1.0, enough, price(enough)
    for _ in range(_MOST_PRICES):
        if cost <= epsilon:
            enough = min(enough, tried)
            if cost >= epsilon * (1 - _CLOSE):
                break
        # The middle of the window is aimed at, so that the last step ends on the side that keeps the promise.
        following = max(tried * math.exp((math.log(cost / epsilon) + 0.5 * _CLOSE) / slope), _LEAST)
        after = price(following)
        # Slopes of shorter steps would be those of the price's own rounding.
        if after > 0 and abs(math.log(following / tried)) > 10 * _CLOSE:
            slope = min(max(math.log(cost / after) / math.log(following / tried), 0.3), 10.0)
        tried, cost = following, after
    return min(enough, tried) if cost <= epsilon else enough


def _check(epsilon: float, delta: float) -> None:
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise errors.ArgumentValueError(
            f"A privacy guarantee needs an epsilon above 0 and a delta in (0, 1), not ({epsilon}, {delta})."
        )
