"""What a role does for each batch of a call: stages of its part, and the messages that it sends and waits for.

It knows nothing of how messages travel. It is a generator: it hands out what it sends, says what it waits for, is given
that, and says when a batch is done. A `Learner` sends over a session; a simulation has all roles in one process.
"""

import math
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.plan.check_session import SessionPlan, classes_of
from coterie.aggregation.plan.session_manifest import RolePart
from coterie.aggregation.plan.stage import PREDICTION, Stage, StageInput, TaskName
from coterie.aggregation.walk import Supply, run_batch
from coterie.client_sdk.party.agreement import HEADER_BYTES, KEY, elsewhere, step_text
from coterie.client_sdk.party.cut_messages import CutKeys, protected, read_message, write_message
from coterie.client_sdk.party.learner_store import LearnerCall
from coterie.client_sdk.rows.loading import DataSource, load_data
from coterie.compute.data.batches import Batches
from coterie.compute.runtime.executable import Executable
from coterie.errors import ArgumentTypeError, ConfigurationError, InputError
from coterie.privacy.cut import labels as noisy_labels
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.cut_tensors import bytes_of
from coterie.protocol.device import DIVERGED
from coterie.protocol.finite import all_finite
from coterie.protocol.schema import DataSchema, Label
from coterie.protocol.tensors import TensorLimits, encode_tensors, open_tensors
from coterie.randomness import derive, uniforms


@dataclass(frozen=True)
class Sent:
    """A message to a role."""

    role: str
    body: bytes


@dataclass(frozen=True)
class MessageAwaited:
    """A message that must come from a role, of at most ``limit`` bytes. It is sent into the generator."""

    role: str
    limit: int


@dataclass(frozen=True)
class BatchDone:
    """A batch is done.

    call: how far it is now.
    tensors: the client state after it.
    epoch: whether all rows have come up in it.
    """

    call: LearnerCall
    tensors: ArraysByName
    epoch: bool


WorkEvent: TypeAlias = Sent | MessageAwaited | BatchDone
BatchWork: TypeAlias = Generator[WorkEvent, bytes, ArraysByName]
"""Returns what the call gives: the prediction."""


class RoleWork:
    """The part of one role.

    secret: 32 bytes that no other role knows: first weights, noise and rounding are drawn of it, so that a call that is
        begun again says the same numbers.
    session: part of what noise is drawn of, so that no two sessions share it.
    """

    def __init__(self, plan: SessionPlan, role: str, *, secret: bytes, session: str) -> None:
        self._plan, self.name = plan, role
        self.part = plan.manifest.part(role)
        self._secret, self._session = secret, session
        self._executables: dict[tuple[str, int], Executable] = {}
        self.partners: Final = partners_of(self.part)

    def rows_of(self, task: TaskName, rows: DataSource | int, columns: Collection[str] | None) -> ArraysByName:
        """The rows of a task, checked: those of a prediction have no label.

        rows: how many, for the prediction of a role that has the label alone.
        columns: that may be read; all that the plan reads when not given.
        Raises DataError, PlanRefused (``plan_columns``), ArgumentTypeError for a number in place of rows, or rows in
        place of a number.
        """
        schema, counted = self.part.schema, task == "predict" and not self.part.schema.has_features
        if isinstance(rows, int):
            if not counted or isinstance(cast(object, rows), bool) or rows < 1:
                raise ArgumentTypeError(
                    f"Role {self.name!r} was given {rows!r} for the rows of {task}.",
                    hint="A number of rows, of at least 1, is given by a role without columns, to predict.",
                )
            return {schema.label.name: np.zeros(rows, np.int32)}
        if counted:
            raise ArgumentTypeError(
                f"Role {self.name!r} has no columns, so a prediction reads nothing of its data.",
                hint="Give the number of rows in place of them: predict(119).",
            )
        if task == "predict":
            schema = DataSchema(schema.features, Label(name=schema.label.name, constant=0))
        return load_data(rows, schema, allowed=columns)

    def require_trained(self, call: LearnerCall, where: str) -> None:
        """Raise ConfigurationError (``not_trained``) for a call that needs a training before it.

        where: what messages call the place of this part.
        """
        if not call.trained and call.task != "train":
            raise ConfigurationError(
                f"The part of role {self.name!r} in {where} is not trained.",
                hint="Call train first, in every role.",
                code="not_trained",
            )

    def first_tensors(self) -> ArraysByName:
        """The client state that the first training begins with."""
        (stage,) = (stage for stage in self.part.stages if stage.over == "once")
        # Of no seed that another role could know.
        drawn = {t.name: _uniform(derive(self._secret, f"first {t.name}"), t) for t in stage.from_source("random")}
        return run_batch(stage, self._executable(stage, 1), Supply(model={}), drawn)["client_state"]

    def work(self, call: LearnerCall, arrays: ArraysByName, tensors: ArraysByName) -> BatchWork:
        """Every batch that is left of a call.

        Raises InputError (``training_diverged``, ``session_values``, ``out_of_range``), Conflict (``session_step``).
        """
        training, train = self._plan.manifest.training, call.task == "train"
        stages = [stage for stage in self.part.stages_of(call.task) if stage.over != "once"]
        batches = Batches(
            self._with_noise(arrays, call) if train else arrays,
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
                yield from self._receive(call, stage, stages, received)
                feeds = {t.name: batch[t.key] for t in stage.from_source("batch")}
                feeds |= {t.name: received[t.address] for t in stage.from_source("message")}
                supply = Supply(model={}, client_state=tensors, hyper=self._plan.manifest.hyper)
                put = run_batch(stage, self._executable(stage, call.threads), supply, feeds)
                tensors = put.get("client_state", tensors)
                sums |= {name: float(value[0]) for name, value in put.get("metric", {}).items()}
                predicted += [value.astype(np.float32) for value in put.get("prediction", {}).values()]
                made = {**put.get("message", {}), **put.get("prediction", {}), **put.get("client_state", {})}
                _require_finite(call, made, sums)
                yield from self._send(call, stage, batch, put.get("message", {}))
            call = call.counted(sums, per_epoch)
            yield BatchDone(call, tensors, call.step % per_epoch == 0)
        return {PREDICTION: np.concatenate(predicted)[: call.rows]} if predicted else {}

    def _with_noise(self, arrays: ArraysByName, call: LearnerCall) -> ArraysByName:
        """The rows of a training, whose labels are those of randomised response where the plan says so: the same for
        the same rows, so that a second training of them tells nothing more.
        """
        noise, label = self._plan.manifest.cut.label, self.part.schema.label
        classes = classes_of(label)
        if noise is None or classes is None:
            return arrays
        key = derive(self._secret, f"labels {call.digest}")
        return {**arrays, label.name: noisy_labels.protect(arrays[label.name], classes, noise, key)}

    def _executable(self, stage: Stage, threads: int) -> Executable:
        key = (stage.name, threads)
        if key not in self._executables:
            self._executables[key] = Executable(self._plan.graphs[self.name, stage.name], threads=threads)
        return self._executables[key]

    def _send(
        self, call: LearnerCall, stage: Stage, batch: ArraysByName, messages: ArraysByName
    ) -> Generator[WorkEvent, bytes, None]:
        cut = self._plan.manifest.cut
        for role in self.partners:
            own: dict[str, NDArray[Any]] = {}
            for tensor in (t for t in stage.to_destination("message") if t.partner == role):
                keys = CutKeys(self._secret, f"{self._session} {call.number} {call.step} {tensor.address}")
                values = protected(cut, self.part, messages[tensor.address], batch, keys)
                own |= write_message(cut, call.task, tensor.key, values, keys)
            if own:
                yield Sent(role, encode_tensors(own, {KEY: step_text(call)}))

    def _receive(
        self, call: LearnerCall, stage: Stage, stages: list[Stage], received: dict[str, NDArray[Any]]
    ) -> Generator[WorkEvent, bytes, None]:
        """Let ``received`` have all messages that a stage reads, by address; what comes with them for later stages is
        kept in it.
        """
        expected = {t.address: t for each in stages for t in each.from_source("message")}
        for tensor in stage.from_source("message"):
            role = tensor.partner or ""
            while tensor.address not in received:
                coming = {t.key: t for t in expected.values() if t.partner == role}
                form = self._plan.manifest.cut.compression
                limit = sum(bytes_of(form, t.shape) for t in coming.values()) + HEADER_BYTES
                found = self._read(call, role, coming, (yield MessageAwaited(role, limit)), limit)
                twice = next((name for name in found if name in received), None)
                if twice is not None:
                    raise unusable(role, f"{twice} twice for one batch")
                received |= found

    def _read(
        self, call: LearnerCall, role: str, expected: Mapping[str, StageInput], body: bytes, limit: int
    ) -> dict[str, NDArray[Any]]:
        file = open_tensors(body, TensorLimits(max_bytes=limit))
        place = file.metadata.get(KEY, "")
        if place != step_text(call):
            raise elsewhere(f"{role} is at {place[:200] or 'an unknown place'}, and this role at {step_text(call)}.")
        try:
            found = read_message(self._plan.manifest.cut, file, {key: t.shape for key, t in expected.items()})
        except InputError as error:
            raise unusable(role, error.message.rstrip(".")) from error
        if not found:
            raise unusable(role, "nothing")
        return {f"{role}/{key}": value for key, value in found.items()}


def partners_of(part: RolePart) -> list[str]:
    """The roles that send to a role or read what it sends."""
    sent = [t.partner for stage in part.stages for t in stage.to_destination("message")]
    read = [t.partner for stage in part.stages for t in stage.from_source("message")]
    return sorted({role for role in (*sent, *read) if role is not None})


def unusable(role: str, what: str) -> InputError:
    """The refusal of a message that the plan does not say."""
    return InputError(
        f"{role} sent {what}.",
        hint="Ask the partner whether its training diverged, and which program it runs.",
        code="session_values",
    )


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


def _uniform(seed: bytes, tensor: StageInput) -> NDArray[np.float32]:
    return uniforms(seed, 0, int(np.prod(tensor.shape))).reshape(tensor.shape)
