"""What is asked of two parties that fit a linear model together: one value, the same for both."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from coterie.errors import ConfigurationError
from coterie.privacy.he.keys import KEY_BITS
from coterie.protocol.canonical import digest_of
from coterie.protocol.conversion import from_json, to_json
from coterie.protocol.session_job import LinearMethod, LinkName, linear_fault

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
        fault = linear_fault(self)
        if len(self.feature_owners) != 1:
            fault = "feature_owners is one role: a linear model is of two parties"
        elif self.label_owner in self.feature_owners:
            fault = "the roles must differ"
        if fault is not None:
            raise ConfigurationError(
                f"In the terms of a linear model: {fault}.",
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

    @staticmethod
    def of(method: LinearMethod, label_owner: str, roles: Sequence[str]) -> "LinearTerms":
        """The terms of a session's job.

        roles: of the session; the one that is not the label owner's is the feature owner.
        """
        options = {name: getattr(method, name) for name in LinearMethod.model_fields if name != "method"}
        owners = tuple(role for role in roles if role != label_owner)
        return LinearTerms(label_owner=label_owner, feature_owners=owners, **options)
