"""Linear models of two parties in this process: to try what a session of organisations would give."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.linear.columns import check_complete, check_weights
from coterie.aggregation.vertical.linear.in_process import OwnedRows, fit_openly, fit_together
from coterie.aggregation.vertical.linear.links import LINKS
from coterie.aggregation.vertical.linear.model import RoleModel
from coterie.aggregation.vertical.linear.predicting import shown
from coterie.aggregation.vertical.linear.terms import LinearTerms
from coterie.aggregation.vertical.report import FitReport, fit_report
from coterie.aggregation.vertical.tables import TableSource, check_labels, read_columns
from coterie.privacy.he.keys import make_key
from coterie.simulation.party_tables import held_rows, read_tables, same_rows


@dataclass(frozen=True, eq=False)
class SimulatedLinear:
    """A model that simulated parties have fitted.

    report: on rows that were trained on and on those held out.
    models: each role's own part.
    unit: what labels were moved by and divided by; the feature owner does not know it.
    sent: bytes that each role would have sent; empty without encryption.
    """

    terms: LinearTerms
    report: FitReport
    models: Mapping[str, RoleModel]
    unit: tuple[float, float]
    sent: Mapping[str, int]

    def predict(self, tables: Mapping[str, TableSource]) -> NDArray[np.float64]:
        """The prediction of each row: of "logistic" the chance of label 1, of "poisson" the expected count.

        tables: of each role. Raises DataError.
        """
        read = {role: read_columns(tables[role], model.columns, role) for role, model in self.models.items()}
        rows = same_rows({role: len(next(iter(found.values()))) for role, found in read.items() if found})
        for role, found in read.items():
            check_complete(found, role)
        scores = sum((model.scores(read[role], rows) for role, model in self.models.items()), np.zeros(rows))
        return shown(LINKS[self.terms.link], scores, self.unit)


def simulate_linear(
    terms: LinearTerms,
    tables: Mapping[str, TableSource],
    *,
    columns: Mapping[str, Sequence[str]],
    label: str,
    weight: str | None = None,
    held_out: NDArray[np.bool_] | None = None,
    encrypted: bool = True,
    processes: int = 1,
    seed: bytes | None = None,
) -> SimulatedLinear:
    """Fit the model that the two parties of a session would fit on these tables.

    terms: as of a session.
    tables: of each role, rows as of `coterie.client_sdk.party.linear_learner.LinearLearner.train`; row i is about the
        same person in both.
    columns: of each role, those that the model takes; the label owner's may be empty.
    label, weight: the label owner's columns of labels, and of how much each row counts.
    held_out: ``[rows]``, true for rows that are not trained on.
    encrypted: False takes the same steps in the open, thousands of times as fast: the same coefficients, bit for bit.
    processes: for ciphertexts.
    seed: 32 bytes that batches are drawn of; fresh when not given.
    Raises DataError, InputError (``training_diverged``), ConfigurationError (``role_unknown``, ``linear_rows``,
    ``extra_missing``).
    """
    owner, link = terms.label_owner, LINKS[terms.link]
    read = read_tables(terms.parties, tables, columns, (label, *(() if weight is None else (weight,))))
    for role, found in read.items():
        check_complete(found, role)
    labels = read[owner].pop(label)
    weights = np.empty(0) if weight is None else read[owner].pop(weight)
    held, rows = held_rows(held_out, owner, len(labels)), len(labels)
    check_labels(labels, held, label, link.labels, owner)
    check_weights(weights, str(weight), owner)
    given = OwnedRows(read, labels, weights, held)
    if encrypted:
        fitted = fit_together(terms, given, make_key(terms.key_bits), seed=seed, processes=processes)
    else:
        fitted = fit_openly(terms, given, seed=seed)
    scores = sum((model.scores(read[role], rows) for role, model in fitted.models.items()), np.zeros(rows))
    report = fit_report(shown(link, scores, fitted.unit), labels, held, link.labels)
    return SimulatedLinear(terms, report, fitted.models, fitted.unit, fitted.sent)
