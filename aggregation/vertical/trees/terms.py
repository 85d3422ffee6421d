"""What is asked of parties that grow trees together: one value, the same for all of them."""

from dataclasses import dataclass
from math import isfinite
from typing import Final, Literal

from coterie.errors import ConfigurationError
from coterie.privacy.he.keys import KEY_BITS, SIZES
from coterie.protocol.canonical import digest_of
from coterie.protocol.conversion import from_json, to_json

LossName = Literal["logistic", "squared"]
FRACTION_BITS: Final = 32
"""A row's gradient and hessian are whole numbers of at most 2**32, the largest of a tree close to that."""
MOST_TREES: Final = 10_000
MOST_DEPTH: Final = 12
MOST_BINS: Final = 1024
MOST_OWNERS: Final = 16


@dataclass(frozen=True, kw_only=True)
class TreeTerms:
    """A forest to grow.

    label_owner: the role that has the labels, and perhaps columns.
    feature_owners: the roles that have columns alone.
    trees: how many, at most.
    depth: of each; a tree has at most 2**depth leaves.
    learning_rate: the factor of each tree's leaves.
    bins: of a column, at most; one more for rows that lack it.
    l2: added to the hessian below each leaf's value and each split's gain (λ of XGBoost).
    min_gain: what a split must gain, twice XGBoost's γ.
    min_child_weight: the least hessian on either side of a split.
    loss: "logistic" for labels 0 and 1, "squared" for any number.
    top_share, other_share: GOSS (Ke et al., LightGBM, NeurIPS 2017). Of all rows the share with the largest gradients,
        and a random share of all from among the rest, which count for all of the rest. 1 and 0 take every row.
    trees_alone: how many trees, from the first on, are grown on the label owner's columns alone, so that the others do
        not see which rows the plain labels put together (1 is "complete secure" of Cheng et al.).
    patience: trees without a better loss on the rows held out, after which growing stops; 0 never stops.
    key_bits: of the key of each training.
    Raises ConfigurationError (``trees_invalid``).
    """

    label_owner: str
    feature_owners: tuple[str, ...]
    trees: int = 50
    depth: int = 3
    learning_rate: float = 0.3
    bins: int = 32
    l2: float = 1.0
    min_gain: float = 0.0
    min_child_weight: float = 1.0
    loss: LossName = "logistic"
    top_share: float = 1.0
    other_share: float = 0.0
    trees_alone: int = 0
    patience: int = 0
    key_bits: int = KEY_BITS

    def __post_init__(self) -> None:
        top, other = self.top_share, self.other_share
        rules = [
            (0 < len(self.feature_owners) <= MOST_OWNERS, f"feature_owners are 1 to {MOST_OWNERS} roles"),
            (len({self.label_owner, *self.feature_owners}) == 1 + len(self.feature_owners), "the roles must differ"),
            (1 <= self.trees <= MOST_TREES, f"trees must be 1 to {MOST_TREES}"),
            (1 <= self.depth <= MOST_DEPTH, f"depth must be 1 to {MOST_DEPTH}"),
            (2 <= self.bins <= MOST_BINS, f"bins must be 2 to {MOST_BINS}"),
            (0 < self.learning_rate <= 1, "learning_rate must be above 0 and at most 1"),
            (0 <= self.l2 and isfinite(self.l2), "l2 must not be negative"),
            (0 <= self.min_gain and isfinite(self.min_gain), "min_gain must not be negative"),
            (0 <= self.min_child_weight and isfinite(self.min_child_weight), "min_child_weight must not be negative"),
            (self.loss in ("logistic", "squared"), 'loss must be "logistic" or "squared"'),
            (0 <= self.trees_alone < self.trees, "trees_alone must leave a tree for all parties"),
            (0 < top <= 1 and 0 <= other and top + other <= 1, "top_share and other_share must share at most 1"),
            (top == 1 or other > 0, "other_share must be above 0 where top_share is below 1"),
            (self.patience >= 0, "patience must not be negative"),
            (self.key_bits in SIZES, f"key_bits must be one of {', '.join(map(str, SIZES))}"),
        ]
        for good, why in rules:
            if not good:
                raise ConfigurationError(
                    f"In the terms of trees: {why}.", hint="The docstring of TreeTerms says more.", code="trees_invalid"
                )

    @property
    def parties(self) -> tuple[str, ...]:
        """All roles; the label owner first. Where two splits gain the same, the one of the first party is chosen."""
        return (self.label_owner, *self.feature_owners)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the canonical JSON."""
        return digest_of(to_json(self))

    @staticmethod
    def from_json(value: object) -> "TreeTerms":
        """The terms that these JSON values say. Raises ConfigurationError (``trees_invalid``)."""
        return from_json(TreeTerms, value, refusal=ConfigurationError, code="trees_invalid")
