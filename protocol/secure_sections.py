"""A section of an update as numbers of a ring, which secure aggregation adds modulo a power of two.

A task of secure aggregation lists these in order; together they are the vector that a device masks. What they mean to
a device, and how it makes them, says `coterie.privacy.secagg.encoding`.
"""

from typing import Annotated, Literal

from pydantic import Field

from coterie.protocol.wire import FiniteNumber, Identifier, NotNegative, Positive, Signed

RingEncoding = Literal["exact", "grid", "fixed", "noised"]

COUNTS = "counts"
"""The name of the first section, which is no section of the plan."""
COUNTED = ("clients", "weight", "examples", "clipped", "held")
"""What it holds of one client: 1; its weight; the examples that its metric sums run over; 1 if its vector was longer
than the public norm and was shortened; 1 if one of its sums was held to the public range."""


class SecureSection(Signed):
    """One section in the ring.

    values: ring numbers.
    bits: the ring is 2**bits.
    top: the largest number of one client, for each unit of its weight where the section is a weighted mean.
    norm: of ``grid`` and ``noised``, the public bound of the vector's Euclidean norm.
    low, step: of ``fixed``, a number c stands for ``low + step * c``.
    """

    name: Identifier
    encoding: RingEncoding
    values: Positive
    bits: Annotated[int, Field(strict=True, ge=1, le=32)]
    top: Positive
    norm: NotNegative | None = None
    low: FiniteNumber | None = None
    step: NotNegative | None = None
