"""Powers of one base with many exponents, from a table of the base's powers (Brickell, Gordon, McCurley and Wilson,
EUROCRYPT '92): one multiplication for each byte of the exponent and no squaring.
"""

from coterie.privacy.he.arithmetic import Arithmetic


class FixedBase:
    """A table for one base and modulus: 256 powers for each byte of an exponent.

    size: bytes of an exponent.
    """

    def __init__(self, base: int, modulus: int, size: int, arithmetic: Arithmetic) -> None:
        self._modulus, self._size = arithmetic.number(modulus), size
        one = arithmetic.number(1)
        factor = arithmetic.number(base) % self._modulus
        self._rows: list[list[int]] = []
        for _ in range(size):
            row = [one]
            for _ in range(255):
                row.append(row[-1] * factor % self._modulus)
            self._rows.append(row)
            factor = row[-1] * factor % self._modulus

    def power(self, exponent: bytes) -> int:
        """The base to an exponent of just ``size`` bytes, little-endian."""
        modulus, result = self._modulus, 1
        for row, byte in zip(self._rows, exponent, strict=True):
            result = result * row[byte] % modulus
        return result
