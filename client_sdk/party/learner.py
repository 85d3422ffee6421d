"""One role's side of a plan of a session: it runs its stages on its own rows, and exchanges with its partners what the
plan says, and no more.

Calls are numbered by their order in the programs of a session. A program that was killed is started again and makes the
same calls: those that were done return at once what they returned, and the one that was broken off goes on. In another
session they are numbered anew. What was broken off before it changed any weight is dropped there; a training that did
goes on in its own session alone.
"""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.plan.check_session import SessionPlan
from coterie.aggregation.plan.stage import PREDICTION, TaskName
from coterie.client_sdk.party.agreement import agree, withdraw
from coterie.client_sdk.party.learner_store import LearnerCall, LearnerStore, RoleProgress
from coterie.client_sdk.party.message_log import MessageLog
from coterie.client_sdk.party.party import Session
from coterie.client_sdk.party.plans import require_plan
from coterie.client_sdk.party.role_work import SECRET_BYTES, BatchDone, MessageAwaited, RoleWork, Sent, call_of
from coterie.client_sdk.rows.allowed import check_readable
from coterie.client_sdk.rows.loading import DataSource
from coterie.errors import ConfigurationError, Conflict
from coterie.privacy.entropy import Entropy, draw
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.metrics import MetricSums

STAGE: Final = "learning"
"""The stage of a session in which embeddings and gradients are sent."""
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
        self._store = LearnerStore(Path(folder))
        try:
            self._progress, self._tensors = self._load(session, role, entropy)
        except BaseException:
            self._store.close()
            raise
        self._log = MessageLog(session, STAGE, self._store)
        secret = bytes.fromhex(self._progress.secret)
        self._role = RoleWork(plan, role, secret=secret, session=self._progress.session)
        self._calls = 0

    def close(self) -> None:
        """Release the folder."""
        self._store.close()

    def __enter__(self) -> "Learner":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def client_state(self) -> ArraysByName:
        """This role's part of the model and of the optimizer's state; empty before the first training."""
        return self._tensors

    def skip_done(self) -> None:
        """Let the next call be a new one, after all that earlier programs have made in this session."""
        self._calls = self._progress.done

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

    def _load(self, session: Session, role: str, entropy: Entropy) -> tuple[RoleProgress, ArraysByName]:
        secret = draw(entropy, SECRET_BYTES).hex()
        fresh = RoleProgress(plan=self._plan.id, role=role, session=session.membership.session, secret=secret)
        progress, tensors = self._store.state() or (fresh, {})
        if (progress.plan, progress.role) != (fresh.plan, fresh.role):
            raise ConfigurationError(
                f"{self._store.folder} belongs to the role {progress.role} in plan {progress.plan[:12]}…, not to "
                f"{fresh.role} in {fresh.plan[:12]}….",
                hint="Give each role and plan a folder of its own.",
                code="plan_changed",
            )
        progress = replace(progress, secret=progress.secret or secret)
        progress.require_not_left(fresh.session, self._store.folder)
        if progress.session == fresh.session:
            return progress, tensors
        if progress.call is not None and progress.call.changed_weights:
            raise ConfigurationError(
                f"{self._store.folder} is in the middle of a training, call {progress.call.number} of session "
                f"{progress.session}.",
                hint="Finish it in that session, or train from the beginning in a new folder, in every role.",
                code="plan_changed",
            )
        left = (*progress.left, progress.session)
        return replace(fresh, trained=progress.trained, left=left, secret=progress.secret), tensors

    def _progress_at(self, call: LearnerCall | None) -> RoleProgress:
        """Progress with the messages that are worked in by now."""
        return replace(self._progress, call=call, sent=dict(self._log.sent), received=dict(self._log.received))

    def _keep(self, call: LearnerCall | None, tensors: ArraysByName) -> None:
        """Keep where this role is now."""
        self._progress, self._tensors = self._progress_at(call), tensors
        self._store.keep(STAGE, self._progress, tensors)

    def _call(
        self, task: TaskName, rows: DataSource | int, on_epoch: Callable[[int, Mapping[str, float]], None]
    ) -> tuple[LearnerCall, ArraysByName]:
        """The next call and what it gave: now, or in an earlier program."""
        arrays = self._role.rows_of(task, rows, self._columns)
        asked = call_of(task, arrays, self._calls, threads=self._threads, trained=self._progress.trained)
        found = self._store.result(asked.number) if asked.number < self._progress.done else None
        if found is None:
            found = self._finish_call(asked, arrays, on_epoch)
        elif not found[0].same_as(asked):
            raise _other_call(found[0], asked)
        self._calls += 1
        return found

    def _finish_call(
        self, asked: LearnerCall, arrays: ArraysByName, on_epoch: Callable[[int, Mapping[str, float]], None]
    ) -> tuple[LearnerCall, ArraysByName]:
        """The call, from where it was broken off, and what it gives."""
        begun = self._progress.call
        # What failed in this process has read on.
        self._log.rewind(self._progress.sent, self._progress.received)
        if begun is not None and not begun.same_as(asked):
            if begun.agreed:
                raise _other_call(begun, asked)
            try:
                withdraw(self._log, self._role.partners, self._plan.id, begun, self._patience_s)
            except Conflict as error:
                # An earlier program has said that it makes the call, and was killed before it kept that all do.
                raise (_other_call(begun, asked) if error.reason == "message_differs" else error) from error
            self._keep(None, self._tensors)
            begun = None
        if begun is None:
            self._begin(asked)
            begun = asked
        if not begun.agreed:
            try:
                agree(self._log, self._role.partners, self._plan.id, begun, self._patience_s)
            except Conflict as error:
                if error.reason == "session_step":  # all roles know that nobody makes it
                    self._keep(None, self._tensors)
                raise
            begun = replace(begun, agreed=True)
            self._keep(begun, self._tensors)
            self._log.faults.reach("agreed")
        call, outputs = self._work(begun, arrays, on_epoch)
        trained = call.trained + (call.task == "train")
        self._progress = replace(self._progress_at(None), done=call.number + 1, trained=trained)
        self._store.finish(STAGE, call, outputs, self._progress, self._tensors)
        self._log.faults.reach("call_done")
        return call, outputs

    def _begin(self, call: LearnerCall) -> None:
        self._role.require_trained(call, str(self._store.folder))
        self._keep(call, self._tensors or self._role.first_tensors())
        self._log.faults.reach("begun")

    def _work(
        self, call: LearnerCall, arrays: ArraysByName, on_epoch: Callable[[int, Mapping[str, float]], None]
    ) -> tuple[LearnerCall, ArraysByName]:
        """Every batch that is left of a call."""
        work, answer = self._role.work(call, arrays, self._tensors), b""
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
                            self._keep(call, tensors)
                            self._log.faults.reach("checkpoint_kept")
                event = work.send(answer)
        except StopIteration as end:
            return call, end.value


def _other_call(begun: LearnerCall, asked: LearnerCall) -> Conflict:
    alike = (begun.task, begun.rows) == (asked.task, asked.rows)
    return Conflict(
        f"Call {asked.number} was {begun.task} on {begun.rows} rows, in an earlier program; now it is {asked.task} on "
        f"{'other rows' if alike else f'{asked.rows} rows'}.",
        hint="Make the same calls as before, so that each goes on where it was; skip_done() comes before calls that "
        "are new.",
        code="session_step",
    )
