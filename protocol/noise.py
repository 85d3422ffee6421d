"""What every client adds to its vector before it is masked, as a signed task says it."""

from typing import Annotated

from pydantic import Field

from coterie.protocol.mechanisms import DistributedMechanism
from coterie.protocol.wire import FiniteNumber, Positive, Signed

Above = Annotated[FiniteNumber, Field(gt=0)]


class NoiseTerms(Signed):
    """Noise of whole numbers, of which the sum over `contributors` clients gives the guarantee.

    clip: the bound of the vector's Euclidean norm.
    scale: whole numbers per unit of the vector.
    variance: of one client's noise, in squared whole numbers.
    contributors: the fewest survivors that the guarantee counts on.
    """

    mechanism: DistributedMechanism
    clip: Above
    scale: Above
    variance: Above
    contributors: Positive
