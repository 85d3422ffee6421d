"""One role's side of boosted trees that parties of a session grow together.

Calls are made and kept as those of split networks are (`coterie.client_sdk.party.role_calls`); within a training the
state is kept after each tree. Every random number of a training comes from a seed that is kept before anything of it
leaves, so a program that was killed makes the same ciphertexts again.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.plan.stage import PREDICTION, TaskName
from coterie.aggregation.vertical.trees.binning import BinnedColumns, Columns, bin_columns, no_columns
from coterie.aggregation.vertical.trees.checkpoints import (
    feature_arrays,
    feature_state,
    key_arrays,
    label_arrays,
    label_state,
    private_key,
)
from coterie.aggregation.vertical.trees.feature_side import FeatureSetting, grow_feature_side, open_feature_side
from coterie.aggregation.vertical.trees.forest import Forest, OwnSplits
from coterie.aggregation.vertical.trees.label_side import LabelSetting, grow_label_side, open_label_side
from coterie.aggregation.vertical.trees.messages import (
    HEADER_BYTES,
    NOTHING,
    Side,
    Tell,
    read_message_of,
    write_message,
)
from coterie.aggregation.vertical.trees.predicting import predict_feature_side, predict_label_side
from coterie.aggregation.vertical.trees.report import TreeReport, best_forest, report_of
from coterie.aggregation.vertical.trees.tables import TableSource, check_labels, read_columns
from coterie.aggregation.vertical.trees.terms import TreeTerms
from coterie.client_sdk.party.agreement import step_of
from coterie.client_sdk.party.learner_store import LearnerCall
from coterie.client_sdk.party.party import Session
from coterie.client_sdk.party.role_calls import CallResult, RoleCalls
from coterie.client_sdk.party.tree_terms import check_roles, told_by_trees
from coterie.errors import ArgumentTypeError, ConfigurationError
from coterie.privacy.he.batches import CipherPool
from coterie.privacy.he.keys import make_key
from coterie.protocol.arrays import ArraysByName

Result = TypeVar("Result")
_SEED_BYTES = 32
# Steps of a training that are kept: the secrets are drawn, the key and the columns' bins are known, then each tree.
_DRAWN, _OPENED = 1, 2


@dataclass(frozen=True)
class _Rows:
    """The rows of a call. labels, held_out: empty where there are none."""

    columns: Columns
    labels: NDArray[np.float64]
    held_out: NDArray[np.bool_]
    count: int

    def arrays(self) -> ArraysByName:
        """All of it, for a digest."""
        held = self.held_out if len(self.held_out) else np.zeros(self.count, np.bool_)
        return {"held_out": held, "labels": self.labels, **{f"column {k}": v for k, v in self.columns.items()}}


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
    Raises ConfigurationError (``plan_changed``, ``store_in_use``, ``role_unknown``, ``trees_columns``,
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
        check_roles(session, terms)
        self._terms, self._role = terms, session.membership.role
        self._is_owner = self._role == terms.label_owner
        if isinstance(columns, str):
            raise ArgumentTypeError(f"columns are names, as in columns=({columns!r},).")
        self._columns, self._label = tuple(columns), label
        self._check_columns()
        self._processes, self._patience_s = processes, patience_s
        partners = terms.feature_owners if self._is_owner else (terms.label_owner,)
        self._calls = RoleCalls(session, terms.digest, Path(folder), partners, patience_s)
        self._log = self._calls.log

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
        self._require_trained()
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
        self._require_trained()
        return best_forest(label_state(self._terms, self._calls.tensors))

    def train(
        self,
        rows: TableSource,
        *,
        held_out: NDArray[np.bool_] | None = None,
        on_tree: Callable[[int], None] = lambda tree: None,
    ) -> TreeReport | None:
        """Grow a forest from the beginning. What it came to, for the label owner; None for the others.

        rows: a CSV file, arrays by name or a DataFrame; NaN where a row lacks a number.
        held_out: of the label owner alone, ``[rows]``: rows that no tree is grown on, for the report and for
            ``terms.patience``.
        on_tree: gets the number of trees that are grown.
        Raises DataError; Conflict (``session_step``) where a partner makes another call, or has another number of
        rows; InputError (``session_values``, ``ciphertext_range``, ``public_key``) for what no program of these terms
        sends; and as `MessageLog` does.
        """
        read = self._read(rows, with_label=self._is_owner, held_out=held_out)
        if self._is_owner:
            check_labels(read.labels, read.held_out, str(self._label), self._terms.loss, self._role)
        work = self._train_owner if self._is_owner else self._train_feature
        _, kept = self._make("train", read, lambda call: work(call, read, on_tree))
        return report_of(kept) if self._is_owner else None

    def predict(self, rows: TableSource) -> NDArray[np.float64] | None:
        """For the label owner the prediction of each row: of "logistic" the chance of label 1. None for the others.

        rows: as of `train`; labels are not read.
        Raises as `train` does, and ConfigurationError (``not_trained``).
        """
        read = self._read(rows, with_label=False, held_out=None)
        return self._make("predict", read, lambda call: self._predict(call, read))[1].get(PREDICTION)

    def _make(self, task: TaskName, rows: _Rows, work: Callable[[LearnerCall], CallResult]) -> CallResult:
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
            self._require_trained()
        return self._calls.tensors

    def _train_owner(self, call: LearnerCall, rows: _Rows, on_tree: Callable[[int], None]) -> CallResult:
        terms = self._terms
        call, secret = self._secrets(call, lambda: key_arrays(make_key(terms.key_bits)))
        key, seed = private_key(secret), secret["seed"].tobytes()
        with CipherPool(key, processes=self._processes, expected=rows.count * terms.trees) as pool:
            local = {self._role: _binned(rows, terms.bins)}
            setting = LabelSetting(terms, rows.labels, rows.held_out, local, seed, pool)
            if call.step < _OPENED:
                state = self._run(call, open_label_side(setting))
                call = self._checkpoint(call, {**secret, **label_arrays(terms, state)})
            state = label_state(terms, self._calls.tensors)
            while len(state.forest.trees) < terms.trees and not state.over:
                state = self._run(call, grow_label_side(setting, state))
                call = self._checkpoint(call, {**secret, **label_arrays(terms, state)})
                on_tree(len(state.forest.trees))
        held = rows.held_out
        return call, {
            "losses": np.array(state.losses, np.float64).reshape(-1, 2),
            "margins": state.margins,
            "labels": rows.labels,
            "held_out": held.astype(np.uint8),
        }

    def _train_feature(self, call: LearnerCall, rows: _Rows, on_tree: Callable[[int], None]) -> CallResult:
        terms = self._terms
        call, secret = self._secrets(call, dict[str, NDArray[np.uint8]])
        setting = FeatureSetting(terms, self._role, _binned(rows, terms.bins), secret["seed"].tobytes())
        if call.step < _OPENED:
            state = self._run(call, open_feature_side(setting))
            call = self._checkpoint(call, {**secret, **feature_arrays(state)})
        state = feature_state(self._calls.tensors)
        with CipherPool(state.key, processes=self._processes) as pool:
            setting = replace(setting, pool=pool)
            while state.trees < terms.trees and not state.over:
                state = self._run(call, grow_feature_side(setting, state))
                call = self._checkpoint(call, {**secret, **feature_arrays(state)})
                on_tree(state.trees)
        return call, {}

    def _predict(self, call: LearnerCall, rows: _Rows) -> CallResult:
        terms, arrays = self._terms, self._calls.tensors
        if not self._is_owner:
            side = predict_feature_side(terms, feature_state(arrays).splits, rows.columns, rows.count)
            self._run(call, side)
            return call, {}
        state = label_state(terms, arrays)
        own = state.splits[self._role]
        forest = best_forest(state)
        found = self._run(call, predict_label_side(terms, forest, own, state.counts, rows.columns, rows.count))
        return call, {PREDICTION: found}

    def _secrets(self, call: LearnerCall, draw: Callable[[], ArraysByName]) -> tuple[LearnerCall, ArraysByName]:
        """The seed and the key of a training: drawn and kept before anything of it leaves, or as they were kept."""
        if call.step < _DRAWN:
            seed = np.frombuffer(os.urandom(_SEED_BYTES), np.uint8)
            call = self._checkpoint(call, {"seed": seed, **draw()})
        names = ("seed", "private_p", "private_q", "private_base")
        return call, {name: value for name, value in self._calls.tensors.items() if name in names}

    def _checkpoint(self, call: LearnerCall, arrays: ArraysByName) -> LearnerCall:
        call = replace(call, step=call.step + 1)
        self._calls.keep(call, arrays)
        self._log.faults.reach("checkpoint_kept")
        return call

    def _run(self, call: LearnerCall, side: Side[Result]) -> Result:
        """Send what a program sends, and give it what comes."""
        try:
            step = next(side)
            while True:
                if isinstance(step, Tell):
                    self._log.send(step.role, write_message(step, call.number), patience_s=self._patience_s)
                    step = side.send(NOTHING)
                else:
                    limit = step.limit + HEADER_BYTES
                    data = self._log.receive(step.role, limit=limit, patience_s=self._patience_s)
                    step = side.send(read_message_of(data, step, call.number))
        except StopIteration as end:
            return end.value

    def _read(self, source: TableSource, *, with_label: bool, held_out: NDArray[np.bool_] | None) -> _Rows:
        label = (self._label,) if with_label and self._label is not None else ()
        wanted = (*self._columns, *label)
        if not wanted:
            # A label owner without columns predicts on as many rows as its labels' column has.
            wanted = (str(self._label),)
        found = read_columns(source, wanted, self._role)
        count = len(found[wanted[0]])
        labels = found[label[0]] if label else np.empty(0)
        columns = {name: found[name] for name in self._columns}
        return _Rows(columns, labels, self._held_out(held_out, count, with_label), count)

    def _held_out(self, held_out: NDArray[np.bool_] | None, count: int, with_label: bool) -> NDArray[np.bool_]:
        if held_out is None:
            return np.zeros(count if with_label else 0, np.bool_)
        given = np.asarray(held_out)
        if not with_label or given.shape != (count,) or given.dtype != np.bool_ or given.all():
            raise ConfigurationError(
                f"held_out is one truth value for each of {count} rows, not all true, and of the label owner alone.",
                hint="As in held_out=rng.random(rows) < 0.3.",
                code="trees_columns",
            )
        return given

    def _require_trained(self) -> None:
        # A training that was begun and not finished has taken the place of the one before.
        if not self._calls.trained or "split_columns" not in self._calls.tensors:
            raise ConfigurationError(
                f"The part of role {self._role!r} in {self._calls.folder} is not trained.",
                hint="Call train first, in every role.",
                code="not_trained",
            )

    def _check_columns(self) -> None:
        rules = [
            ((self._label is not None) == self._is_owner, "the label owner names label=, and no other role does"),
            (self._is_owner or bool(self._columns), "a feature owner needs columns"),
            (len({*self._columns, self._label}) == len(self._columns) + 1, "columns and label must differ"),
            (
                bool(self._columns) or not self._terms.trees_alone or not self._is_owner,
                "a label owner without columns grows no tree alone: trees_alone must be 0",
            ),
        ]
        for good, why in rules:
            if not good:
                raise ConfigurationError(
                    f"In the columns of role {self._role!r}: {why}.",
                    hint="columns= are what trees may split, label= what they predict.",
                    code="trees_columns",
                )


def _binned(rows: _Rows, bins: int) -> BinnedColumns:
    return bin_columns(rows.columns, bins) if rows.columns else no_columns(rows.count)
