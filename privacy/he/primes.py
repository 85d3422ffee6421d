"""Random primes for keys."""

from itertools import compress
from typing import Final

from coterie.privacy.entropy import Entropy, draw
from coterie.privacy.he.arithmetic import Arithmetic

ROUNDS: Final = 40
"""Of Miller and Rabin's test: a composite passes with probability at most 4**-40."""
_SIEVE: Final = 2048


def _small_primes() -> list[int]:
    """Odd primes below `_SIEVE`."""
    keep = bytearray([1]) * _SIEVE
    for number in range(3, int(_SIEVE**0.5) + 1, 2):
        if keep[number]:
            keep[number * number :: 2 * number] = bytes(len(range(number * number, _SIEVE, 2 * number)))
    return list(compress(range(3, _SIEVE, 2), keep[3::2]))


_SMALL: Final = _small_primes()


def draw_prime(bits: int, entropy: Entropy, arithmetic: Arithmetic) -> int:
    """A random prime of just this many bits, a multiple of 8 and at least 16, that is 3 modulo 4 and has its two
    highest bits set, so that a product of two such has twice as many bits. Each candidate is drawn anew.
    """
    while True:
        candidate = int.from_bytes(draw(entropy, bits // 8), "little") | 3 | 3 << bits - 2
        if is_prime(candidate, entropy, arithmetic):
            return candidate


def is_prime(number: int, entropy: Entropy, arithmetic: Arithmetic) -> bool:
    """Whether an odd number above 2 is prime: trial division, then Miller and Rabin's test with random bases."""
    if number < _SIEVE:
        return number in _SMALL
    if any(number % small == 0 for small in _SMALL):
        return False
    even = number - 1
    twos = (even & -even).bit_length() - 1
    odd = even >> twos
    size = (number.bit_length() + 7) // 8 + 8
    for _ in range(ROUNDS):
        base = 2 + int.from_bytes(draw(entropy, size), "little") % (number - 3)
        value = arithmetic.power(base, odd, number)
        if value in (1, even):
            continue
        for _ in range(twos - 1):
            value = value * value % number
            if value == even:
                break
        else:
            return False
    return True
