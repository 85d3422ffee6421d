"""Sums of many multiples of ciphertexts: products of many powers, with few multiplications for each.

`combine` shares the squarings of one product of powers (Straus, "Addition chains of vectors", 1964); `weigh` sorts the
ciphertexts of a long one by the digits of their exponents (Pippenger, "On the evaluation of powers and monomials",
SIAM Journal on Computing 9, 1980).
"""

from collections.abc import Sequence

from coterie.privacy.he.arithmetic import Arithmetic

_DIGIT = 6
_BASE = 1 << _DIGIT


def combine(ciphers: Sequence[int], weights: Sequence[int], square: int) -> int:
    """A ciphertext of Σ weights[k] numbers[k], to be blinded before it is sent.

    weights: from 0 on. square: n².
    """
    total: int | None = None
    for bit in reversed(range(max(weights, default=0).bit_length())):
        if total is not None:
            total = total * total % square
        for cipher, weight in zip(ciphers, weights, strict=True):
            if weight >> bit & 1:
                total = cipher if total is None else total * cipher % square
    return 1 if total is None else total


def weigh(ciphers: Sequence[int], factors: Sequence[int], square: int, arithmetic: Arithmetic) -> int:
    """A ciphertext of Σ factors[i] numbers[i], to be blinded before it is sent.

    factors: of either sign. square: n².
    """
    above = _powers([(c, f) for c, f in zip(ciphers, factors, strict=True) if f > 0], square)
    below = _powers([(c, -f) for c, f in zip(ciphers, factors, strict=True) if f < 0], square)
    return above if below == 1 else above * arithmetic.inverse(below, square) % square


def _powers(terms: Sequence[tuple[int, int]], square: int) -> int:
    """The product of powers with exponents from 1 on."""
    longest = max((factor for _, factor in terms), default=0).bit_length()
    total = 1
    for digit in reversed(range(-(-longest // _DIGIT))):
        for _ in range(_DIGIT if total != 1 else 0):
            total = total * total % square
        buckets: list[int | None] = [None] * _BASE
        for cipher, factor in terms:
            place = factor >> digit * _DIGIT & _BASE - 1
            if place:
                there = buckets[place]
                buckets[place] = cipher if there is None else there * cipher % square
        running: int | None = None
        for bucket in reversed(buckets[1:]):
            if bucket is not None:
                running = bucket if running is None else running * bucket % square
            if running is not None:
                total = total * running % square
    return total
