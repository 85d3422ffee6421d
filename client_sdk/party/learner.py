"""One role's side of a plan of a session: it runs its stages on its own rows, and exchanges with its partners what the
plan says, and no more.

Calls are numbered by their order in the programs of a session. A program that was killed is started again and makes the
same calls: those that were done return at once what they returned, and the one that was broken off goes on. In another
session they are numbered anew. What was broken off before it changed any weight is dropped there; a training that did
goes on in its own session alone.
"""

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.plan.check_session import SessionPlan
from coterie.aggregation.plan.session_manifest import SessionManifest
from coterie.aggregation.plan.stage import PREDICTION, TaskName
from coterie.client_sdk.party.agreement import step_of
from coterie.client_sdk.party.learner_store import LearnerCall
from coterie.client_sdk.party.party import Session
from coterie.client_sdk.party.plans import require_plan
from coterie.client_sdk.party.role_calls import CallResult, RoleCalls
from coterie.client_sdk.party.role_work import BatchDone, MessageAwaited, RoleWork, Sent, partners_of
from coterie.client_sdk.rows.allowed import check_readable
from coterie.client_sdk.rows.loading import DataSource
from coterie.privacy.entropy import Entropy
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.disclosures import Disclosure
from coterie.protocol.metrics import MetricSums

STEPS_PER_CHECKPOINT: Final = 100


def _ignore(epoch: int, means: Mapping[str, float]) -> None:
    """For who does not look at single epochs."""


class Learner:
    """A role that trains, evaluates and predicts together with its partners, who make the same calls.

    session: joined already, with a stage ``learning``.
    plan: the same for all roles; see `coterie.client_sdk.party.plans`.
    folder: where its part of the model is, its progress, and messages that are not worked in yet; of this role and plan
        alone, closed to other users, one program at a time.
    columns: names that the plan may read: of columns of a table, of arrays, and of ``.npy`` files without their ending.
    threads: of one graph run.
    patience_s: how long to wait for a partner's message, for one that has not joined, and for a coordinator that is
        away; for as long as it takes when not given.
    entropy: where the secret comes from of which first weights, noise and rounding are drawn.

    Row i of each call must be about the same person or thing in all roles' data.

    A plan is a program of whoever made it: it sees the columns that are allowed, and keeps and sends what its graphs
    make of them. coterie bounds how much leaves (`SessionManifest.disclosures`) and to whom, not what it says.

    Guarantees: a call gives the same result, whenever its process was killed and started again on the same folder.
    Raises ConfigurationError (``plan_changed``, ``store_in_use``), StorageError (``checkpoint_damaged``,
    ``storage_failed``), PlanRefused (``role_unknown``, ``plan_columns``).
    """

    def __init__(
        self,
        session: Session,
        plan: SessionPlan,
        folder: str | Path,
        *,
        columns: Collection[str],
        threads: int = 1,
        patience_s: float | None = None,
        entropy: Entropy = os.urandom,
    ) -> None:
        require_plan(plan)
        self._plan, role = plan, session.membership.role
        check_readable(plan.manifest.part(role).schema, columns)
        self._columns = frozenset(columns)
        self._threads, self._patience_s = threads, patience_s
        partners = partners_of(plan.manifest.part(role))
        self._calls = RoleCalls(session, plan.id, Path(folder), partners, patience_s, entropy)
        self._log = self._calls.log
        secret = bytes.fromhex(self._calls.secret)
        self._role = RoleWork(plan, role, secret=secret, session=session.membership.session)

    def close(self) -> None:
        """Release the folder."""
        self._calls.close()

    def __enter__(self) -> "Learner":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def client_state(self) -> ArraysByName:
        """This role's part of the model and of the optimizer's state; empty before the first training."""
        return self._calls.tensors

    def skip_done(self) -> None:
        """Let the next call be a new one, after all that earlier programs have made in this session."""
        self._calls.skip_done()

    def train(
        self, rows: DataSource, *, on_epoch: Callable[[int, Mapping[str, float]], None] = _ignore
    ) -> tuple[MetricSums, ...]:
        """Train on rows, from where the last training ended. The metric sums of each epoch; without any for a role that
        has no labels.

        rows: as a device's data are given (`coterie.client_sdk.rows.loading.load_data`).
        on_epoch: gets the number of each epoch that ends, from 1, and the means of its metrics.
        Raises DataError; PlanRefused (``plan_columns``) where the rows are read by names that are not allowed; Conflict
        (``session_step``) where a partner makes another call, or has another number of rows;
        InputError (``training_diverged``), and as `MessageLog` does.
        """
        return tuple(MetricSums(sums) for sums in self._call("train", rows, on_epoch)[0].epochs)

    def evaluate(self, rows: DataSource) -> MetricSums:
        """The metric sums of the model on rows; none for a role that has no labels. Raises as `train` does, and
        ConfigurationError (``not_trained``).
        """
        epochs = self._call("evaluate", rows, _ignore)[0].epochs
        return MetricSums(epochs[0]) if epochs else MetricSums()

    def predict(self, rows: DataSource | int) -> NDArray[np.float32] | None:
        """What the model says of rows, ``[rows, …]``; None for a role that has no labels.

        rows: as of `train`, without the label: arrays and tables must leave it out, and it is not read of a file. How
            many rows there are, for a role that has the label alone.
        Raises as `evaluate` does.
        """
        return self._call("predict", rows, _ignore)[1].get(PREDICTION)

    def _call(
        self, task: TaskName, rows: DataSource | int, on_epoch: Callable[[int, Mapping[str, float]], None]
    ) -> CallResult:
        """The next call and what it gave: now, or in an earlier program."""
        arrays = self._role.rows_of(task, rows, self._columns)
        return self._calls.make(
            task,
            arrays,
            self._threads,
            begin=self._begin,
            tells=lambda call: _told(self._plan.manifest, self._role.name, call),
            work=lambda call: self._work(call, arrays, on_epoch),
        )

    def _begin(self, call: LearnerCall) -> ArraysByName:
        """The part of the model that a call begins with."""
        self._role.require_trained(call, str(self._calls.folder))
        return self._calls.tensors or self._role.first_tensors()

    def _work(
        self, call: LearnerCall, arrays: ArraysByName, on_epoch: Callable[[int, Mapping[str, float]], None]
    ) -> CallResult:
        """Every batch that is left of a call."""
        work, answer = self._role.work(call, arrays, self._calls.tensors), b""
        try:
            event = next(work)
            while True:
                match event:
                    case Sent(role, body):
                        self._log.send(role, body, patience_s=self._patience_s)
                    case MessageAwaited(role, limit):
                        answer = self._log.receive(role, limit=limit, patience_s=self._patience_s)
                    case BatchDone(call, tensors, epoch):
                        if epoch:
                            on_epoch(len(call.epochs), MetricSums(call.epochs[-1]).means())
                        if call.task == "train" and (epoch or call.step % STEPS_PER_CHECKPOINT == 0):
                            self._calls.keep(call, tensors)
                            self._log.faults.reach("checkpoint_kept")
                event = work.send(answer)
        except StopIteration as end:
            return call, end.value


def _told(manifest: SessionManifest, role: str, call: LearnerCall) -> list[Disclosure]:
    """By a call of a plan's stages, to and by a role."""
    times = manifest.training.epochs if call.task == "train" else 1
    return [
        told.model_copy(update={"step": step_of(call), "rows": call.rows, "times": times})
        for told in manifest.disclosures()
        if told.step == call.task and role in (told.sender, told.recipient)
    ]
