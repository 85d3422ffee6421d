"""The exact price of Gaussian noise, in closed form: the privacy loss of a sum with noise of σ times its sensitivity is
itself normal, N(μ²/2, μ²) with μ = 1/σ, however many such sums are composed (μ² adds).

Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy" (ICML 2018), theorem 8. The textbook's
σ = √(2 ln(1.25/δ))/ε holds only below ε = 1, and is used nowhere here.
"""

import math

_SQRT2 = math.sqrt(2)
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)
# Where the series of the tail is exact to 1e-13 and erfc has not underflowed yet.
_FAR = 30.0


def log_upper_tail(x: float) -> float:
    """log P[N(0, 1) > x]."""
    if x < _FAR:
        return math.log(0.5 * math.erfc(x / _SQRT2)) if x > -_FAR else 0.0
    inverse = 1 / (x * x)
    series = 1 - inverse * (1 - 3 * inverse * (1 - 5 * inverse * (1 - 7 * inverse)))
    return -x * x / 2 - math.log(x) - _HALF_LOG_TAU + math.log(series)


def delta_of(mu: float, epsilon: float) -> float:
    """The smallest δ with which Gaussian noise of multiplier 1/mu is (epsilon, δ)-private."""
    if mu == 0:
        return 0.0
    first = log_upper_tail(epsilon / mu - mu / 2)
    second = epsilon + log_upper_tail(epsilon / mu + mu / 2)
    return math.exp(first) * -math.expm1(second - first) if second < first else 0.0


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest ε with which Gaussian noise of multiplier 1/mu is (ε, delta)-private; rounded up."""
    if mu == 0 or delta_of(mu, 0.0) <= delta:
        return 0.0
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if delta_of(mu, middle) <= delta else (middle, high)
    return high


def mu_of(epsilon: float, delta: float) -> float:
    """The largest μ whose Gaussian noise is (epsilon, delta)-private; rounded down. Both must be positive."""
    low, high = 0.0, 1.0
    while delta_of(high, epsilon) <= delta:
        low, high = high, 2 * high
    while high - low > 1e-14 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if delta_of(middle, epsilon) <= delta else (low, middle)
    return low
