"""What a distribution of noise over whole numbers must say of itself, so that devices can add shares of it."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
import numpy.typing as npt

from coterie.privacy.dp.events import Concentrated
from coterie.privacy.dp.noise.source import NoiseSource


class Draw(Protocol):
    """Independent draws of a variance."""

    def __call__(self, count: int, variance: Fraction, source: NoiseSource) -> npt.NDArray[np.int64]:
        """int64[count]. Raises errors.ArgumentValueError for a variance that the distribution cannot have."""
        ...


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """What a noised sum may tell of one client.

    square: the largest sum of squares of the client's whole numbers.
    dimension: how many these are.
    variance: of one share, in squared steps.
    contributors: how many shares are counted on.
    """

    square: int
    dimension: int
    variance: float
    contributors: int

    @property
    def signal(self) -> float:
        """The squared sensitivity over the variance of the noise that is counted on."""
        return self.square / (self.contributors * self.variance)


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """One mechanism of noise that devices share.

    how: what it is, as a statement of privacy says it.
    largest_variance: of one share, in squared steps.
    draw: shares.
    distance: a bound of the total variation distance of one draw of a variance from the exact distribution.
    cost: what a sum costs whose draws are exact.
    tilt: for numbers at `half` steps or beyond from a sum of sub-Gaussian variance `signal` and noise of variance
        `noise`, the exponent of Chernoff's bound: the chance is at most exp(-exponent) on either side.
    """

    how: str
    largest_variance: float
    draw: Draw
    distance: Callable[[Fraction], float]
    cost: Callable[[Exposure], Concentrated]
    tilt: Callable[[float, float, float], float]
