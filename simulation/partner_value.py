"""What partners' columns are worth to trees, tried on tables that one may join."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.evaluation.metrics import ScoreMetricName
from coterie.aggregation.evaluation.partner_value import Coalition, PartnerValue, partner_value
from coterie.aggregation.vertical.tables import TableSource, check_labels
from coterie.aggregation.vertical.trees.losses import LOSSES
from coterie.aggregation.vertical.trees.terms import TreeTerms
from coterie.errors import ConfigurationError
from coterie.protocol.session_job import TreeLossName
from coterie.randomness import seed_of
from coterie.simulation.party_tables import read_tables
from coterie.simulation.trees import simulate_trees

_USUAL: Mapping[TreeLossName, ScoreMetricName] = {"logistic": "auc", "squared": "rmse"}


def tree_partner_value(
    terms: TreeTerms,
    tables: Mapping[str, TableSource],
    *,
    columns: Mapping[str, Sequence[str]],
    label: str,
    held_out: NDArray[np.bool_],
    metric: ScoreMetricName | None = None,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> PartnerValue:
    """What the feature owners add to a forest of the label owner alone, on rows held out.

    A forest is grown for each coalition on the other rows, on the joined table in the open: the trees are those of the
    parties. All of its trees count, since rows held out that chose the best tree would flatter it; so
    ``terms.patience`` changes nothing.

    terms, tables, columns, label: as of `coterie.simulation.trees.simulate_trees`; tables may hold more.
    held_out: ``[rows]``, true for rows to measure on, some but not all.
    metric: "auc" of labels 0 and 1, "rmse" of numbers, when not given.
    resamples, level, seed: as of `coterie.aggregation.evaluation.partner_value.partner_value`; ``seed`` is of GOSS too.
    Raises as these two do.
    """
    owner = terms.label_owner
    read = read_tables(terms.parties, tables, columns, (label,))
    labels, held = read[owner][label], np.asarray(held_out)
    if held.shape != labels.shape or held.dtype != np.bool_ or held.all() or not held.any():
        raise ConfigurationError(
            f"held_out is one truth value for each of {len(labels)} rows, not all the same.",
            hint="As in held_out=rng.random(rows) < 0.3.",
            code="party_columns",
        )
    check_labels(labels, held, label, LOSSES[terms.loss].labels, owner)

    def scores(coalition: Coalition) -> NDArray[np.float64]:
        used = {role: tuple(names) if role in coalition | {owner} else () for role, names in columns.items()}
        if not any(used.values()):
            # Nobody has a column: all that can be said of a row is the mean label.
            return np.full(int(held.sum()), labels[~held].mean())
        grown = simulate_trees(
            terms,
            {role: {name: values[~held] for name, values in found.items()} for role, found in read.items()},
            columns=used,
            label=label,
            encrypted=False,
            seed=seed_of("partner value", str(seed)),
        )
        return grown.predict({r: {name: values[held] for name, values in found.items()} for r, found in read.items()})

    return partner_value(
        scores,
        terms.feature_owners,
        labels[held],
        metric=metric or _USUAL[terms.loss],
        resamples=resamples,
        level=level,
        seed=seed,
    )
