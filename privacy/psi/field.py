"""Numbers modulo 2**255 - 19, by gmpy2 where it is installed (the extra ``vertical``) and by Python alone where not.

What is hashed here is a party's own ids, on its own machine; nothing is promised about how long it takes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

PRIME: Final = (1 << 255) - 19


@dataclass(frozen=True)
class FieldArithmetic:
    """How numbers modulo `PRIME` are reckoned with.

    number: makes of a whole number one that is quick to reckon with.
    is_square: whether a number below `PRIME`, zero too, is a square.
    inverse: of a number below `PRIME` that is not zero.
    """

    name: str
    number: Callable[[int], Any]
    is_square: Callable[[Any], bool]
    inverse: Callable[[Any], Any]


def _jacobi(a: int, n: int) -> int:
    """The Jacobi symbol (a / n) of a number that is not negative and an odd one, by the law of reciprocity."""
    sign = 1
    while a:
        twos = (a & -a).bit_length() - 1
        a >>= twos
        if twos & 1 and n & 7 in (3, 5):
            sign = -sign
        if a & 3 == 3 and n & 3 == 3:
            sign = -sign
        a, n = n % a, a
    return sign if n == 1 else 0


def _with_python() -> FieldArithmetic:
    return FieldArithmetic(
        "python",
        number=int,
        is_square=lambda a: _jacobi(a, PRIME) >= 0,
        inverse=lambda a: pow(a, -1, PRIME),
    )


def _with_gmpy2() -> FieldArithmetic:
    gmpy2: Any = import_module("gmpy2")
    prime = gmpy2.mpz(PRIME)
    jacobi, invert = gmpy2.jacobi, gmpy2.invert
    return FieldArithmetic(
        "gmpy2",
        number=gmpy2.mpz,
        is_square=lambda a: jacobi(a, prime) >= 0,
        inverse=lambda a: invert(a, prime),
    )


ARITHMETICS: Final = (_with_gmpy2(), _with_python()) if find_spec("gmpy2") else (_with_python(),)
"""All that are here, the fastest first. They agree in every bit."""


def inverses(numbers: Sequence[Any], arithmetic: FieldArithmetic) -> list[Any]:
    """The inverse of each, with one inversion for all (Montgomery's trick). None of them may be zero."""
    if not numbers:
        return []
    product = arithmetic.number(1)
    before: list[Any] = []
    for each in numbers:
        before.append(product)
        product = product * each % PRIME
    inverse = arithmetic.inverse(product)
    found: list[Any] = []
    for each, earlier in zip(reversed(numbers), reversed(before), strict=True):
        found.append(inverse * earlier % PRIME)
        inverse = inverse * each % PRIME
    found.reverse()
    return found
