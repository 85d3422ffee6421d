"""Small keys for tests: made in a millisecond, and broken in an hour."""

from functools import cache
from math import gcd
from os import urandom

from coterie.privacy.he.arithmetic import fast
from coterie.privacy.he.keys import PaillierPrivateKey, key_of_primes
from coterie.privacy.he.primes import draw_prime


@cache
def small_key(bits: int = 512) -> PaillierPrivateKey:
    """A key of this many bits, the same in a whole run."""
    p = q = draw_prime(bits // 2, urandom, fast())
    while p == q or gcd(p - 1, q - 1) != 2:
        q = draw_prime(bits // 2, urandom, fast())
    return key_of_primes(p, q)
