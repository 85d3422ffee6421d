"""One role's side of a linear model that two parties of a session fit together.

Calls are made and kept as those of trees are; within a training the state is kept after each step.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.plan.stage import PREDICTION, TaskName
from coterie.aggregation.vertical.linear.batches import check_batches, check_column, steps_of
from coterie.aggregation.vertical.linear.checkpoints import (
    FITTED,
    coefficient_arrays,
    coefficients_of,
    model_arrays,
    model_of,
    opening_arrays,
    opening_of,
)
from coterie.aggregation.vertical.linear.columns import check_complete, check_weights
from coterie.aggregation.vertical.linear.feature_side import (
    LinearFeatureSetting,
    feature_data,
    open_feature_side,
    step_feature_side,
)
from coterie.aggregation.vertical.linear.label_side import (
    LinearLabelSetting,
    label_data,
    open_label_side,
    step_label_side,
)
from coterie.aggregation.vertical.linear.links import LINKS
from coterie.aggregation.vertical.linear.model import RoleModel, role_model
from coterie.aggregation.vertical.linear.predicting import predict_feature_side, predict_label_side, shown
from coterie.aggregation.vertical.linear.terms import LinearTerms
from coterie.aggregation.vertical.report import FitReport, fit_report
from coterie.aggregation.vertical.tables import TableSource, check_labels
from coterie.client_sdk.party.agreement import step_of
from coterie.client_sdk.party.learner_store import LearnerCall
from coterie.client_sdk.party.linear_terms import told_by_linear
from coterie.client_sdk.party.party import Session
from coterie.client_sdk.party.role_calls import CallResult, RoleCalls
from coterie.client_sdk.party.side_calls import SideCalls
from coterie.client_sdk.party.table_rows import TableRows, require_columns, role_columns
from coterie.client_sdk.party.tree_terms import check_roles
from coterie.privacy.he.batches import CipherPool
from coterie.privacy.he.key_arrays import key_arrays, private_key
from coterie.privacy.he.keys import make_key
from coterie.protocol.arrays import ArraysByName

# The second step of a training that is kept: both know how they begin. Then comes each step of the model.
_OPENED = 2


class LinearLearner:
    """A role that fits a linear model and predicts together with its partner, which makes the same calls.

    session: joined already, with a stage ``learning``.
    terms: the same for both roles.
    folder: where its part of the model is, its key and its progress; of this role and these terms alone, closed to
        other users, one program at a time.
    columns: that the model takes, in their order; no other is read. The label owner may have none.
    label, weight: of the label owner alone: the column of labels, and of how much each row counts.
    processes: for ciphertexts. A script with more than one needs ``if __name__ == "__main__"``.
    patience_s: how long to wait for a partner's message, for one that has not joined, and for a coordinator that is
        away; for as long as it takes when not given.

    Row i of each call must be about the same person or thing in both roles' data.

    Guarantees: a call gives the same result, whenever its process was killed and started again on the same folder.
    Raises ConfigurationError (``plan_changed``, ``store_in_use``, ``role_unknown``, ``party_columns``,
    ``extra_missing``), StorageError (``checkpoint_damaged``, ``storage_failed``).
    """

    def __init__(
        self,
        session: Session,
        terms: LinearTerms,
        folder: str | Path,
        *,
        columns: Sequence[str],
        label: str | None = None,
        weight: str | None = None,
        processes: int = 1,
        patience_s: float | None = None,
    ) -> None:
        check_roles(session, terms.parties)
        self._terms, self._role, self._link = terms, session.membership.role, LINKS[terms.link]
        self._is_owner = self._role == terms.label_owner
        self._columns = role_columns(self._role, is_owner=self._is_owner, columns=columns, label=label, weight=weight)
        self._processes = processes
        partners = [role for role in terms.parties if role != self._role]
        self._calls = RoleCalls(session, terms.digest, Path(folder), partners, patience_s)
        self._side = SideCalls(self._calls, self._role, patience_s)

    def close(self) -> None:
        """Release the folder."""
        self._calls.close()

    def __enter__(self) -> "LinearLearner":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def skip_done(self) -> None:
        """Let the next call be a new one, after all that earlier programs have made in this session."""
        self._calls.skip_done()

    @property
    def model(self) -> RoleModel:
        """This role's own coefficients. Nobody else has them. Raises ConfigurationError (``not_trained``)."""
        self._side.require_trained(FITTED)
        return model_of(self._calls.tensors)[0]

    def train(
        self,
        rows: TableSource,
        *,
        held_out: NDArray[np.bool_] | None = None,
        on_step: Callable[[int, int], None] = lambda done, of: None,
    ) -> FitReport | None:
        """Fit a model from the beginning. What it came to, for the label owner; None for the other.

        rows: a CSV file, arrays by name or a DataFrame, without missing numbers.
        held_out: of the label owner alone, ``[rows]``: rows that are not trained on, for the report.
        on_step: gets the number of steps that are done, and of all.
        Raises DataError; Conflict (``session_step``) where a partner makes another call, or has another number of
        rows; ConfigurationError (``linear_rows``) for too few rows; InputError (``training_diverged``, and
        ``session_values``, ``ciphertext_range``, ``public_key`` for what no program of these terms sends); and as
        `MessageLog` does.
        """
        read = self._read(rows, with_label=True, held_out=held_out)
        if self._is_owner:
            check_labels(read.labels, read.held_out, str(self._columns.label), self._link.labels, self._role)
            check_weights(read.weights, str(self._columns.weight), self._role)
        # As far as this role can see: a call that was begun cannot be made with other columns.
        used = ~read.held_out if self._is_owner else np.ones(read.count, np.bool_)
        check_batches(self._terms, int(used.sum()), {self._role: len(read.columns)})
        for name, values in read.columns.items():
            check_column(values[used], name, self._role)
        work = self._train_owner if self._is_owner else self._train_feature
        _, kept = self._make("train", read, lambda call: work(call, read, on_step))
        if not self._is_owner:
            return None
        _, unit = model_of(kept)
        return fit_report(shown(self._link, kept["scores"], unit), read.labels, read.held_out, self._link.labels)

    def predict(self, rows: TableSource) -> NDArray[np.float64] | None:
        """For the label owner the prediction of each row: of "logistic" the chance of label 1, of "poisson" the
        expected count. None for the other.

        rows: as of `train`; labels are not read.
        Raises as `train` does, and ConfigurationError (``not_trained``; ``party_columns`` where the model has others).
        """
        read = self._read(rows, with_label=False)
        if FITTED in self._calls.tensors:
            require_columns(self._role, self._columns, self.model.columns)
        return self._make("predict", read, lambda call: self._predict(call, read))[1].get(PREDICTION)

    def _read(self, rows: TableSource, *, with_label: bool, held_out: NDArray[np.bool_] | None = None) -> TableRows:
        read = self._columns.read(rows, with_label=with_label, held_out=held_out)
        check_complete(read.columns, self._role)
        return read

    def _make(self, task: TaskName, rows: TableRows, work: Callable[[LearnerCall], CallResult]) -> CallResult:
        return self._calls.make(
            task,
            rows.arrays(),
            1,
            begin=self._begin,
            tells=lambda call: told_by_linear(self._terms, self._role, call.task, step_of(call), call.rows),
            work=work,
        )

    def _begin(self, call: LearnerCall) -> ArraysByName:
        if call.task != "train":
            self._side.require_trained(FITTED)
        return self._calls.tensors

    def _train_owner(self, call: LearnerCall, rows: TableRows, on_step: Callable[[int, int], None]) -> CallResult:
        terms = self._terms
        call, secret = self._side.secrets(call, lambda: key_arrays(make_key(terms.key_bits)))
        key, seed = private_key(secret), secret["seed"].tobytes()
        data = label_data(terms, rows.columns, rows.labels, rows.weights, rows.held_out, seed)
        steps = steps_of(terms, len(data.used))
        with CipherPool(key, processes=self._processes, expected=terms.epochs * len(data.used)) as pool:
            setting = LinearLabelSetting(terms, data, data.curvature(terms.l2), seed, pool)
            if call.step < _OPENED:
                now = self._side.run(call, open_label_side(setting))
                call = self._side.checkpoint(call, {**secret, **coefficient_arrays(now)})
            now = coefficients_of(self._calls.tensors)
            while now.steps < steps:
                now = self._side.run(call, step_label_side(setting, now))
                call = self._side.checkpoint(call, {**secret, **coefficient_arrays(now)})
                on_step(now.steps, steps)
        first, *values = now.values.tolist()
        model = role_model(data.standard, np.array(values), first)
        scores = self._side.run(call, predict_label_side(terms, model.scores(rows.columns, rows.count)))
        fitted = model_arrays(model, data.unit)
        self._calls.hold(fitted)
        return call, {**fitted, "scores": scores}

    def _train_feature(self, call: LearnerCall, rows: TableRows, on_step: Callable[[int, int], None]) -> CallResult:
        terms = self._terms
        call, secret = self._side.secrets(call, dict[str, NDArray[np.uint8]])
        if call.step < _OPENED:
            opening = self._side.run(call, open_feature_side(terms, len(rows.columns), rows.count))
            data = feature_data(terms, rows.columns, rows.count, opening.used, opening.second)
            arrays = {**secret, **opening_arrays(opening), **coefficient_arrays(data.start())}
            call = self._side.checkpoint(call, arrays)
        arrays = self._calls.tensors
        opening, now = opening_of(arrays), coefficients_of(arrays)
        data = feature_data(terms, rows.columns, rows.count, opening.used, opening.second)
        steps = steps_of(terms, len(opening.used))
        with CipherPool(opening.key, processes=self._processes) as pool:
            setting = LinearFeatureSetting(terms, self._role, opening, data, secret["seed"].tobytes(), pool)
            while now.steps < steps:
                now = self._side.run(call, step_feature_side(setting, now))
                arrays = {**secret, **opening_arrays(opening), **coefficient_arrays(now)}
                call = self._side.checkpoint(call, arrays)
                on_step(now.steps, steps)
        model = role_model(data.standard, now.values)
        self._side.run(call, predict_feature_side(terms, model.scores(rows.columns, rows.count)))
        self._calls.hold(model_arrays(model))
        return call, {}

    def _predict(self, call: LearnerCall, rows: TableRows) -> CallResult:
        model, unit = model_of(self._calls.tensors)
        own = model.scores(rows.columns, rows.count)
        if not self._is_owner:
            self._side.run(call, predict_feature_side(self._terms, own))
            return call, {}
        scores = self._side.run(call, predict_label_side(self._terms, own))
        return call, {PREDICTION: shown(self._link, scores, unit)}
