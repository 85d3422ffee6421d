"""One role's side of a plan of a session: it runs its stages on its own rows, and exchanges with its partners what the
plan says, and no more.

Calls are numbered by their order in the programs of a session. A program that was killed is started again and makes the
same calls: those that were done return at once what they returned, and the one that was broken off goes on. In another
session they are numbered anew. What was broken off before it changed any weight is dropped there; a training that did
goes on in its own session alone.
"""

import math
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.plan.check_session import SessionPlan
from coterie.aggregation.plan.session_manifest import RolePart
from coterie.aggregation.plan.stage import PREDICTION, Stage, StageInput, TaskName
from coterie.aggregation.walk import Supply, run_batch
from coterie.client_sdk.party.agreement import HEADER_BYTES, KEY, elsewhere, step_text
from coterie.client_sdk.party.learner_store import LearnerCall
from coterie.client_sdk.party.party import Session
from coterie.client_sdk.party.plans import require_plan
from coterie.client_sdk.party.role_calls import CallResult, RoleCalls
from coterie.client_sdk.rows.allowed import check_readable
from coterie.client_sdk.rows.loading import DataSource, load_data
from coterie.compute.data.batches import Batches
from coterie.compute.runtime.executable import Executable
from coterie.errors import ConfigurationError, InputError
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.device import DIVERGED
from coterie.protocol.finite import all_finite
from coterie.protocol.metrics import MetricSums
from coterie.protocol.schema import DataSchema, Label
from coterie.protocol.tensors import TensorLimits, encode_tensors, open_tensors
from coterie.randomness import uniforms

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
    ) -> None:
        require_plan(plan)
        self._plan, self._role = plan, session.membership.role
        self._part = plan.manifest.part(self._role)
        check_readable(self._part.schema, columns)
        self._columns = frozenset(columns)
        self._threads, self._patience_s = threads, patience_s
        self._partners = _partners(self._part)
        self._calls = RoleCalls(session, plan.id, Path(folder), self._partners, patience_s)
        self._log = self._calls.log
        self._executables: dict[tuple[str, int], Executable] = {}

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

    def predict(self, rows: DataSource) -> NDArray[np.float32] | None:
        """What the model says of rows, ``[rows, …]``; None for a role that has no labels.

        rows: as of `train`, without the label: arrays and tables must leave it out, and it is not read of a file.
        Raises as `evaluate` does.
        """
        return self._call("predict", rows, _ignore)[1].get(PREDICTION)

    def _call(
        self, task: TaskName, rows: DataSource, on_epoch: Callable[[int, Mapping[str, float]], None]
    ) -> CallResult:
        """The next call and what it gave: now, or in an earlier program."""
        arrays = load_data(rows, _schema_of(self._part.schema, task), allowed=self._columns)
        return self._calls.make(
            task, arrays, self._threads, self._begin, lambda call: self._work(call, arrays, on_epoch)
        )

    def _begin(self, call: LearnerCall) -> ArraysByName:
        """The part of the model that a call begins with."""
        tensors = self._calls.tensors
        if not call.trained and call.task != "train":
            raise ConfigurationError(
                f"The part of role {self._role!r} in {self._calls.folder} is not trained.",
                hint="Call train first, in every role.",
                code="not_trained",
            )
        for stage in self._part.stages_of(call.task) if not tensors else ():
            if stage.over == "once":
                # Of no seed that another role could know.
                drawn = {t.name: _uniform(t) for t in stage.from_source("random")}
                tensors = run_batch(stage, self._executable(stage, 1), Supply(model={}), drawn)["client_state"]
        return tensors

    def _work(
        self, call: LearnerCall, arrays: ArraysByName, on_epoch: Callable[[int, Mapping[str, float]], None]
    ) -> CallResult:
        """Every batch that is left of a call."""
        tensors, training, train = self._calls.tensors, self._plan.manifest.training, call.task == "train"
        stages = [stage for stage in self._part.stages_of(call.task) if stage.over != "once"]
        batches = Batches(
            arrays,
            batch_size=stages[0].batch,
            seed=training.seed,
            epochs=training.epochs if train else 1,
            shuffle=train,
        )
        per_epoch = batches.per_epoch
        epoch, batch = divmod(call.step, per_epoch)
        batches.restore({**batches.state(), "epoch": epoch, "batch": batch})
        predicted: list[NDArray[np.float32]] = []
        for batch in batches:
            sums: dict[str, float] = {}
            received: dict[str, NDArray[Any]] = {}
            for stage in stages:
                feeds = {t.name: batch[t.key] for t in stage.from_source("batch")}
                feeds |= self._received(call, stage, stages, received)
                supply = Supply(model={}, client_state=tensors, hyper=self._plan.manifest.hyper)
                put = run_batch(stage, self._executable(stage, call.threads), supply, feeds)
                tensors = put.get("client_state", tensors)
                sums |= {name: float(value[0]) for name, value in put.get("metric", {}).items()}
                predicted += [value.astype(np.float32) for value in put.get("prediction", {}).values()]
                made = {**put.get("message", {}), **put.get("prediction", {}), **put.get("client_state", {})}
                _require_finite(call, made, sums)
                self._send(call, stage, put.get("message", {}))
            call = call.counted(sums, per_epoch)
            if call.step % per_epoch == 0:
                on_epoch(call.step // per_epoch, MetricSums(call.epochs[-1]).means())
            if train and (call.step % per_epoch == 0 or call.step % STEPS_PER_CHECKPOINT == 0):
                self._calls.keep(call, tensors)
                self._log.faults.reach("checkpoint_kept")
        return call, {PREDICTION: np.concatenate(predicted)[: call.rows]} if predicted else {}

    def _executable(self, stage: Stage, threads: int) -> Executable:
        key = (stage.name, threads)
        if key not in self._executables:
            self._executables[key] = Executable(self._plan.graphs[self._role, stage.name], threads=threads)
        return self._executables[key]

    def _send(self, call: LearnerCall, stage: Stage, messages: ArraysByName) -> None:
        for role in self._partners:
            own = {t.key: messages[t.address] for t in stage.to_destination("message") if t.partner == role}
            if own:
                self._log.send(role, encode_tensors(own, {KEY: step_text(call)}), patience_s=self._patience_s)

    def _received(
        self, call: LearnerCall, stage: Stage, stages: list[Stage], received: dict[str, NDArray[Any]]
    ) -> dict[str, NDArray[Any]]:
        """The messages that a stage reads, by input; what comes with them for later stages is kept in ``received``."""
        expected = {t.address: t for each in stages for t in each.from_source("message")}
        for tensor in stage.from_source("message"):
            role = tensor.partner or ""
            while tensor.address not in received:
                coming = {name: t for name, t in expected.items() if t.partner == role}
                found = self._read(call, role, coming)
                twice = next((name for name in found if name in received), None)
                if twice is not None:
                    raise _unusable(role, f"{twice} twice for one batch")
                received |= found
        return {t.name: received[t.address] for t in stage.from_source("message")}

    def _read(self, call: LearnerCall, role: str, expected: Mapping[str, StageInput]) -> dict[str, NDArray[Any]]:
        sizes = {name: 4 * int(np.prod(t.shape)) for name, t in expected.items()}
        limit = sum(sizes.values()) + HEADER_BYTES
        data = self._log.receive(role, limit=limit, patience_s=self._patience_s)
        file = open_tensors(data, TensorLimits(max_bytes=limit))
        place = file.metadata.get(KEY, "")
        if place != step_text(call):
            raise elsewhere(f"{role} is at {place[:200] or 'an unknown place'}, and this role at {step_text(call)}.")
        found = {f"{role}/{key}": file.tensor(key) for key in file.tensors}
        for name, value in found.items():
            tensor = expected.get(name)
            if tensor is None or (value.dtype.name, value.shape) != (tensor.dtype, tensor.shape):
                raise _unusable(role, f"{name} as {value.dtype}{list(value.shape)}, which the plan does not say")
            if not all_finite(value.reshape(-1)):
                raise _unusable(role, f"{name} with numbers that are not finite")
        if not found:
            raise _unusable(role, "nothing")
        return found


def _partners(part: RolePart) -> list[str]:
    """The roles that send to a role or read what it sends."""
    sent = [t.partner for stage in part.stages for t in stage.to_destination("message")]
    read = [t.partner for stage in part.stages for t in stage.from_source("message")]
    return sorted({role for role in (*sent, *read) if role is not None})


def _require_finite(call: LearnerCall, arrays: ArraysByName, sums: Mapping[str, float]) -> None:
    infinite = [name for name, value in arrays.items() if not all_finite(value.reshape(-1))]
    infinite += [name for name, value in sums.items() if not math.isfinite(value)]
    if infinite:
        raise InputError(
            f"The model diverged: {infinite[0]} is not finite at step {call.step} of {call.task}.",
            hint="Nothing of it was sent. Lower the learning rate, and train from the beginning, in a new session and "
            "new folders.",
            code=DIVERGED,
        )


def _schema_of(schema: DataSchema, task: TaskName) -> DataSchema:
    """How the rows of a task are read: those of a prediction have no label."""
    return DataSchema(schema.features, Label(name=schema.label.name, constant=0)) if task == "predict" else schema


def _uniform(tensor: StageInput) -> NDArray[np.float32]:
    return uniforms(os.urandom(32), 0, int(np.prod(tensor.shape))).reshape(tensor.shape)


def _unusable(role: str, what: str) -> InputError:
    return InputError(
        f"{role} sent {what}.",
        hint="Ask the partner whether its training diverged, and which program it runs.",
        code="session_values",
    )
