"""What codecs that keep a fraction of the elements have in common: which fractions there are, and the codec's name."""

from dataclasses import dataclass
from typing import ClassVar

from coterie.protocol.codecs.codec import Memoryless


@dataclass(frozen=True)
class KeepsFraction(Memoryless):
    """A codec of the name ``family:fraction``.

    usual: the fraction that its name leaves out, if any.

    Raises ValueError for a fraction that is not above 0 and up to 1.
    """

    fraction: float

    family: ClassVar[str]
    usual: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"{self.family} takes a fraction above 0 and up to 1")

    @property
    def name(self) -> str:
        """The family and, unless it is the usual one, the fraction."""
        return self.family if self.fraction == self.usual else f"{self.family}:{self.fraction:g}"
