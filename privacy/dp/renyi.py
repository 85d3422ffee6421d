"""Rényi differential privacy in closed form: what every event costs at every order, and what that means as (ε, δ).

This is the accountant of installs without `dp-accounting`, and the bound that stands beside the loss distribution's
wherever that library is. Orders are whole where the closed form of a sampled mechanism needs it.

Sources: Mironov, "Rényi Differential Privacy" (2017); Mironov, Talwar and Zhang, "Rényi Differential Privacy of the
Sampled Gaussian Mechanism" (2019), section 3.3; Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential
Privacy" (2020), proposition 12, for the conversion.
"""

import math
from collections.abc import Sequence

import numpy as np

from coterie.privacy.dp.events import Approximate, Concentrated, Gaussian, PrivacyEvent, Pure, SampledGaussian
from coterie.privacy.dp.normal import log_upper_tail

ORDERS: tuple[float, ...] = (
    *(1 + step / 20 for step in range(1, 20)),
    *(2 + step / 10 for step in range(90)),
    *range(11, 64),
    *(64, 80, 96, 128, 192, 256, 512, 1024, 2048, 4096),
)  # fmt: skip

_MOST_TERMS = 1000
# e^-40 of the largest term: below what a double can add to the sum.
_NEGLIGIBLE = 40.0


def cost(event: PrivacyEvent, order: float) -> float:
    """The Rényi divergence of `order` > 1 that an event (all `count` of it) costs at the most; beside its delta."""
    match event:
        case Gaussian():
            single = order / (2 * event.multiplier**2)
        case SampledGaussian():
            single = _sampled(event.rate, event.multiplier, float(order))
        case Pure() | Approximate():
            single = _pure(event.epsilon, order)
        case Concentrated():
            single = event.rho * order + event.xi
    return event.count * single


def orders_for(events: Sequence[PrivacyEvent]) -> tuple[float, ...]:
    """The orders at which all of these events have a bound."""
    whole = any(isinstance(event, Concentrated) and event.whole_orders for event in events)
    return tuple(order for order in ORDERS if not whole or float(order).is_integer())


def epsilon_of(costs: Sequence[float], orders: Sequence[float], delta: float) -> float:
    """The smallest ε that follows from these costs at these orders, for a delta above 0."""
    return max(
        0.0,
        min(
            spent + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
            for spent, order in zip(costs, orders, strict=True)
        ),
    )


def _pure(epsilon: float, order: float) -> float:
    """Of randomised response, the worst of all mechanisms of pure epsilon."""
    # log(p^α q^(1−α) + q^α p^(1−α)) with p = e^ε q, q = 1 / (1 + e^ε).
    log_q = -epsilon - math.log1p(math.exp(-epsilon))
    return min(epsilon, (log_q + _log_add(order * epsilon, (1 - order) * epsilon)) / (order - 1))


def _sampled(rate: float, multiplier: float, order: float) -> float:
    if rate == 1:
        return order / (2 * multiplier**2)
    if order.is_integer():
        return max(0.0, _log_moment(rate, multiplier, int(order)) / (order - 1))
    found = _log_fractional_moment(rate, multiplier, order)
    if found is None:
        # (α − 1) · divergence is convex in α, and 0 at α = 1: between two whole orders the chord is an upper bound.
        below = math.floor(order)
        left = _log_moment(rate, multiplier, below) if below > 1 else 0.0
        found = left + (order - below) * (_log_moment(rate, multiplier, below + 1) - left)
    return max(0.0, found / (order - 1))


def _log_moment(rate: float, multiplier: float, order: int) -> float:
    """log of Σ_k C(α, k) (1 − q)^(α − k) q^k exp((k² − k) / 2σ²)."""
    k = np.arange(order + 1, dtype=np.float64)
    logs = np.concatenate([np.zeros(1), np.cumsum(np.log(k[1:]))])
    log_choose = logs[-1] - logs - logs[::-1]
    terms = log_choose + k * math.log(rate) + (order - k) * math.log1p(-rate) + (k * k - k) / (2 * multiplier**2)
    highest = float(terms.max())
    return highest + math.log(float(np.exp(terms - highest).sum()))


def _log_fractional_moment(rate: float, multiplier: float, order: float) -> float | None:
    """The same for an order between whole ones, by the two series of section 3.3; None where they converge slowly."""
    variance = multiplier**2
    crossing = variance * math.log(1 / rate - 1) + 0.5
    logs: list[float] = []
    signs: list[int] = []
    log_choose, sign, highest = 0.0, 1, -math.inf
    for i in range(_MOST_TERMS):
        j = order - i
        left = i * math.log(rate) + j * math.log1p(-rate) + (i * i - i) / (2 * variance)
        right = j * math.log(rate) + i * math.log1p(-rate) + (j * j - j) / (2 * variance)
        left += log_upper_tail((i - crossing) / multiplier)
        right += log_upper_tail((crossing - j) / multiplier)
        logs += (log_choose + left, log_choose + right)
        signs += (sign, sign)
        highest = max(highest, *logs[-2:])
        if i > order and max(logs[-2:]) < highest - _NEGLIGIBLE:
            return highest + math.log(math.fsum(s * math.exp(x - highest) for s, x in zip(signs, logs, strict=True)))
        log_choose += math.log(abs(j)) - math.log(i + 1)
        sign = sign if j > 0 else -sign
    return None


def _log_add(left: float, right: float) -> float:
    high, low = max(left, right), min(left, right)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
