"""What is asked of parties that grow trees together: one value, the same for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from coterie.errors import ConfigurationError
from coterie.protocol.canonical import digest_of
from coterie.protocol.conversion import from_json, to_json
from coterie.protocol.paillier_sizes import KEY_BITS
from coterie.protocol.session_job import TreeLossName, TreesMethod, tree_fault

FRACTION_BITS: Final = 32
"""A row's gradient and hessian are whole numbers of at most 2**32, the largest of a tree close to that."""
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
    loss: TreeLossName = "logistic"
    top_share: float = 1.0
    other_share: float = 0.0
    trees_alone: int = 0
    patience: int = 0
    key_bits: int = KEY_BITS

    def __post_init__(self) -> None:
        owners = len(self.feature_owners)
        fault = tree_fault(self)
        if not 0 < owners <= MOST_OWNERS:
            fault = f"feature_owners are 1 to {MOST_OWNERS} roles"
        elif len({self.label_owner, *self.feature_owners}) != 1 + owners:
            fault = "the roles must differ"
        if fault is not None:
            raise ConfigurationError(
                f"In the terms of trees: {fault}.", hint="The docstring of TreeTerms says more.", code="trees_invalid"
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

    @staticmethod
    def of(method: TreesMethod, label_owner: str, roles: Sequence[str]) -> "TreeTerms":
        """The terms of a session's job.

        roles: of the session; those other than the label owner's are the feature owners, in this order.
        """
        options = {name: getattr(method, name) for name in TreesMethod.model_fields if name != "method"}
        owners = tuple(role for role in roles if role != label_owner)
        return TreeTerms(label_owner=label_owner, feature_owners=owners, **options)
