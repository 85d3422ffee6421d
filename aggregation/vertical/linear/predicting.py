"""Prediction in one exchange: the feature owner tells its part of each row's score."""

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.exchange import Hear, Side, Tell, unusable
from coterie.aggregation.vertical.linear.links import LinearLink
from coterie.aggregation.vertical.linear.messages import place_of
from coterie.aggregation.vertical.linear.terms import LinearTerms

_PLACE = place_of("scores")


def predict_label_side(terms: LinearTerms, own: NDArray[np.float64]) -> Side[NDArray[np.float64]]:
    """The whole score of each row. own: the label owner's part, ``[rows]``."""
    heard = yield Hear(terms.feature_owner, (_PLACE,), 8 * len(own))
    scores = heard.arrays["scores"]
    if scores.shape != own.shape or not bool(np.isfinite(scores).all()):
        unusable(terms.feature_owner, _PLACE, f"{len(scores)} scores for {len(own)} rows, or one that is no number")
    return own + scores


def predict_feature_side(terms: LinearTerms, scores: NDArray[np.float64]) -> Side[None]:
    """Tell this role's part of each row's score."""
    yield Tell(terms.label_owner, _PLACE, {"scores": scores})


def shown(link: LinearLink, scores: NDArray[np.float64], unit: tuple[float, float]) -> NDArray[np.float64]:
    """Scores as predictions, in the labels' own unit."""
    middle, scale = unit
    return middle + scale * link.mean(scores)
