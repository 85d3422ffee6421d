"""Paillier's scheme: encrypt, add, multiply by a known number, blind anew, decrypt ("Public-key cryptosystems based on
composite degree residuosity classes", EUROCRYPT '99; short exponents as `keys` says).

A number m with |m| ≤ (n - 1) / 2 is encrypted as (1 + m n) hʳ mod n² with a random r of half the bits of n. The product
of two ciphertexts holds the sum of their numbers modulo n: whoever adds must know that no sum leaves the range.

Guarantees: what is encrypted says nothing of the number to who has the public key alone (decisional composite
residuosity, and that short powers of h look like any). A ciphertext that was added or multiplied tells the owner of the
key *which* ciphertexts went into it unless it was blinded anew (`Paillier.blind`), as every result must be before it is
sent. Blinded by who has the public key, with an exponent of 64 bits more than n, it is within 2**-64 of one that
depends on the number alone, whatever its owner knows or can compute, where h and the ciphertexts are made as here.
"""

from collections.abc import Callable
from typing import Final, TypeAlias, final

from coterie.errors import ArgumentValueError
from coterie.privacy.entropy import Entropy, draw
from coterie.privacy.he.arithmetic import Arithmetic, fast
from coterie.privacy.he.fixed_base import WINDOW, FixedBase
from coterie.privacy.he.keys import PaillierPrivateKey, PaillierPublicKey

Masks: TypeAlias = Callable[[bytes], int]
"""A random exponent, little-endian, to that power of h modulo n²."""
_BYTE: Final = 8
_MARGIN: Final = 8
"""Bytes of an exponent beyond those of n, after which its power is as good as any."""


@final
class Paillier:
    """What can be done with a public key. `with_public` and `with_private` make one; the latter encrypts faster.

    Making one costs as much as a hundred encryptions, for the table.
    """

    def __init__(self, key: PaillierPublicKey, masks: Masks, arithmetic: Arithmetic, blinding: int) -> None:
        self.key, self.arithmetic = key, arithmetic
        self._masks, self._blinding = masks, blinding
        self.square = arithmetic.number(key.square)
        self._modulus = arithmetic.number(key.modulus)
        self._exponent = exponent_size(key)

    def encrypt(self, number: int, entropy: Entropy) -> int:
        """A fresh ciphertext. Raises ArgumentValueError (``plaintext_range``) for |number| above ``key.limit``."""
        check_plain(self.key, number)
        return (1 + number * self._modulus) * self._masks(draw(entropy, self._exponent)) % self.square

    def blind(self, cipher: int, entropy: Entropy) -> int:
        """A ciphertext of the same number that nobody can connect with the given one, not even the key's owner with
        the numbers that went into it.
        """
        return cipher * self._masks(draw(entropy, self._blinding)) % self.square

    def add(self, first: int, second: int) -> int:
        """A ciphertext of the sum, to be blinded before it is sent."""
        return first * second % self.square

    def shift(self, cipher: int, number: int) -> int:
        """A ciphertext of the number plus a known one, to be blinded before it is sent.

        Raises ArgumentValueError (``plaintext_range``).
        """
        check_plain(self.key, number)
        return cipher * (1 + number * self._modulus) % self.square

    def scale(self, cipher: int, factor: int) -> int:
        """A ciphertext of the number times ``factor``, of either sign, to be blinded before it is sent."""
        if factor < 0:
            return self.arithmetic.power(self.arithmetic.inverse(cipher, self.square), -factor, self.square)
        return self.arithmetic.power(cipher, factor, self.square)

    def zero(self) -> int:
        """The ciphertext 1 of 0, open to everybody: where a sum begins."""
        return self.arithmetic.number(1)


@final
class Decryption:
    """What the owner of a key can do beside: decrypt, modulo p² and q² apart (Paillier 1999, section 7)."""

    def __init__(self, key: PaillierPrivateKey, arithmetic: Arithmetic | None = None) -> None:
        self._arithmetic = arithmetic or fast()
        number, inverse = self._arithmetic.number, self._arithmetic.inverse
        self._limit, self._modulus = key.public.limit, number(key.public.modulus)
        self._p, self._q = number(key.p), number(key.q)
        self._p_square, self._q_square = self._p * self._p, self._q * self._q
        # (1 + n)**(p - 1) = 1 + (p - 1) n modulo p², of which the logarithm is (p - 1) q modulo p.
        self._p_factor = inverse((self._p - 1) * self._q % self._p, self._p)
        self._q_factor = inverse((self._q - 1) * self._p % self._q, self._q)
        self._p_inverse = inverse(self._p, self._q)

    def decrypt(self, cipher: int) -> int:
        """The number, between -(n - 1) / 2 and (n - 1) / 2."""
        power = self._arithmetic.power
        by_p = (power(cipher % self._p_square, self._p - 1, self._p_square) - 1) // self._p * self._p_factor % self._p
        by_q = (power(cipher % self._q_square, self._q - 1, self._q_square) - 1) // self._q * self._q_factor % self._q
        number = int(by_p + (by_q - by_p) * self._p_inverse % self._q * self._p)
        return number if number <= self._limit else number - int(self._modulus)


def with_public(key: PaillierPublicKey, arithmetic: Arithmetic | None = None, *, window: int = WINDOW) -> Paillier:
    """For everybody.

    arithmetic: gmpy2's when not given. window: of the table, see `fixed_base`; wider for who encrypts thousands.
    Raises ConfigurationError (``extra_missing``).
    """
    library = arithmetic or fast()
    blinding = 2 * exponent_size(key) + _MARGIN
    table = FixedBase(key.base, key.square, blinding, library, window)
    return Paillier(key, table.power, library, blinding)


def with_private(key: PaillierPrivateKey, arithmetic: Arithmetic | None = None, *, window: int = WINDOW) -> Paillier:
    """For the owner, whose masks are made modulo p² and q² apart: the same ciphertexts of the same entropy.

    Arguments as of `with_public`.
    """
    library = arithmetic or fast()
    p_square, q_square = library.number(key.p * key.p), library.number(key.q * key.q)
    inverse = library.inverse(p_square, q_square)
    size = exponent_size(key.public)
    by_p, by_q = (FixedBase(key.public.base, modulus, size, library, window) for modulus in (p_square, q_square))

    def masks(exponent: bytes) -> int:
        first = by_p.power(exponent)
        return first + (by_q.power(exponent) - first) * inverse % q_square * p_square

    # The owner blinds against others, who lack the primes.
    return Paillier(key.public, masks, library, size)


def exponent_size(key: PaillierPublicKey) -> int:
    """The bytes of a random exponent: half as many bits as n has."""
    return -(-key.bits // (2 * _BYTE))


def check_plain(key: PaillierPublicKey, number: int) -> None:
    """Raise ArgumentValueError (``plaintext_range``) for a number that the key cannot hold."""
    if not -key.limit <= number <= key.limit:
        raise ArgumentValueError(
            f"A number of {number.bit_length()} bits does not fit into a key of {key.bits}.",
            hint="Encode fewer numbers into one plaintext, or with fewer bits.",
            code="plaintext_range",
        )
