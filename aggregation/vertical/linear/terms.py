"""What is asked of two parties that fit a linear model together: one value, the same for both."""

from dataclasses import dataclass
from math import isfinite
from typing import Final, Literal

from coterie.errors import ConfigurationError
from coterie.privacy.he.keys import KEY_BITS, SIZES
from coterie.protocol.canonical import digest_of
from coterie.protocol.conversion import from_json, to_json

LinkName = Literal["logistic", "linear", "poisson"]
MOST_EPOCHS: Final = 1000
LEAST_BATCH: Final = 64
ROWS_PER_COLUMN: Final = 10
"""Rows that a batch has for each column of either role, at least: of fewer, sums tell numbers of single rows."""


@dataclass(frozen=True, kw_only=True)
class LinearTerms:
    """A linear model to fit.

    label_owner: the role that has the labels, and perhaps columns.
    feature_owners: the one role that has columns alone.
    link: "logistic" for labels 0 and 1, "linear" for any number, "poisson" for counts.
    epochs: how often every row is taken.
    batch_rows: rows of a step; 0 takes all. A step of few rows tells more of each.
    learning_rate: the factor of a step; 1 is a Newton step in which each role knows its own columns' curvature alone.
    momentum: of the step before.
    l2: half the penalty on the square of each coefficient, of columns with mean 0 and deviation 1; the intercept has
        none.
    key_bits: of the key of each training.
    Raises ConfigurationError (``linear_invalid``).
    """

    label_owner: str
    feature_owners: tuple[str, ...]
    link: LinkName = "logistic"
    epochs: int = 8
    batch_rows: int = 0
    learning_rate: float = 1.0
    momentum: float = 0.5
    l2: float = 1e-3
    key_bits: int = KEY_BITS

    def __post_init__(self) -> None:
        rules = [
            (len(self.feature_owners) == 1, "feature_owners is one role: a linear model is of two parties"),
            (self.label_owner not in self.feature_owners, "the roles must differ"),
            (self.link in ("logistic", "linear", "poisson"), 'link must be "logistic", "linear" or "poisson"'),
            (1 <= self.epochs <= MOST_EPOCHS, f"epochs must be 1 to {MOST_EPOCHS}"),
            (
                self.batch_rows == 0 or self.batch_rows >= LEAST_BATCH,
                f"batch_rows must be 0 (all rows) or at least {LEAST_BATCH}",
            ),
            (0 < self.learning_rate <= 1, "learning_rate must be above 0 and at most 1"),
            (0 <= self.momentum < 1, "momentum must be from 0 to below 1"),
            (0 <= self.l2 and isfinite(self.l2), "l2 must not be negative"),
            (self.key_bits in SIZES, f"key_bits must be one of {', '.join(map(str, SIZES))}"),
        ]
        for good, why in rules:
            if not good:
                raise ConfigurationError(
                    f"In the terms of a linear model: {why}.",
                    hint="The docstring of LinearTerms says more.",
                    code="linear_invalid",
                )

    @property
    def parties(self) -> tuple[str, ...]:
        """Both roles, the label owner first."""
        return (self.label_owner, *self.feature_owners)

    @property
    def feature_owner(self) -> str:
        """The role that has columns alone."""
        return self.feature_owners[0]

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the canonical JSON."""
        return digest_of(to_json(self))

    @staticmethod
    def from_json(value: object) -> "LinearTerms":
        """The terms that these JSON values say. Raises ConfigurationError (``linear_invalid``)."""
        return from_json(LinearTerms, value, refusal=ConfigurationError, code="linear_invalid")
