"""All parties that grow trees in one process.

`grow_together` is what parties do; `grow_centrally` is training on the joined table, which must give the same trees.
"""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.together import run_together
from coterie.aggregation.vertical.trees.binning import BinnedColumns
from coterie.aggregation.vertical.trees.feature_side import (
    FeatureSetting,
    FeatureState,
    grow_feature_side,
    open_feature_side,
)
from coterie.aggregation.vertical.trees.forest import OwnSplits
from coterie.aggregation.vertical.trees.label_side import LabelSetting, LabelState, grow_label_side, open_label_side
from coterie.aggregation.vertical.trees.terms import TreeTerms
from coterie.privacy.he.batches import CipherPool
from coterie.privacy.he.keys import PaillierPrivateKey


@dataclass(frozen=True, eq=False)
class GrownTogether:
    """What all parties have in the end. owner: the label owner. splits: of each feature owner.

    sent: bytes that each party has sent.
    """

    owner: LabelState
    splits: Mapping[str, OwnSplits]
    sent: Mapping[str, int]


def grow_together(
    terms: TreeTerms,
    binned: Mapping[str, BinnedColumns],
    labels: NDArray[np.float64],
    key: PaillierPrivateKey,
    *,
    held_out: NDArray[np.bool_] | None = None,
    seed: bytes | None = None,
    processes: int = 1,
) -> GrownTogether:
    """Grow a forest as parties do, under encryption.

    binned: the columns of each party. labels: ``[rows]``. held_out: as of `LabelSetting`; none when not given.
    seed: 32 bytes, of the label owner's sampling; fresh when not given. processes: of each party, for ciphertexts.
    """
    owner, sent = terms.label_owner, dict.fromkeys(terms.parties, 0)
    with ExitStack() as stack:
        setting = LabelSetting(
            terms,
            labels,
            np.zeros(len(labels), np.bool_) if held_out is None else held_out,
            {owner: binned[owner]},
            seed or os.urandom(32),
            stack.enter_context(CipherPool(key, processes=processes, expected=len(labels) * terms.trees)),
        )
        pool = stack.enter_context(CipherPool(key.public, processes=processes))
        settings = {
            role: FeatureSetting(terms, role, binned[role], os.urandom(32), pool) for role in terms.feature_owners
        }
        opened = run_together(
            {owner: open_label_side(setting), **{r: open_feature_side(s) for r, s in settings.items()}}, sent
        )
        label_state: LabelState = opened[owner]
        states: dict[str, FeatureState] = {role: opened[role] for role in settings}
        while len(label_state.forest.trees) < terms.trees and not label_state.over:
            grown = run_together(
                {
                    owner: grow_label_side(setting, label_state),
                    **{role: grow_feature_side(each, states[role]) for role, each in settings.items()},
                },
                sent,
            )
            label_state, states = grown[owner], {role: grown[role] for role in settings}
    return GrownTogether(label_state, {role: state.splits for role, state in states.items()}, sent)


def grow_centrally(
    terms: TreeTerms,
    binned: Mapping[str, BinnedColumns],
    labels: NDArray[np.float64],
    *,
    held_out: NDArray[np.bool_] | None = None,
    seed: bytes | None = None,
) -> GrownTogether:
    """Grow a forest on the joined table, in the open. Arguments as of `grow_together`."""
    none = np.zeros(len(labels), np.bool_)
    setting = LabelSetting(terms, labels, none if held_out is None else held_out, binned, seed or os.urandom(32))
    (state,) = run_together({terms.label_owner: open_label_side(setting)}, {}).values()
    while len(state.forest.trees) < terms.trees and not state.over:
        (state,) = run_together({terms.label_owner: grow_label_side(setting, state)}, {}).values()
    own = {role: state.splits[role] for role in terms.feature_owners}
    return GrownTogether(replace(state, splits={terms.label_owner: state.splits[terms.label_owner]}), own, {})
