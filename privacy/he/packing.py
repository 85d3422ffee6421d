"""Several whole numbers in one plaintext, each in a slot of its own, so that one addition adds all, and one ciphertext
brings back many sums ("cipher compression" of SecureBoost+, arXiv:2110.10927).

Slot i holds v_i as v_i 2**(i width), with |v_i| < 2**(width - 1). Numbers of either sign need no offset: a negative one
borrows from the slot above, and reading from the lowest slot up gives the borrow back.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.errors import ArgumentValueError
from coterie.privacy.he.keys import PaillierPublicKey
from coterie.privacy.he.paillier import Paillier


@dataclass(frozen=True)
class SlotPacking:
    """How numbers lie in a plaintext.

    width: bits of a slot, the sign among them.
    slots: numbers of one plaintext.
    """

    width: int
    slots: int

    def pack(self, numbers: Sequence[int]) -> int:
        """One plaintext of at most ``slots`` numbers, the first in the lowest slot.

        Raises ArgumentValueError (``plaintext_range``) for too many, or one that its slot cannot hold.
        """
        edge = 1 << self.width - 1
        if len(numbers) > self.slots or not all(-edge < number < edge for number in numbers):
            raise ArgumentValueError(
                f"{len(numbers)} numbers do not fit into {self.slots} slots of {self.width} bits.",
                hint="Take wider slots, or fewer numbers.",
                code="plaintext_range",
            )
        return sum(number << index * self.width for index, number in enumerate(numbers))

    def unpack(self, plain: int, count: int) -> list[int]:
        """The first ``count`` numbers of a plaintext, or of a sum of plaintexts none of whose slots left its range.

        Raises ArgumentValueError (``plaintext_range``) where more is in it.
        """
        modulus, edge = 1 << self.width, 1 << self.width - 1
        found: list[int] = []
        rest = plain
        for _ in range(count):
            number = (rest + edge) % modulus - edge
            found.append(number)
            rest = (rest - number) >> self.width
        if rest:
            raise ArgumentValueError(
                f"A plaintext holds more than {count} numbers in slots of {self.width} bits.",
                hint="Ask the partner which program it runs.",
                code="plaintext_range",
            )
        return found

    def join(self, paillier: Paillier, ciphers: Sequence[int], each: int) -> int:
        """One ciphertext of several, each of which holds ``each`` numbers; to be blinded before it is sent.

        The first ciphertext's numbers come lowest.
        """
        if len(ciphers) * each > self.slots:
            raise ArgumentValueError(
                f"{len(ciphers)} ciphertexts of {each} numbers do not fit into {self.slots} slots.",
                hint="Join fewer.",
                code="plaintext_range",
            )
        joined = paillier.zero()
        for cipher in reversed(ciphers):
            joined = paillier.add(paillier.scale(joined, 1 << each * self.width), cipher)
        return joined


def packing_for(key: PaillierPublicKey, largest: int) -> SlotPacking:
    """As many slots as a key holds for numbers, and sums of numbers, with absolute values of at most ``largest``.

    Raises ArgumentValueError (``plaintext_range``) where it holds none.
    """
    width = largest.bit_length() + 1
    slots = (key.bits - 2) // width
    if not slots:
        raise ArgumentValueError(
            f"Numbers of {width} bits do not fit into a key of {key.bits}.",
            hint="Take a larger key, or fewer bits for the fraction.",
            code="plaintext_range",
        )
    return SlotPacking(width, slots)
