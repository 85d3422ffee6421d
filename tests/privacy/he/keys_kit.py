"""Keys for tests, the same in every process and run: the small ones are broken in an hour."""

from functools import cache
from math import gcd

from coterie.privacy.he.arithmetic import fast
from coterie.privacy.he.keys import PaillierPrivateKey, key_of_primes
from coterie.privacy.he.primes import draw_prime
from coterie.randomness import seed_of, stream


@cache
def small_key(bits: int = 512) -> PaillierPrivateKey:
    """A key of this many bits."""
    seed, position = seed_of("a key of tests", str(bits)), 0

    def entropy(count: int) -> bytes:
        nonlocal position
        position += count
        return stream(seed, position - count, position)

    p = q = draw_prime(bits // 2, entropy, fast())
    while p == q or gcd(p - 1, q - 1) != 2:
        q = draw_prime(bits // 2, entropy, fast())
    return key_of_primes(p, q, entropy=entropy)
