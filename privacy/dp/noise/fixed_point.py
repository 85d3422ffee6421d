"""e to a negative rational power as a whole number of units of 2**-bits, for tables that are built without floats."""

from fractions import Fraction

_GUARD = 64


def exp_minus(power: Fraction, bits: int) -> int:
    """⌊e**-power · 2**bits⌋, at most one unit too small or too large, for a power of zero or more.

    The power is halved until it is below one half, the series is summed and the result squared as often. Every step
    rounds by less than a unit of 2**-(bits + 64), and each squaring at most doubles what was lost before it.
    """
    if power > bits:
        return 0  # e**-bits < 2**-bits
    halvings = max(0, (2 * power.numerator // power.denominator).bit_length())
    unit = 1 << (bits + _GUARD)
    small = (power.numerator << (bits + _GUARD)) // (power.denominator << halvings)
    total, term, count = 0, unit, 0
    while term:
        total += -term if count % 2 else term
        count += 1
        term = term * small // (unit * count)
    for _ in range(halvings):
        total = total * total // unit
    return total >> _GUARD
