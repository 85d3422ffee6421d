"""Whole numbers of thousands of bits, by one of two libraries behind one seam.

`fast` is gmpy2 (GMP), which the extra `vertical` installs; `PURE` is Python's own integers, for tests and for machines
without GMP that can wait: about ten times slower. Neither works in constant time: who can measure the time of single
operations on the machine of a key's owner may learn about the key.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final

from coterie.errors import ConfigurationError


@dataclass(frozen=True)
class Arithmetic:
    """How whole numbers are computed with.

    number: an int as the library's own number, which takes the operators of int.
    power: base, exponent ≥ 0 and modulus to base**exponent mod modulus.
    inverse: a number and a modulus without a common divisor to the number's inverse.
    """

    name: str
    number: Callable[[int], int]
    power: Callable[[int, int, int], int]
    inverse: Callable[[int, int], int]


def _inverse(number: int, modulus: int) -> int:
    return pow(number, -1, modulus)


PURE: Final = Arithmetic("pure", int, pow, _inverse)


@cache
def fast() -> Arithmetic:
    """gmpy2's arithmetic. Raises ConfigurationError (``extra_missing``) without gmpy2."""
    try:
        # It has no types.
        gmpy2: Any = import_module("gmpy2")
    except ImportError as error:
        raise ConfigurationError(
            "Homomorphic encryption needs gmpy2, which the base install does not include.",
            hint='Run: pip install "coterie[vertical]"',
            code="extra_missing",
        ) from error
    return Arithmetic("gmpy2", gmpy2.mpz, gmpy2.powmod, gmpy2.invert)
