"""One role's side of a plan of a session: it runs its stages on its own rows, and exchanges with its partners what the
plan says, and no more.

Calls are numbered by their order in the program. A program that was killed is started again and makes the same calls:
those that were done return at once what they returned, and the one that was broken off goes on.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.plan.check_session import SessionPlan
from coterie.aggregation.plan.stage import PREDICTION, Stage, StageInput, TaskName
from coterie.aggregation.walk import Supply, run_batch
from coterie.client_sdk.party.checkpoint import RoleCheckpoint, RoleProgress
from coterie.client_sdk.party.message_log import MessageLog
from coterie.client_sdk.party.party import Session
from coterie.client_sdk.rows.loading import DataSource, load_data
from coterie.compute.data.batches import Batches
from coterie.compute.runtime.executable import Executable
from coterie.errors import ConfigurationError, Conflict, InputError
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.canonical import canonical_json
from coterie.protocol.device import DIVERGED
from coterie.protocol.finite import all_finite
from coterie.protocol.metrics import MetricSums
from coterie.protocol.private_files import make_private_folder
from coterie.protocol.randomness import uniforms
from coterie.protocol.schema import DataSchema, Label
from coterie.protocol.tensors import TensorLimits, encode_tensors, open_tensors
from coterie.protocol.training import batch_order

STAGE: Final = "learning"
"""The stage of a session in which embeddings and gradients are sent."""
STEPS_PER_CHECKPOINT: Final = 100
_HEADER_BYTES: Final = 1 << 16
_KEY: Final = "at"


def _ignore(epoch: int, means: Mapping[str, float]) -> None:
    """For who does not look at single epochs."""


class Learner:
    """A role that trains, evaluates and predicts together with its partners, who make the same calls.

    session: joined already, with a stage ``learning``.
    plan: the same for all roles; see `coterie.client_sdk.party.plans`.
    folder: where its part of the model is, its progress, and messages that are not worked in yet; of this role and plan
        alone, closed to other users.
    threads: of one graph run.
    patience_s: how long to wait for a partner's message; for as long as it takes when not given.

    Row i of each call must be about the same person or thing in all roles' data. Partners see the numbers that
    `SessionManifest.disclosures` names, and how many rows there are.

    Guarantees: a call gives the same result, whenever its process was killed and started again on the same folder;
    weights are drawn by the role itself, and leave it only as what embeddings and gradients tell of them.
    Raises ConfigurationError (``plan_changed``, ``checkpoint_damaged``), PlanRefused (``role_unknown``).
    """

    def __init__(
        self,
        session: Session,
        plan: SessionPlan,
        folder: str | Path,
        *,
        threads: int = 1,
        patience_s: float | None = None,
    ) -> None:
        self._plan, self._role = plan, session.membership.role
        self._part = plan.manifest.part(self._role)
        self._folder, self._threads, self._patience_s = Path(folder), threads, patience_s
        make_private_folder(self._folder)
        self._checkpoint = self._load()
        progress = self._checkpoint.progress
        self._log = MessageLog(
            session, STAGE, self._folder / "messages", sent=progress.sent, received=progress.received
        )
        self._executables: dict[str, Executable] = {}
        self._calls = 0

    @property
    def client_state(self) -> ArraysByName:
        """This role's part of the model and of the optimizer's state; empty before the first training."""
        return self._checkpoint.tensors

    def skip_done(self) -> None:
        """Let the next call be a new one, after all that earlier programs have made in this folder."""
        self._calls = self._checkpoint.progress.run

    def train(
        self, rows: DataSource, *, on_epoch: Callable[[int, Mapping[str, float]], None] = _ignore
    ) -> tuple[MetricSums, ...]:
        """Train on rows, from where the last training ended. The metric sums of each epoch; without any for a role that
        has no labels.

        rows: as a device's data are given (`coterie.client_sdk.rows.loading.load_data`).
        on_epoch: gets the number of each epoch that ends, from 1, and the means of its metrics.
        Raises DataError; Conflict (``session_step``) where a partner makes another call, or has another number of rows;
        InputError (``training_diverged``), and as `MessageLog` does.
        """
        return tuple(MetricSums(sums) for sums in self._call("train", rows, on_epoch).progress.epochs)

    def evaluate(self, rows: DataSource) -> MetricSums:
        """The metric sums of the model on rows; none for a role that has no labels. Raises as `train` does, and
        ConfigurationError (``not_trained``).
        """
        epochs = self._call("evaluate", rows, _ignore).progress.epochs
        return MetricSums(epochs[0]) if epochs else MetricSums()

    def predict(self, rows: DataSource) -> NDArray[np.float32] | None:
        """What the model says of rows, ``[rows, …]``; None for a role that has no labels. The rows need no label.

        Raises as `evaluate` does.
        """
        return self._call("predict", rows, _ignore).tensors.get(PREDICTION)

    def _load(self) -> RoleCheckpoint:
        path = self._folder / "checkpoint.safetensors"
        if not path.exists():
            return RoleCheckpoint(progress=RoleProgress(plan=self._plan.id), tensors={})
        found = RoleCheckpoint.load(path)
        if found.progress.plan != self._plan.id:
            raise ConfigurationError(
                f"{self._folder} belongs to plan {found.progress.plan[:16]}…, not to {self._plan.id[:16]}….",
                hint="Give each plan a folder of its own.",
                code="plan_changed",
            )
        return found

    def _keep(self, progress: RoleProgress, tensors: ArraysByName) -> None:
        progress = replace(progress, sent=dict(self._log.sent), received=dict(self._log.received))
        self._checkpoint = RoleCheckpoint(progress=progress, tensors=tensors)
        self._checkpoint.save(self._folder / "checkpoint.safetensors")
        self._log.faults.reach("checkpoint_kept")
        self._log.forget()

    def _call(
        self, task: TaskName, rows: DataSource, on_epoch: Callable[[int, Mapping[str, float]], None]
    ) -> RoleCheckpoint:
        """The result of the next call: made now, or by an earlier program."""
        arrays = load_data(rows, _schema_of(self._part.schema, task))
        count = len(next(iter(arrays.values())))
        number, path = self._calls, self._folder / f"result-{self._calls}.safetensors"
        if path.exists():
            result = RoleCheckpoint.load(path)
            _check_same_call(result.progress, task, count, number)
            if self._checkpoint.progress.run == number:
                self._log.sent, self._log.received = dict(result.progress.sent), dict(result.progress.received)
        else:
            if self._checkpoint.progress.task is None:
                self._begin(task, count)
            _check_same_call(self._checkpoint.progress, task, count, number)
            result = self._work(task, arrays, on_epoch)
            result.save(path)
            self._log.faults.reach("result_kept")
        if self._checkpoint.progress.run == number:
            done = replace(self._checkpoint.progress, run=number + 1, task=None, rows=0, step=0, epochs=())
            self._keep(done, self._checkpoint.tensors)
            self._log.faults.reach("call_done")
        self._calls += 1
        return result

    def _begin(self, task: TaskName, count: int) -> None:
        progress = replace(self._checkpoint.progress, task=task, rows=count)
        tensors = self._checkpoint.tensors
        if not tensors and task != "train":
            raise ConfigurationError(
                f"The part of role {self._role!r} in {self._folder} is not trained.",
                hint="Call train first, in every role.",
                code="not_trained",
            )
        for stage in self._part.stages_of(task) if not tensors else ():
            if stage.over == "once":
                # Of no seed that another role could know.
                drawn = {t.name: _uniform(t) for t in stage.from_source("random")}
                tensors = run_batch(stage, self._executable(stage), Supply(model={}), drawn)["client_state"]
        self._keep(progress, tensors)
        self._log.faults.reach("begun")

    def _work(
        self, task: TaskName, arrays: ArraysByName, on_epoch: Callable[[int, Mapping[str, float]], None]
    ) -> RoleCheckpoint:
        """Every batch that is left of a call."""
        progress, tensors = self._checkpoint.progress, self._checkpoint.tensors
        # A call that failed in this process has read on.
        self._log.sent, self._log.received = dict(progress.sent), dict(progress.received)
        stages = [stage for stage in self._part.stages_of(task) if stage.over != "once"]
        training = self._plan.manifest.training
        batches = Batches(
            arrays,
            batch_size=stages[0].batch,
            seed=training.seed,
            epochs=training.epochs if task == "train" else 1,
            shuffle=task == "train",
            order=batch_order,
        )
        per_epoch = batches.per_epoch
        if progress.step == 0:
            self._agree(progress)
        else:
            epoch, batch = divmod(progress.step, per_epoch)
            batches.restore({**batches.state(), "epoch": epoch, "batch": batch})
        predicted: list[NDArray[np.float32]] = []
        for batch in batches:
            sums: dict[str, float] = {}
            received: dict[str, NDArray[Any]] = {}
            for stage in stages:
                feeds = {t.name: batch[t.key] for t in stage.from_source("batch")}
                feeds |= self._received(progress, stage, stages, received)
                supply = Supply(model={}, client_state=tensors, hyper=self._plan.manifest.hyper)
                put = run_batch(stage, self._executable(stage), supply, feeds)
                tensors = put.get("client_state", tensors)
                sums |= {name: float(value[0]) for name, value in put.get("metric", {}).items()}
                predicted += [value.astype(np.float32) for value in put.get("prediction", {}).values()]
                self._send(progress, stage, put.get("message", {}))
            progress = progress.counted(sums, per_epoch)
            if progress.step % per_epoch == 0:
                on_epoch(progress.step // per_epoch, MetricSums(progress.epochs[-1]).means())
            if task == "train" and (progress.step % per_epoch == 0 or progress.step % STEPS_PER_CHECKPOINT == 0):
                self._keep(progress, tensors)
        outputs = {PREDICTION: np.concatenate(predicted)[: progress.rows]} if predicted else {}
        progress = replace(progress, sent=dict(self._log.sent), received=dict(self._log.received))
        return RoleCheckpoint(progress=progress, tensors=outputs)

    def _executable(self, stage: Stage) -> Executable:
        if stage.name not in self._executables:
            data = self._plan.graphs[self._role, stage.name]
            self._executables[stage.name] = Executable(data, threads=self._threads)
        return self._executables[stage.name]

    def _agree(self, progress: RoleProgress) -> None:
        """Let all roles say which call they make, then whether all say the same, before anything of a row leaves. Where
        they do not, nobody has begun, and each may make another call.
        """
        own = _call_text(progress)
        others = {role: text for role, text in self._exchange(own).items() if text != own}
        verdicts = self._exchange(_verdict_text(progress, agreed=not others))
        refusing = [role for role, text in verdicts.items() if text != _verdict_text(progress, agreed=True)]
        if not others and not refusing:
            return
        self._keep(replace(progress, task=None, rows=0), self._checkpoint.tensors)
        role, text = next(iter(others.items()), (refusing[0] if refusing else "", "a call on which not all agree"))
        raise _elsewhere(role, text, own)

    def _exchange(self, text: str) -> dict[str, str]:
        """Tell every partner a text, and hear one from each."""
        for role in self._partners():
            self._log.send(role, encode_tensors({}, {_KEY: text}))
        found: dict[str, str] = {}
        for role in self._partners():
            data = self._log.receive(role, limit=_HEADER_BYTES, patience_s=self._patience_s)
            found[role] = open_tensors(data).metadata.get(_KEY, "")
        return found

    def _partners(self) -> list[str]:
        named = {t.partner for stage in self._part.stages for t in stage.to_destination("message")}
        return sorted(role for role in named if role is not None)

    def _send(self, progress: RoleProgress, stage: Stage, messages: ArraysByName) -> None:
        for name, value in messages.items():
            if not all_finite(value.reshape(-1)):
                raise InputError(
                    f"Training diverged at step {progress.step}: {name} of stage {stage.name} is not finite.",
                    hint="Nothing of it was sent. Lower the learning rate, and train from the beginning in a new "
                    "session.",
                    code=DIVERGED,
                )
        for role in self._partners():
            own = {t.key: messages[t.address] for t in stage.to_destination("message") if t.partner == role}
            if own:
                self._log.send(role, encode_tensors(own, {_KEY: _step_text(progress)}))

    def _received(
        self, progress: RoleProgress, stage: Stage, stages: list[Stage], received: dict[str, NDArray[Any]]
    ) -> dict[str, NDArray[Any]]:
        """The messages that a stage reads, by input; what comes with them for later stages is kept in ``received``."""
        expected = {t.address: t for each in stages for t in each.from_source("message")}
        for tensor in stage.from_source("message"):
            role = tensor.partner or ""
            while tensor.address not in received:
                coming = {name: t for name, t in expected.items() if t.partner == role}
                received |= self._read(progress, role, coming)
        return {t.name: received[t.address] for t in stage.from_source("message")}

    def _read(self, progress: RoleProgress, role: str, expected: Mapping[str, StageInput]) -> dict[str, NDArray[Any]]:
        sizes = {name: 4 * int(np.prod(t.shape)) for name, t in expected.items()}
        limit = sum(sizes.values()) + _HEADER_BYTES
        data = self._log.receive(role, limit=limit, patience_s=self._patience_s)
        file = open_tensors(data, TensorLimits(max_bytes=limit))
        place = file.metadata.get(_KEY, "")
        if place != _step_text(progress):
            raise _elsewhere(role, place, _step_text(progress))
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


def _call_text(progress: RoleProgress) -> str:
    """Which call it is, as all roles must see it."""
    said = {"plan": progress.plan, "call": progress.run, "task": progress.task, "rows": progress.rows}
    return canonical_json(said).decode()


def _verdict_text(progress: RoleProgress, *, agreed: bool) -> str:
    return canonical_json({"call": progress.run, "agreed": agreed}).decode()


def _step_text(progress: RoleProgress) -> str:
    return canonical_json({"call": progress.run, "task": progress.task, "step": progress.step}).decode()


def _check_same_call(progress: RoleProgress, task: TaskName, rows: int, number: int) -> None:
    if (progress.task, progress.rows) != (task, rows):
        raise Conflict(
            f"Call {number} was {progress.task} on {progress.rows} rows, in an earlier program; now it is {task} on "
            f"{rows} rows.",
            hint="Make the same calls as before, so that each goes on where it was; skip_done() comes before calls "
            "that are new.",
            code="session_step",
        )


def _schema_of(schema: DataSchema, task: TaskName) -> DataSchema:
    """How the rows of a task are read: those of a prediction have no label."""
    return DataSchema(schema.features, Label(name=schema.label.name, constant=0)) if task == "predict" else schema


def _uniform(tensor: StageInput) -> NDArray[np.float32]:
    return uniforms(os.urandom(32), 0, int(np.prod(tensor.shape))).reshape(tensor.shape)


def _elsewhere(role: str, theirs: str, ours: str) -> Conflict:
    return Conflict(
        f"{role} is at another place of the plan than this role: {theirs[:200] or 'unknown'}, not {ours}.",
        hint="All roles make the same calls in the same order, on the same number of rows, of which row i is about the "
        "same person in each.",
        code="session_step",
    )


def _unusable(role: str, what: str) -> InputError:
    return InputError(
        f"{role} sent {what}.",
        hint="Ask the partner whether its training diverged, and which program it runs.",
        code="session_values",
    )
