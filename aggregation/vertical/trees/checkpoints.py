"""States of trees as arrays that can be kept, and back."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.trees.feature_side import FeatureState
from coterie.aggregation.vertical.trees.forest import OwnSplits, forest_of
from coterie.aggregation.vertical.trees.label_side import LabelState
from coterie.aggregation.vertical.trees.terms import TreeTerms
from coterie.privacy.he.key_arrays import number_array, number_of
from coterie.privacy.he.keys import PaillierPublicKey
from coterie.protocol.arrays import ArraysByName


def label_arrays(terms: TreeTerms, state: LabelState) -> ArraysByName:
    """All of the label owner's state."""
    layouts = {
        f"layout_{number}": np.array(state.layouts[role], np.int32).reshape(-1, 2)
        for number, role in enumerate(terms.feature_owners)
    }
    return {
        **state.forest.to_arrays(),
        **_split_arrays(state.splits[terms.label_owner]),
        **layouts,
        "margins": state.margins,
        "best_margins": state.best_margins,
        "counts": np.array([state.counts[role] for role in terms.parties], np.int64),
        "losses": np.array(state.losses, np.float64).reshape(-1, 2),
        "over": np.array([state.over], np.uint8),
    }


def label_state(terms: TreeTerms, arrays: ArraysByName) -> LabelState:
    """The state of `label_arrays`."""
    return LabelState(
        forest_of(arrays),
        np.array(arrays["margins"]),
        np.array(arrays["best_margins"]),
        layouts={
            role: [(int(count), bool(missing)) for count, missing in arrays[f"layout_{number}"]]
            for number, role in enumerate(terms.feature_owners)
        },
        splits={terms.label_owner: _splits(arrays)},
        counts={role: int(count) for role, count in zip(terms.parties, arrays["counts"], strict=True)},
        losses=tuple((float(one), float(other)) for one, other in arrays["losses"]),
        over=bool(arrays["over"][0]),
    )


def feature_arrays(state: FeatureState) -> ArraysByName:
    """All of a feature owner's state."""
    return {
        **_split_arrays(state.splits),
        "trees": np.array([state.trees], np.int64),
        "over": np.array([state.over], np.uint8),
        "key_modulus": number_array(state.key.modulus),
        "key_base": number_array(state.key.base),
    }


def feature_state(arrays: ArraysByName) -> FeatureState:
    """The state of `feature_arrays`."""
    key = PaillierPublicKey(number_of(arrays["key_modulus"]), number_of(arrays["key_base"]))
    return FeatureState(key, int(arrays["trees"][0]), _splits(arrays), bool(arrays["over"][0]))


def _split_arrays(splits: OwnSplits) -> Mapping[str, NDArray[Any]]:
    return {
        "split_columns": np.frombuffer(json.dumps(splits.columns).encode(), np.uint8),
        "split_thresholds": np.array(splits.thresholds, np.float64),
        "split_missing": np.array(splits.missing_left, np.uint8),
    }


def _splits(arrays: ArraysByName) -> OwnSplits:
    return OwnSplits(
        tuple(json.loads(arrays["split_columns"].tobytes())),
        tuple(arrays["split_thresholds"].tolist()),
        tuple(bool(left) for left in arrays["split_missing"]),
    )
