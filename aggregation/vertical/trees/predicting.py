"""Prediction in one exchange: each feature owner tells which of its splits send which row left, all at once."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.exchange import Hear, Side, Tell
from coterie.aggregation.vertical.trees.binning import Columns
from coterie.aggregation.vertical.trees.forest import Forest, OwnSplits
from coterie.aggregation.vertical.trees.losses import LOSSES
from coterie.aggregation.vertical.trees.messages import from_bits, place_of, to_bits
from coterie.aggregation.vertical.trees.terms import TreeTerms

_PLACE = place_of("bits")


def predict_label_side(
    terms: TreeTerms, forest: Forest, splits: OwnSplits, counts: Mapping[str, int], columns: Columns, rows: int
) -> Side[NDArray[np.float64]]:
    """The prediction of each row: of "logistic" the chance of label 1, of "squared" the number.

    counts: splits of each party's columns in the forest.
    """
    bits = {0: splits.bits(columns, rows)}
    for number, role in enumerate(terms.feature_owners, 1):
        heard = yield Hear(role, (_PLACE,), -(-counts[role] * rows // 8))
        sides = from_bits(heard.arrays["sides"], counts[role] * rows, role, _PLACE)
        bits[number] = sides.reshape(counts[role], rows)
    return LOSSES[terms.loss].shown(forest.margins(bits, rows))


def predict_feature_side(terms: TreeTerms, splits: OwnSplits, columns: Columns, rows: int) -> Side[None]:
    """Tell the label owner about each row."""
    yield Tell(terms.label_owner, _PLACE, {"sides": to_bits(splits.bits(columns, rows).reshape(-1))})
