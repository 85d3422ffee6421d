"""What a plan says of example-level privacy: how its steps clip, what noise its host draws, and how it draws rows.

All of it is public and signed by the researcher with the plan. No task can change it: none of these numbers is a
hyper-parameter.
"""

from dataclasses import dataclass
from typing import Any

from coterie.aggregation.plan.reading import Fields
from coterie.privacy.dp.poisson import rate_of

SLACK = 1e-3
"""By how much noise is larger than the multiplier says, as a share of it: for sums and norms of float32, which keep
bounds to rounding only.
"""
_LEAST, _LARGEST = 1e-9, 1e9
_MOST_ROWS = 1 << 31


@dataclass(frozen=True, kw_only=True)
class PrivateSteps:
    """clip: the norm of one row's gradient. noise_multiplier: deviation of the noise on the sum of a batch over clip.
    expected: the number that the noised sum is divided by, and what a batch has on average at most. rows: of a device,
    as the experiment takes them to be.
    """

    clip: float
    noise_multiplier: float
    expected: int
    rows: int

    @property
    def deviation(self) -> float:
        """Of each number that the host draws for a step, in units of the gradient."""
        return self.clip * self.noise_multiplier * (1 + SLACK)

    def rate(self, rows: int) -> float:
        """The probability with which a device that has so many rows draws each. At most that of `rows` rows."""
        return rate_of(self.expected, max(rows, self.rows))

    def to_json(self) -> dict[str, Any]:
        """Every field by name, as JSON values."""
        return {
            "clip": self.clip,
            "noise_multiplier": self.noise_multiplier,
            "expected": self.expected,
            "rows": self.rows,
        }

    @staticmethod
    def read(value: object, place: str) -> "PrivateSteps":
        """The inverse of `to_json`. Raises errors.PlanRefused."""
        fields = Fields(value, place, ("clip", "noise_multiplier", "expected", "rows"))
        return PrivateSteps(
            clip=fields.number("clip", _LEAST, _LARGEST),
            noise_multiplier=fields.number("noise_multiplier", _LEAST, _LARGEST),
            expected=fields.integer("expected", 1, _MOST_ROWS),
            rows=fields.integer("rows", 1, _MOST_ROWS),
        )
