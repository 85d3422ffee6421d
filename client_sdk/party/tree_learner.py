"""One role's side of boosted trees that parties of a session grow together.

Calls are made and kept as those of split networks are (`coterie.client_sdk.party.role_calls`); within a training the
state is kept after each tree. Every random number of a training comes from a seed that is kept before anything of it
leaves, so a program that was killed makes the same ciphertexts again.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.plan.stage import PREDICTION, TaskName
from coterie.aggregation.vertical.report import FitReport
from coterie.aggregation.vertical.tables import TableSource, check_labels
from coterie.aggregation.vertical.trees.binning import BinnedColumns, bin_columns, no_columns
from coterie.aggregation.vertical.trees.checkpoints import (
    feature_arrays,
    feature_state,
    label_arrays,
    label_state,
)
from coterie.aggregation.vertical.trees.feature_side import FeatureSetting, grow_feature_side, open_feature_side
from coterie.aggregation.vertical.trees.forest import Forest, OwnSplits
from coterie.aggregation.vertical.trees.label_side import LabelSetting, grow_label_side, open_label_side
from coterie.aggregation.vertical.trees.losses import LOSSES
from coterie.aggregation.vertical.trees.predicting import predict_feature_side, predict_label_side
from coterie.aggregation.vertical.trees.report import best_forest, report_of
from coterie.aggregation.vertical.trees.terms import TreeTerms
from coterie.client_sdk.party.agreement import step_of
from coterie.client_sdk.party.learner_store import LearnerCall
from coterie.client_sdk.party.party import Session
from coterie.client_sdk.party.role_calls import CallResult, RoleCalls
from coterie.client_sdk.party.side_calls import SideCalls
from coterie.client_sdk.party.table_rows import TableRows, require_columns, role_columns
from coterie.client_sdk.party.tree_terms import check_roles, told_by_trees
from coterie.errors import ConfigurationError
from coterie.privacy.he.batches import CipherPool
from coterie.privacy.he.key_arrays import key_arrays, private_key
from coterie.privacy.he.keys import make_key
from coterie.protocol.arrays import ArraysByName

# The second step of a training that is kept: the key and the columns' bins are known. Then comes each tree.
_OPENED = 2
_TRAINED = "split_columns"


class TreeLearner:
    """A role that grows trees and predicts together with its partners, who make the same calls.

    session: joined already, with a stage ``learning``.
    terms: the same for all roles; see `coterie.client_sdk.party.tree_terms`.
    folder: where its part of the forest is, its key and its progress; of this role and these terms alone, closed to
        other users, one program at a time.
    columns: the columns that trees may split, in their order; no other is read. The label owner may have none.
    label: the column of labels, of the label owner alone.
    processes: for ciphertexts. A script with more than one needs ``if __name__ == "__main__"``.
    patience_s: how long to wait for a partner's message, for one that has not joined, and for a coordinator that is
        away; for as long as it takes when not given.

    Row i of each call must be about the same person or thing in all roles' data.

    Guarantees: the forest is that of training on the joined table, bit for bit; a call gives the same result, whenever
    its process was killed and started again on the same folder.
    Raises ConfigurationError (``plan_changed``, ``store_in_use``, ``role_unknown``, ``party_columns``,
    ``extra_missing``), StorageError (``checkpoint_damaged``, ``storage_failed``).
    """

    def __init__(
        self,
        session: Session,
        terms: TreeTerms,
        folder: str | Path,
        *,
        columns: Sequence[str],
        label: str | None = None,
        processes: int = 1,
        patience_s: float | None = None,
    ) -> None:
        check_roles(session, terms.parties)
        self._terms, self._role = terms, session.membership.role
        self._is_owner = self._role == terms.label_owner
        not_alone = bool(columns) or not terms.trees_alone or not self._is_owner
        self._columns = role_columns(
            self._role,
            is_owner=self._is_owner,
            columns=columns,
            label=label,
            rules=[(not_alone, "a label owner without columns grows no tree alone: trees_alone must be 0")],
        )
        self._processes = processes
        partners = terms.feature_owners if self._is_owner else (terms.label_owner,)
        self._calls = RoleCalls(session, terms.digest, Path(folder), partners, patience_s)
        self._side = SideCalls(self._calls, self._role, patience_s)

    def close(self) -> None:
        """Release the folder."""
        self._calls.close()

    def __enter__(self) -> "TreeLearner":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def skip_done(self) -> None:
        """Let the next call be a new one, after all that earlier programs have made in this session."""
        self._calls.skip_done()

    @property
    def splits(self) -> OwnSplits:
        """The splits of this role's own columns, in the order in which they were chosen. Nobody else has them."""
        self._side.require_trained(_TRAINED)
        arrays = self._calls.tensors
        return label_state(self._terms, arrays).splits[self._role] if self._is_owner else feature_state(arrays).splits

    @property
    def forest(self) -> Forest:
        """The label owner's trees, up to the best one.

        Raises ConfigurationError (``not_trained``, ``role_unknown``).
        """
        if not self._is_owner:
            raise ConfigurationError(
                f"The role {self._role!r} has splits of its own and no trees.",
                hint="Ask for `splits`.",
                code="role_unknown",
            )
        self._side.require_trained(_TRAINED)
        return best_forest(label_state(self._terms, self._calls.tensors))

    def train(
        self,
        rows: TableSource,
        *,
        held_out: NDArray[np.bool_] | None = None,
        on_tree: Callable[[int], None] = lambda tree: None,
    ) -> FitReport | None:
        """Grow a forest from the beginning. What it came to, for the label owner; None for the others.

        rows: a CSV file, arrays by name or a DataFrame; NaN where a row lacks a number.
        held_out: of the label owner alone, ``[rows]``: rows that no tree is grown on, for the report, and to find the
            best tree, at which the forest ends.
        on_tree: gets the number of trees that are grown.
        Raises DataError; Conflict (``session_step``) where a partner makes another call, or has another number of
        rows; InputError (``session_values``, ``ciphertext_range``, ``public_key``) for what no program of these terms
        sends; and as `MessageLog` does.
        """
        read = self._columns.read(rows, with_label=True, held_out=held_out)
        if self._is_owner:
            check_labels(
                read.labels, read.held_out, str(self._columns.label), LOSSES[self._terms.loss].labels, self._role
            )
        work = self._train_owner if self._is_owner else self._train_feature
        _, kept = self._make("train", read, lambda call: work(call, read, on_tree))
        return report_of(kept, self._terms.loss) if self._is_owner else None

    def predict(self, rows: TableSource) -> NDArray[np.float64] | None:
        """For the label owner the prediction of each row: of "logistic" the chance of label 1. None for the others.

        rows: as of `train`; labels are not read.
        Raises as `train` does, and ConfigurationError (``not_trained``; ``party_columns`` where trees split others).
        """
        read = self._columns.read(rows, with_label=False)
        if _TRAINED in self._calls.tensors:
            require_columns(self._role, self._columns, self.splits.columns)
        return self._make("predict", read, lambda call: self._predict(call, read))[1].get(PREDICTION)

    def _make(self, task: TaskName, rows: TableRows, work: Callable[[LearnerCall], CallResult]) -> CallResult:
        return self._calls.make(
            task,
            rows.arrays(),
            1,
            begin=self._begin,
            tells=lambda call: told_by_trees(self._terms, self._role, call.task, step_of(call), call.rows),
            work=work,
        )

    def _begin(self, call: LearnerCall) -> ArraysByName:
        if call.task != "train":
            self._side.require_trained(_TRAINED)
        return self._calls.tensors

    def _train_owner(self, call: LearnerCall, rows: TableRows, on_tree: Callable[[int], None]) -> CallResult:
        terms = self._terms
        call, secret = self._side.secrets(call, lambda: key_arrays(make_key(terms.key_bits)))
        key, seed = private_key(secret), secret["seed"].tobytes()
        with CipherPool(key, processes=self._processes, expected=rows.count * terms.trees) as pool:
            local = {self._role: _binned(rows, terms.bins)}
            setting = LabelSetting(terms, rows.labels, rows.held_out, local, seed, pool)
            if call.step < _OPENED:
                state = self._side.run(call, open_label_side(setting))
                call = self._side.checkpoint(call, {**secret, **label_arrays(terms, state)})
            state = label_state(terms, self._calls.tensors)
            while len(state.forest.trees) < terms.trees and not state.over:
                state = self._side.run(call, grow_label_side(setting, state))
                call = self._side.checkpoint(call, {**secret, **label_arrays(terms, state)})
                on_tree(len(state.forest.trees))
        held = rows.held_out
        return call, {
            "losses": np.array(state.losses, np.float64).reshape(-1, 2),
            "margins": state.best_margins,
            "labels": rows.labels,
            "held_out": held.astype(np.uint8),
        }

    def _train_feature(self, call: LearnerCall, rows: TableRows, on_tree: Callable[[int], None]) -> CallResult:
        terms = self._terms
        call, secret = self._side.secrets(call, dict[str, NDArray[np.uint8]])
        setting = FeatureSetting(terms, self._role, _binned(rows, terms.bins), secret["seed"].tobytes())
        if call.step < _OPENED:
            state = self._side.run(call, open_feature_side(setting))
            call = self._side.checkpoint(call, {**secret, **feature_arrays(state)})
        state = feature_state(self._calls.tensors)
        with CipherPool(state.key, processes=self._processes) as pool:
            setting = replace(setting, pool=pool)
            while state.trees < terms.trees and not state.over:
                state = self._side.run(call, grow_feature_side(setting, state))
                call = self._side.checkpoint(call, {**secret, **feature_arrays(state)})
                on_tree(state.trees)
        return call, {}

    def _predict(self, call: LearnerCall, rows: TableRows) -> CallResult:
        terms, arrays = self._terms, self._calls.tensors
        if not self._is_owner:
            side = predict_feature_side(terms, feature_state(arrays).splits, rows.columns, rows.count)
            self._side.run(call, side)
            return call, {}
        state = label_state(terms, arrays)
        own = state.splits[self._role]
        forest = best_forest(state)
        found = self._side.run(call, predict_label_side(terms, forest, own, state.counts, rows.columns, rows.count))
        return call, {PREDICTION: found}


def _binned(rows: TableRows, bins: int) -> BinnedColumns:
    return bin_columns(rows.columns, bins) if rows.columns else no_columns(rows.count)
