"""Powers of one base with many exponents, from a table of the base's powers (Brickell, Gordon, McCurley and Wilson,
EUROCRYPT '92): one multiplication for each few bits of the exponent, and no squaring.
"""

from typing import Final

from coterie.privacy.he.arithmetic import Arithmetic

WINDOW: Final = 8
"""Bits of the exponent to a multiplication where nothing else is asked. One more takes a ninth less time, and twice the
memory and twice the time for the table: 2**WINDOW numbers of the modulus for each window."""
_WIDEST: Final = 10


class FixedBase:
    """A table for one base and modulus.

    size: bytes of an exponent.
    window: bits of an exponent that one multiplication takes.
    """

    def __init__(self, base: int, modulus: int, size: int, arithmetic: Arithmetic, window: int = WINDOW) -> None:
        self._modulus, self._window = arithmetic.number(modulus), window
        one = arithmetic.number(1)
        factor = arithmetic.number(base) % self._modulus
        self._rows: list[list[int]] = []
        for _ in range(-(-8 * size // window)):
            row = [one]
            for _ in range((1 << window) - 1):
                row.append(row[-1] * factor % self._modulus)
            self._rows.append(row)
            factor = row[-1] * factor % self._modulus

    def power(self, exponent: bytes) -> int:
        """The base to an exponent of at most ``size`` bytes, little-endian."""
        modulus, window, result = self._modulus, self._window, 1
        mask, rest = (1 << window) - 1, int.from_bytes(exponent, "little")
        for row in self._rows:
            if not rest:
                break
            result = result * row[rest & mask] % modulus
            rest >>= window
        return result


def window_for(count: int) -> int:
    """The window that takes the least time for a table and ``count`` powers after it."""
    return min(range(4, _WIDEST + 1), key=lambda window: ((1 << window) + count) / window)
