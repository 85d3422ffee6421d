"""What a plan says of example-level privacy: how its steps clip, what noise its host draws, and how it draws rows.

All of it is public and signed by the researcher with the plan. No task can change it: none of these numbers is a
hyper-parameter.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from pydantic import Field

from coterie.errors import ArgumentValueError
from coterie.privacy.dp.poisson import rate_of
from coterie.protocol.conversion import UnlessNone
from coterie.protocol.privacy import MOST_ROUNDS

SLACK = 1e-3
"""By how much noise is larger than the multiplier says, as a share of it: for sums and norms of float32, which keep
bounds to rounding only.
"""
_SUM_BITS = 30
"""A sum is at most 2**30 steps of the grid, beyond which the graph cuts it off."""
_NOISE_BITS = 25
"""The deviation is at most 2**25 steps: no draw comes near 2**30."""
_Scale = Annotated[float, Field(ge=1e-9, le=1e9)]
_Rows = Annotated[int, Field(ge=1, le=1 << 31)]


@dataclass(frozen=True, kw_only=True)
class StepNoise:
    """Noise in whole multiples of ``grid``, a power of two.

    deviation: in units of the gradient, as the grid is.
    """

    grid: float
    deviation: float

    @property
    def variance(self) -> Fraction:
        """Of the whole numbers."""
        return Fraction(self.deviation / self.grid) ** 2


@dataclass(frozen=True, kw_only=True)
class PrivateSteps:
    """How the steps of a plan are clipped and noised, row by row.

    clip: the norm of one row's gradient.
    noise_multiplier: deviation of the noise on the sum of a batch over clip.
    expected: the number that the noised sum is divided by, and what a batch has on average at most.
    rows: of a device, as the experiment takes them to be.
    factors: by what each round's noise_multiplier is multiplied, from round 1 on; None for the same in all.
    """

    clip: _Scale
    noise_multiplier: _Scale
    expected: _Rows
    rows: _Rows
    factors: Annotated[tuple[_Scale, ...] | None, UnlessNone, Field(min_length=1, max_length=MOST_ROUNDS)] = None

    def multiplier(self, round: int) -> float:
        """The multiplier of a round, counted from 1. Raises errors.ArgumentValueError for one beyond the factors."""
        if self.factors is None:
            return self.noise_multiplier
        if not 1 <= round <= len(self.factors):
            raise ArgumentValueError(
                f"The plan's noise has factors for {len(self.factors)} rounds, and this is round {round}."
            )
        return self.noise_multiplier * self.factors[round - 1]

    def noise(self, *, batch: int, length: int, round: int | None = None) -> "StepNoise":
        """What the host draws for a step.

        batch: the most rows of one.
        length: how many numbers the gradient has.
        round: counted from 1; None for the one of the most noise. All rounds have one grid, which the graph knows.

        The sum of a batch is moved to the noise's grid before they are added, so two sums a row apart may be further
        apart than the clip (`coterie.privacy.dp.noise.gaussian.sensitivity`): the noise is made for that. Raises
        errors.ArgumentValueError for noise that whole numbers of 32 bits cannot hold.
        """
        multiplier = self.noise_multiplier * max(self.factors or (1.0,)) * (1 + SLACK)
        # The finest grid on which neither a sum nor its noise leaves its range.
        exponent = max(_exponent(self.clip * batch) - _SUM_BITS, _exponent(self.clip * multiplier) - _NOISE_BITS)
        for grid in (math.ldexp(1.0, exponent + more) for more in range(_NOISE_BITS)):
            deviation = multiplier * (self.clip + grid * math.sqrt(length))
            if deviation <= math.ldexp(grid, _NOISE_BITS):
                own = deviation if round is None else self.multiplier(round) * (1 + SLACK) * (deviation / multiplier)
                return StepNoise(grid=grid, deviation=own)
        raise ArgumentValueError(
            f"A noise multiplier of {self.noise_multiplier:g} is more than whole numbers of 32 bits hold for a "
            f"gradient of {length} numbers.",
            hint="Choose a smaller one: this much noise drowns whatever is learned.",
        )

    def rate(self, rows: int) -> float:
        """The probability with which a device that has so many rows draws each. At most that of `rows` rows."""
        return rate_of(self.expected, max(rows, self.rows))


def _exponent(value: float) -> int:
    """The least e with value ≤ 2**e."""
    mantissa, exponent = math.frexp(value)
    return exponent - 1 if mantissa == 0.5 else exponent
