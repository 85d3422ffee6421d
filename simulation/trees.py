"""Boosted trees of several parties in this process: to try what a session of organisations would give."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.report import FitReport
from coterie.aggregation.vertical.tables import TableSource, check_labels, read_columns
from coterie.aggregation.vertical.trees.binning import bin_columns, no_columns
from coterie.aggregation.vertical.trees.forest import Forest, OwnSplits
from coterie.aggregation.vertical.trees.in_process import GrownTogether, grow_centrally, grow_together
from coterie.aggregation.vertical.trees.losses import LOSSES
from coterie.aggregation.vertical.trees.report import best_forest, report_of
from coterie.aggregation.vertical.trees.terms import TreeTerms
from coterie.privacy.he.keys import make_key
from coterie.simulation.party_tables import held_rows, read_tables, same_rows


@dataclass(frozen=True, eq=False)
class SimulatedTrees:
    """A forest that simulated parties have grown.

    report: losses and all figures, on rows that trees were grown on and on those held out.
    forest: the label owner's part. splits: each party's own. columns: of each role, those that trees could split.
    sent: bytes that each party would have sent; empty without encryption.
    """

    terms: TreeTerms
    report: FitReport
    forest: Forest
    splits: Mapping[str, OwnSplits]
    columns: Mapping[str, tuple[str, ...]]
    sent: Mapping[str, int]

    def predict(self, tables: Mapping[str, TableSource]) -> NDArray[np.float64]:
        """The prediction of each row of all parties' tables: of "logistic" the chance of label 1.

        Raises DataError.
        """
        lengths: dict[str, int] = {}
        bits: dict[int, NDArray[np.bool_]] = {}
        for number, role in enumerate(self.terms.parties):
            own = self.splits[role]
            # Without a split of its own a party's first column says how many rows there are.
            names = sorted({*own.columns}) or self.columns[role][:1]
            if names:
                columns = read_columns(tables[role], names, role)
                lengths[role] = len(columns[names[0]])
                bits[number] = own.bits(columns, lengths[role])
        return LOSSES[self.terms.loss].shown(self.forest.margins(bits, same_rows(lengths)))

    def importance(self) -> dict[str, float]:
        """What the splits of each column have gained, by party and column, the largest first."""
        found: dict[str, float] = {}
        for tree in self.forest.trees:
            for node in tree:
                if node.party >= 0:
                    role = self.terms.parties[node.party]
                    key = f"{role}: {self.splits[role].columns[node.number]}"
                    found[key] = found.get(key, 0.0) + node.gain
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def simulate_trees(
    terms: TreeTerms,
    tables: Mapping[str, TableSource],
    *,
    columns: Mapping[str, Sequence[str]],
    label: str,
    held_out: NDArray[np.bool_] | None = None,
    encrypted: bool = True,
    processes: int = 1,
    seed: bytes | None = None,
) -> SimulatedTrees:
    """Grow the forest that the parties of a session would grow on these tables.

    terms: as of a session.
    tables: of each role, rows as of `coterie.client_sdk.party.tree_learner.TreeLearner.train`; row i is about the same
        person in all.
    columns: of each role, the columns that trees may split; the label owner's may be empty.
    label: the label owner's column of labels.
    held_out: ``[rows]``, true for rows that no tree is grown on.
    encrypted: False trains on the joined table in the open, hundreds of times as fast: the same trees.
    processes: for ciphertexts.
    seed: 32 bytes for GOSS; fresh when not given.
    Raises DataError, ConfigurationError (``role_unknown``, ``extra_missing``).
    """
    owner = terms.label_owner
    read = read_tables(terms.parties, tables, columns, (label,))
    labels = read[owner].pop(label)
    held = held_rows(held_out, owner, len(labels))
    check_labels(labels, held, label, LOSSES[terms.loss].labels, owner)
    binned = {
        role: bin_columns(found, terms.bins) if found else no_columns(len(labels)) for role, found in read.items()
    }
    grown: GrownTogether
    if encrypted:
        key = make_key(terms.key_bits)
        grown = grow_together(terms, binned, labels, key, held_out=held, seed=seed, processes=processes)
    else:
        grown = grow_centrally(terms, binned, labels, held_out=held, seed=seed)
    state = grown.owner
    report = report_of(
        {
            "losses": np.array(state.losses),
            "margins": state.best_margins,
            "labels": labels,
            "held_out": held.astype(np.uint8),
        },
        terms.loss,
    )
    splits = {**grown.splits, **state.splits}
    named = {role: tuple(names) for role, names in columns.items()}
    return SimulatedTrees(terms, report, best_forest(state), splits, named, grown.sent)
