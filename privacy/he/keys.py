"""Keys of Paillier's scheme in the form of Damgård, Jurik and Nielsen ("A generalization of Paillier's public-key
system with applications to electronic voting", International Journal of Information Security 9, 2010).

Two primes p, q, both 3 modulo 4 and with gcd(p - 1, q - 1) = 2. The public key is n = p q and h = (-x²)ⁿ mod n² of a
random x; a ciphertext is blinded by a power of h with a random exponent of half the bits of n.
"""

from dataclasses import dataclass, field
from math import gcd
from os import urandom

from coterie.errors import ArgumentValueError, InputError
from coterie.privacy.entropy import Entropy, draw
from coterie.privacy.he.arithmetic import Arithmetic, fast
from coterie.privacy.he.primes import draw_prime
from coterie.protocol.paillier_sizes import KEY_BITS, SIZES


@dataclass(frozen=True)
class PaillierPublicKey:
    """What whoever encrypts and adds needs.

    modulus: n.
    base: h, below n².
    """

    modulus: int
    base: int

    @property
    def bits(self) -> int:
        """Of n."""
        return self.modulus.bit_length()

    @property
    def square(self) -> int:
        """n², which ciphertexts are below."""
        return self.modulus * self.modulus

    @property
    def limit(self) -> int:
        """The largest absolute value of a number that is encrypted."""
        return (self.modulus - 1) // 2

    @property
    def width(self) -> int:
        """The bytes of a ciphertext."""
        return (2 * self.bits + 7) // 8


@dataclass(frozen=True)
class PaillierPrivateKey:
    """What the owner alone has. p, q: the primes."""

    public: PaillierPublicKey
    p: int = field(repr=False)
    q: int = field(repr=False)


def make_key(
    bits: int = KEY_BITS, *, entropy: Entropy = urandom, arithmetic: Arithmetic | None = None
) -> PaillierPrivateKey:
    """A fresh key.

    bits: of n, one of `SIZES`. 2048 is about 112 bits of security, for comparison with others' figures.
    arithmetic: gmpy2's when not given.
    Raises ArgumentValueError (``key_bits``), ConfigurationError (``extra_missing``).
    """
    if bits not in SIZES:
        raise ArgumentValueError(
            f"A key has {', '.join(map(str, SIZES))} bits, not {bits!r}.", hint=f"Take {KEY_BITS}.", code="key_bits"
        )
    library = arithmetic or fast()
    while True:
        p, q = (draw_prime(bits // 2, entropy, library) for _ in range(2))
        if p != q and gcd(p - 1, q - 1) == 2:
            return key_of_primes(p, q, entropy=entropy, arithmetic=library)


def key_of_primes(
    p: int, q: int, *, entropy: Entropy = urandom, arithmetic: Arithmetic | None = None
) -> PaillierPrivateKey:
    """The key of two primes that were drawn before, with a fresh h. Whether they are good primes is the caller's word.

    Raises ArgumentValueError (``key_bits``) for primes that are not 3 modulo 4, or share more than 2 in p - 1, q - 1.
    """
    if p == q or p % 4 != 3 or q % 4 != 3 or gcd(p - 1, q - 1) != 2:
        raise ArgumentValueError(
            "Two different primes are needed, both 3 modulo 4, with gcd(p - 1, q - 1) = 2.",
            hint="make_key draws them.",
            code="key_bits",
        )
    library = arithmetic or fast()
    n = p * q
    x = 0
    while gcd(x, n) != 1:
        x = int.from_bytes(draw(entropy, (n.bit_length() + 7) // 8 + 8), "little") % n
    base = int(library.power(-x * x % n, n, n * n))
    return PaillierPrivateKey(PaillierPublicKey(n, base), p, q)


def check_public_key(key: PaillierPublicKey, told: str, bits: int) -> None:
    """Refuse what is no key of this many bits. That n is a product of two good primes cannot be seen: an owner who
    makes a bad key gives away its own numbers.

    told: whose it is.
    Raises InputError (``public_key``).
    """
    n, h = key.modulus, key.base
    if n.bit_length() != bits or n % 4 != 1 or not 1 < h < n * n or gcd(h, n) != 1:
        raise InputError(
            f"{told} sent a public key that is none of {bits} bits.",
            hint="Ask the partner which program it runs.",
            code="public_key",
        )
