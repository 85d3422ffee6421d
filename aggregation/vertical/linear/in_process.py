"""Both parties that fit a linear model in one process.

`fit_together` is what parties do; `fit_openly` takes the same steps with the same sums in the open.
"""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.linear import sums
from coterie.aggregation.vertical.linear.batches import batches_of, check_batches, steps_of
from coterie.aggregation.vertical.linear.feature_side import (
    FeatureData,
    LinearFeatureSetting,
    Opening,
    feature_data,
    open_feature_side,
    step_feature_side,
)
from coterie.aggregation.vertical.linear.label_side import (
    LabelData,
    LinearLabelSetting,
    label_data,
    open_label_side,
    step_label_side,
)
from coterie.aggregation.vertical.linear.model import Coefficients, RoleModel, role_model, step
from coterie.aggregation.vertical.linear.terms import LinearTerms
from coterie.aggregation.vertical.together import run_together
from coterie.privacy.he.batches import CipherPool
from coterie.privacy.he.keys import PaillierPrivateKey


@dataclass(frozen=True, eq=False)
class OwnedRows:
    """What both roles bring. columns: by role, ``[rows]`` each. labels, held_out: ``[rows]``. weights: or empty."""

    columns: Mapping[str, dict[str, NDArray[np.float64]]]
    labels: NDArray[np.float64]
    weights: NDArray[np.float64]
    held_out: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class FittedTogether:
    """What both have in the end. models: of each role. unit: of the labels. sent: bytes that each has sent."""

    models: Mapping[str, RoleModel]
    unit: tuple[float, float]
    sent: Mapping[str, int]


def fit_together(
    terms: LinearTerms,
    given: OwnedRows,
    key: PaillierPrivateKey,
    *,
    seed: bytes | None = None,
    processes: int = 1,
) -> FittedTogether:
    """Fit a model as parties do, under encryption.

    seed: 32 bytes, of the label owner; fresh when not given. processes: of each party, for ciphertexts.
    """
    owner, other = terms.parties
    own_seed, sent = seed or os.urandom(32), dict.fromkeys(terms.parties, 0)
    label = label_data(terms, given.columns[owner], given.labels, given.weights, given.held_out, own_seed)
    with ExitStack() as stack:
        expected = steps_of(terms, len(label.used)) * len(label.used)
        pool = stack.enter_context(CipherPool(key, processes=processes, expected=expected))
        theirs = stack.enter_context(CipherPool(key.public, processes=processes))
        setting = LinearLabelSetting(terms, label, label.curvature(terms.l2), own_seed, pool)
        columns, rows = given.columns[other], len(given.labels)
        opened = run_together(
            {owner: open_label_side(setting), other: open_feature_side(terms, len(columns), rows)}, sent
        )
        opening: Opening = opened[other]
        feature = feature_data(terms, columns, rows, opening.used, opening.second)
        their = LinearFeatureSetting(terms, other, opening, feature, os.urandom(32), theirs)
        states: dict[str, Coefficients] = {owner: opened[owner], other: feature.start()}
        for _ in range(steps_of(terms, len(label.used))):
            states = run_together(
                {owner: step_label_side(setting, states[owner]), other: step_feature_side(their, states[other])}, sent
            )
    return _fitted(terms, label, feature, states, sent)


def fit_openly(terms: LinearTerms, given: OwnedRows, *, seed: bytes | None = None) -> FittedTogether:
    """The same steps without encryption, thousands of times as fast: the same coefficients, bit for bit.

    Arguments as of `fit_together`.
    """
    owner, other = terms.parties
    label = label_data(terms, given.columns[owner], given.labels, given.weights, given.held_out, seed or os.urandom(32))
    check_batches(terms, len(label.used), {other: len(given.columns[other]), owner: len(given.columns[owner])})
    feature = feature_data(terms, given.columns[other], len(given.labels), label.used, label.second)
    curvature, whole = label.curvature(terms.l2), sums.whole_columns(feature.rows)
    now, theirs = label.start(), feature.start()
    batches = batches_of(terms, len(label.used))
    for number in range(steps_of(terms, len(label.used))):
        batch = batches[number % len(batches)]
        left = label.link.left(feature.rows[batch] @ theirs.values)
        own, other_sums = sums.plain_sums(label.parts(now, batch, owner), left, whole[batch])
        count = batch.stop - batch.start
        now = step(terms, curvature, now, sums.means(own, sums.OWN_BITS, count), owner)
        theirs = step(terms, feature.curvature, theirs, sums.means(other_sums, sums.THEIR_BITS, count), other)
    return _fitted(terms, label, feature, {owner: now, other: theirs}, {})


def _fitted(
    terms: LinearTerms,
    label: LabelData,
    feature: FeatureData,
    states: Mapping[str, Coefficients],
    sent: Mapping[str, int],
) -> FittedTogether:
    owner, other = terms.parties
    first, *rest = states[owner].values.tolist()
    models = {
        owner: role_model(label.standard, np.array(rest), first),
        other: role_model(feature.standard, states[other].values),
    }
    return FittedTogether(models, label.unit, sent)
