"""How many updates a rule that reads eigenvalues can take."""

from collections.abc import Callable


def largest_count(work: Callable[[int], float], most: float, fewest: int) -> int | None:
    """The greatest number of updates whose work is within ``most``; None when any number is.

    work: grows with the number.
    fewest: the least number that is of use.
    """
    low, high = fewest, fewest
    while work(high) <= most:
        low, high = high, 2 * high
        if high > 1 << 20:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if work(middle) <= most else (low, middle)
    return low
